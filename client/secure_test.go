package client

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"log/slog"
	"math/big"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/stint-io/stint/limit"
)

// authority signs certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) *authority {
	a := &authority{t: t, pool: x509.NewCertPool()}
	c := a.sign(&x509.Certificate{IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign})
	a.cert, a.key = c.Leaf, c.PrivateKey.(*ecdsa.PrivateKey)
	a.pool.AddCert(a.cert)
	return a
}

// sign completes a certificate and signs it; the first one signs itself.
func (a *authority) sign(c *x509.Certificate) tls.Certificate {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber, c.Subject = big.NewInt(time.Now().UnixNano()), pkix.Name{CommonName: "test"}
	c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	parent, signer := a.cert, a.key
	if parent == nil {
		parent, signer = c, key
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, signer)
	if err != nil {
		a.t.Fatal(err)
	}
	leaf, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key, Leaf: leaf}
}

func (a *authority) server() tls.Certificate {
	return a.sign(&x509.Certificate{IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
}

func (a *authority) client() tls.Certificate {
	return a.sign(&x509.Certificate{ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
}

// dial runs a client of address until stop.
func dial(t *testing.T, address string, secured *tls.Config) (c *Client, stop func()) {
	t.Helper()
	c, err := New(Options{Address: address, TLS: secured, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	t.Cleanup(stop)
	return c, stop
}

// await polls until done.
func await(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(20 * time.Second)
	for !done() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("waited 20 s for %s", what)
		}
	}
}

// TestTLS: who trusts the coordinator's certificate, and shows one that it trusts where it
// asks for it, gets leases. Anybody else gets none, and a reason.
func TestTLS(t *testing.T) {
	ours, others := newAuthority(t), newAuthority(t)
	certificate := ours.server()
	for _, tt := range []struct {
		name   string
		mutual bool
		client *tls.Config
		fault  string // in the client's error; "" = it works
	}{
		{"TLS", false, &tls.Config{RootCAs: ours.pool}, ""},
		{"TLS of another authority", false, &tls.Config{RootCAs: others.pool}, "certificate"},
		{"TLS of another name", false, &tls.Config{RootCAs: ours.pool, ServerName: "stint.internal"}, "stint.internal"},
		{"plain text to TLS", false, nil, "rpc error"},
		{"mTLS", true, &tls.Config{RootCAs: ours.pool, Certificates: []tls.Certificate{ours.client()}}, ""},
		// With TLS 1.3 the client is done before it is refused, and may find a broken pipe.
		{"mTLS without a certificate", true, &tls.Config{RootCAs: ours.pool}, "rpc error"},
		{"mTLS with another's certificate", true, &tls.Config{RootCAs: ours.pool, Certificates: []tls.Certificate{others.client()}}, "rpc error"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			config := &tls.Config{Certificates: []tls.Certificate{certificate}}
			if tt.mutual {
				config.ClientAuth, config.ClientCAs = tls.RequireAndVerifyClientCert, ours.pool
			}
			address, stop := newRoom(1).listen(t, "127.0.0.1:0", grpc.Creds(credentials.NewTLS(config)))
			defer stop()
			c, leave := dial(t, address, tt.client)
			defer leave()
			l := openLimit(t, c, "m", LimitOptions{})
			if tt.fault == "" {
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
				defer cancel()
				if err := l.Wait(ctx); err != nil || !c.Connected() || c.Err() != nil {
					t.Errorf("Wait: %v; connected: %v; %v", err, c.Connected(), c.Err())
				}
				return
			}
			await(t, "the client to give a reason", func() bool { return c.Err() != nil })
			if err := c.Err(); !strings.Contains(err.Error(), tt.fault) {
				t.Errorf("the reason is %q, want something of %q", err, tt.fault)
			}
			if d, err := l.Take(t.Context(), limit.Request{}); err != nil || d.Allowed || d.Results[0].Reason != limit.ReasonStoreFailure {
				t.Errorf("Take = %+v, %v", d, err)
			}
		})
	}
}

// TestNothingIsLeft: when Run has returned, every goroutine that the client and gRPC
// started for it has ended, whatever state the connection was in.
func TestNothingIsLeft(t *testing.T) {
	await(t, "goroutines of other tests to end", settled())
	before := runtime.NumGoroutine()
	for _, way := range []string{"connected", "coordinator gone", "never connected"} {
		address, stop := newRoom(1).listen(t, "127.0.0.1:0")
		if way == "never connected" {
			stop()
		}
		c, leave := dial(t, address, nil)
		l := openLimit(t, c, "m", LimitOptions{})
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		waited := make(chan error, 1)
		if way == "never connected" {
			await(t, "a try to fail", func() bool { return c.Err() != nil })
			go func() { waited <- l.Wait(t.Context()) }()
		} else {
			if err := l.Wait(ctx); err != nil {
				t.Fatal(err)
			}
			waited <- ErrClosed
		}
		if way == "coordinator gone" {
			stop()
			await(t, "the client to notice", func() bool { return !c.Connected() })
		}
		leave()
		if err := <-waited; !errors.Is(err, ErrClosed) {
			t.Errorf("%s: a wait ended with %v", way, err)
		}
		cancel()
		stop()
	}
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(10 * time.Second)
	for after := runtime.NumGoroutine(); after > before; after = runtime.NumGoroutine() {
		select {
		case <-tick.C:
		case <-late:
			stacks := make([]byte, 1<<16)
			t.Fatalf("%d goroutines before, %d after:\n%s", before, after, stacks[:runtime.Stack(stacks, true)])
		}
	}
}

// settled returns a condition that holds when the number of goroutines stays the same.
func settled() func() bool {
	last, same := 0, 0
	return func() bool {
		if n := runtime.NumGoroutine(); n != last {
			last, same = n, 0
		} else {
			same++
		}
		return same >= 20
	}
}
