package tables

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"

	"google.golang.org/grpc/credentials"

	"github.com/stint-io/stint/bench/internal/process"
	"github.com/stint-io/stint/bench/internal/rlsload"
	"github.com/stint-io/stint/internal/testca"
)

// benchToken is that of the identity that asks by token.
const benchToken = "token-of-a-benchmark"

// TLS compares stint's rate limit service in plain text with itself by TLS, on kept connections: with a
// certificate on every listener, client certificates, and identities that are looked up at each request.
func TLS(cfg Config, rep *Report) (err error) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "stint-bench-")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	bin := filepath.Join(dir, "stint")
	if cfg.Binary != "" {
		bin = cfg.Binary
	} else if err := process.Build(cfg.Root, "./cmd/stint", bin); err != nil {
		return err
	}
	all, err := startSecured(ctx, dir, bin)
	defer func() {
		for _, c := range all {
			c.close()
		}
	}()
	if err != nil {
		return err
	}
	for _, c := range all {
		if err := probe(ctx, c.client); err != nil {
			return err
		}
	}
	requests := make([][]byte, users)
	for i := range requests {
		requests[i] = rlsload.Request("user", fmt.Sprintf("user-%d", i), false)
	}
	for round := -1; round < cfg.Pairs; round++ {
		for i := range all {
			c := all[(i+max(round, 0))%len(all)]
			if err := c.slice(ctx, requests, cfg.Service, round >= 0); err != nil {
				return fmt.Errorf("bench: %s: %w", c.name, err)
			}
		}
	}
	rep.Section("Rate limit service by TLS",
		fmt.Sprintf("`stint serve` three times: in plain text; by TLS on every listener, with client certificates and identities by them; by TLS with a token in each request. On the same %d cores as the load, %d requests in flight on %d kept connections.", runtime.NumCPU(), inFlight, connections),
		fmt.Sprintf("%d rounds of slices of %v, in turn, beginning with another one each time. Every answer was checked.", cfg.Pairs, cfg.Service))
	plain := all[0]
	var rows [][]string
	for _, c := range all {
		rows = append(rows, []string{
			c.name, c.perSecond.Format("%.0f"), c.cpu.Format("%.1f"), c.p50.Format("%.0f"), c.p99.Format("%.0f"),
			c.perSecond.Over(plain.perSecond).Format("%.3f"), c.cpu.Over(plain.cpu).Format("%.3f"),
		})
	}
	rep.Table([]string{"", "requests/s", "CPU per request, µs", "p50, µs", "p99, µs", "requests/s over plain text", "CPU over plain text"}, rows)
	for _, c := range all[1:] {
		rep.AtLeast("service: throughput "+c.name+" / plain text", c.perSecond.Over(plain.perSecond).Median(), 0.85, " ×")
	}
	return nil
}

// startSecured starts the services; the first has no security. They are to be closed even when it returns
// an error.
func startSecured(ctx context.Context, dir, bin string) (all []*contestant, err error) {
	ca := testca.New()
	cert, key := ca.Issue(testca.Names{Server: true}).Write(dir, "tls")
	testca.File(dir, "token", []byte(benchToken))
	auth := testca.File(dir, "auth.yaml", []byte("identities:\n"+
		"  - {name: edge, certificate: {uri: \"spiffe://shop/edge\"}, roles: [take]}\n"+
		"  - {name: gateway, token_file: token, roles: [take]}\n"))
	config := testca.File(dir, "limits.yaml", []byte(serviceLimits))
	secured := []string{"--tls-cert", cert, "--tls-key", key, "--tls-client-ca", testca.File(dir, "ca.crt", ca.PEM), "--auth", auth}
	for _, one := range []struct {
		name  string
		flags []string
		how   rlsload.Security
	}{
		{"plain text", nil, rlsload.Security{}},
		{"TLS, client certificates", secured, rlsload.Security{Transport: credentials.NewTLS(&tls.Config{
			RootCAs: ca.Pool(), ServerName: "localhost", Certificates: []tls.Certificate{ca.Issue(testca.Names{URI: "spiffe://shop/edge"}).TLS()},
		})}},
		{"TLS, tokens", secured, rlsload.Security{Transport: credentials.NewTLS(&tls.Config{RootCAs: ca.Pool(), ServerName: "localhost"}), Token: benchToken}},
	} {
		c := &contestant{name: one.name, security: one.how}
		all = append(all, c)
		if err := c.startStint(ctx, bin, config, "none", one.flags...); err != nil {
			return all, err
		}
	}
	return all, nil
}
