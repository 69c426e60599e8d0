package server

import (
	"bytes"
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/grpcserver"
)

// A fault that one request meets is answered and logged, without what the request
// holds, and the service goes on.
func TestFaultsAreSurvived(t *testing.T) {
	var text bytes.Buffer
	log := slog.New(slog.NewTextHandler(&text, nil))
	fault := func() { panic("out of range") }
	logged := func() {
		t.Helper()
		if got := text.String(); !strings.Contains(got, "level=ERROR") || !strings.Contains(got, "out of range") || !strings.Contains(got, "listeners_test.go") || strings.Contains(got, "secret") {
			t.Errorf("log: %s", got)
		}
		text.Reset()
	}

	srv := httptest.NewServer(newHTTP(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { fault() }), log).Handler)
	defer srv.Close()
	resp, err := http.Get(srv.URL + "/v1/gate/nginx/attr.user=secret")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("HTTP: %d", resp.StatusCode)
	}
	logged()

	_, err = grpcserver.Survive(faultsTo(log))(context.Background(), "secret", &grpc.UnaryServerInfo{FullMethod: "/a/B"}, func(context.Context, any) (any, error) {
		fault()
		return nil, nil
	})
	if status.Code(err) != codes.Internal {
		t.Errorf("unary: %v", err)
	}
	logged()

	err = grpcserver.SurviveStream(faultsTo(log))(nil, nil, &grpc.StreamServerInfo{FullMethod: "/a/C"}, func(any, grpc.ServerStream) error {
		fault()
		return nil
	})
	if status.Code(err) != codes.Internal {
		t.Errorf("stream: %v", err)
	}
	logged()
}
