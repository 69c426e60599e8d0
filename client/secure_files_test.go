package client

import (
	"context"
	"crypto/tls"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/testca"
)

// TestSecurityThatCannotBeMeant: options of which one would be ignored are errors.
func TestSecurityThatCannotBeMeant(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for want, o := range map[string]Options{
		"TLS and TLSFiles":      {TLS: &tls.Config{}, TLSFiles: TLSFiles{CA: "ca.crt"}},
		"a key alone":           {TLSFiles: TLSFiles{Cert: "c.crt"}},
		"key alone, set both":   {TLSFiles: TLSFiles{Key: "c.key"}},
		"Token and TokenFile":   {Token: "t", TokenFile: "f"},
		"blank or a line break": {Token: "t\n"},
	} {
		o.Address = "127.0.0.1:1"
		if _, err := New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want something of %q", err, want)
		}
	}
}

// TestTokensInPlainText: a token goes to another machine by TLS alone, and is not in the error.
func TestTokensInPlainText(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const token = "token-of-orders-000"
	for address, ok := range map[string]bool{
		"127.0.0.1:1": true, "[::1]:1": true, "localhost:1": true, "127.0.0.2": true,
		"192.0.2.1:1": false, "coordinator:1": false, "localhost.example:1": false, "dns:///coordinator:1": false, "127.0.0.1.example:1": false,
	} {
		for _, config := range []*tls.Config{nil, {}} {
			s := secure{token: token, tls: config}
			_, err := s.options(address)
			if (err == nil) != (ok || config != nil) || err != nil && (strings.Contains(err.Error(), token) || !strings.Contains(err.Error(), "set TLS")) {
				t.Errorf("%s, TLS %v: %v", address, config != nil, err)
			}
		}
	}
	dir := t.TempDir()
	for name, content := range map[string]string{"empty": "\n", "two": token + "\n" + token, "blank": "a token"} {
		if _, err := readToken(testca.File(dir, name, []byte(content))); err == nil || strings.Contains(err.Error(), token) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, f := range []TLSFiles{{CA: filepath.Join(dir, "none")}, {CA: filepath.Join(dir, "two")}, {Cert: filepath.Join(dir, "two"), Key: filepath.Join(dir, "two")}} {
		if _, err := f.Config(); err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("%+v: %v", f, err)
		}
	}
}

// TestFilesAreReadAtEachConnection: a client whose token and authority are replaced while it runs connects with
// the new ones.
func TestFilesAreReadAtEachConnection(t *testing.T) {
	first, second, dir := testca.New(), testca.New(), t.TempDir()
	ca, token := testca.File(dir, "ca.crt", first.PEM), testca.File(dir, "token", []byte("the-first-token\n"))
	var mu sync.Mutex
	seen := map[string]bool{}
	wanted := "the-first-token"
	ask := func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) error {
		mu.Lock()
		got := strings.Join(metadata.ValueFromIncomingContext(ss.Context(), "authorization"), " ")
		seen[got] = true
		refused := got != "Bearer "+wanted
		mu.Unlock()
		if refused {
			return status.Error(codes.Unauthenticated, "the token is not known")
		}
		return next(srv, ss)
	}
	serve := func(by *testca.Authority, at string) (string, func()) {
		certificate := by.Issue(testca.Names{Server: true}).TLS()
		return newRoom(1).listen(t, at, grpc.Creds(credentials.NewTLS(&tls.Config{Certificates: []tls.Certificate{certificate}})), grpc.StreamInterceptor(ask))
	}
	address, stop := serve(first, "127.0.0.1:0")
	c, err := New(Options{Address: address, TLSFiles: TLSFiles{CA: ca}, TokenFile: token, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	openLimit(t, c, "m", LimitOptions{})
	await(t, "the first connection", c.Connected)
	stop()
	mu.Lock()
	wanted = "the-second-token"
	mu.Unlock()
	_, stop = serve(second, address)
	defer stop()
	await(t, "the new authority to be refused", func() bool { return c.Err() != nil && strings.Contains(c.Err().Error(), "certificate") })
	testca.File(dir, "ca.crt", second.PEM)
	await(t, "the old token to be refused", func() bool { return c.Err() != nil && strings.Contains(c.Err().Error(), "the token is not known") })
	testca.File(dir, "token", []byte("the-second-token"))
	await(t, "the second connection", func() bool { return c.Err() == nil && c.Connected() })
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("Run does not end")
	}
	mu.Lock()
	defer mu.Unlock()
	if len(seen) != 2 || !seen["Bearer the-first-token"] || !seen["Bearer the-second-token"] {
		t.Errorf("seen: %v", seen)
	}
}
