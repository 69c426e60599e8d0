package grpclimit_test

import (
	"context"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	grpctap "google.golang.org/grpc/tap"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/grpclimit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// TestActions: a call behind each kind of on_exceed that gRPC can carry.
func TestActions(t *testing.T) {
	set, err := rules.Parse("l.yaml", []byte(`
limits:
  - {name: away, match: {method: /s/Away}, rate: 1/h, on_exceed: {redirect: /busy}}
  - {name: own, match: {method: /s/Own}, rate: 1/h, on_exceed: {reject: {header: {X-Reason: quota}}}}
  - {name: less, match: {method: /s/Less}, rate: 1/h, on_exceed: tag}
  - {name: slow, match: {method: /s/Slow}, rate: 1/h, on_exceed: {queue: {max_wait: 1m}}}
`))
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(memory.New(memory.Options{}), set, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	unary, streams, tap := grpclimit.UnaryServerInterceptor(e), grpclimit.StreamServerInterceptor(e), grpclimit.ServerInHandle(e)
	var marks []string
	call := func(method string) (metadata.MD, error) {
		tr := &transport{}
		ctx := metadata.NewIncomingContext(t.Context(), metadata.Pairs("x-ratelimit-degraded", "forged"))
		ctx = grpc.NewContextWithServerTransportStream(ctx, tr)
		_, err := unary(ctx, nil, &grpc.UnaryServerInfo{FullMethod: method}, func(ctx context.Context, _ any) (any, error) {
			marks = metadata.ValueFromIncomingContext(ctx, limit.DegradedHeader)
			return nil, nil
		})
		return tr.header, err
	}
	for _, method := range []string{"/s/Away", "/s/Own", "/s/Less", "/s/Slow"} {
		if _, err := call(method); err != nil || len(marks) > 0 {
			t.Errorf("%s: the first call: %v, %q", method, err, marks)
		}
	}
	if md, err := call("/s/Away"); status.Code(err) != codes.ResourceExhausted || !slices.Equal(md["location"], []string{"/busy"}) {
		t.Errorf("away: %v %v", err, md)
	}
	if md, err := call("/s/Own"); status.Code(err) != codes.ResourceExhausted || !slices.Equal(md["x-reason"], []string{"quota"}) {
		t.Errorf("own: %v %v", err, md)
	}
	if _, err := call("/s/Less"); err != nil || !slices.Equal(marks, []string{"less"}) {
		t.Errorf("less: %v %q", err, marks)
	}
	ctx := grpc.NewContextWithServerTransportStream(t.Context(), &transport{})
	if err := streams(nil, stream{ctx: ctx}, &grpc.StreamServerInfo{FullMethod: "/s/Less"}, func(_ any, s grpc.ServerStream) error {
		marks = metadata.ValueFromIncomingContext(s.Context(), limit.DegradedHeader)
		return nil
	}); err != nil || !slices.Equal(marks, []string{"less"}) {
		t.Errorf("less, a stream: %v %q", err, marks)
	}
	// A tap must not hold up its connection.
	if _, err := tap(t.Context(), &grpctap.Info{FullMethodName: "/s/Slow"}); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("slow, at the tap: %v", err)
	}
}
