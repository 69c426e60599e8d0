package tables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/stint-io/stint/bench/internal/measure"
	"github.com/stint-io/stint/bench/internal/process"
	"github.com/stint-io/stint/bench/internal/rlsload"
)

// serviceLimits is the configuration of the service under load. The bucket is
// never used up and refills too slowly to matter, so that what is missing from it
// afterwards is what was asked for.
const serviceLimits = `limits:
  - name: per-user
    key: [user]
    rate: 1/hour
    burst: 10000
  - name: probe
    key: [probe]
    rate: 1/hour
    burst: 2
`

const (
	serviceBurst = 10_000
	users        = 100_000
	inFlight     = 64
	connections  = 8
)

// contestant is one server under load.
type contestant struct {
	name    string
	process *process.Process
	client  *rlsload.Client

	security rlsload.Security

	answers   int64
	touched   int64 // users that were met
	perSecond measure.Series
	cpu       measure.Series // microseconds per request
	p50, p99  measure.Series // microseconds
}

func (c *contestant) close() {
	if c.client != nil {
		c.client.Close()
	}
	if c.process != nil {
		c.process.Stop()
	}
}

// Service compares stint's rate limit service, with counters in memory and with counters that are persisted, with a server
// that always says OK.
func Service(cfg Config, rep *Report) (err error) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "stint-bench-")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	noopBin, stintBin := filepath.Join(dir, "noop"), filepath.Join(dir, "stint")
	if cfg.Binary != "" {
		stintBin = cfg.Binary
	}
	version, err := build(cfg, noopBin, stintBin)
	if err != nil {
		return err
	}
	all, err := startContestants(ctx, dir, noopBin, stintBin)
	defer func() {
		for _, c := range all {
			c.close()
		}
	}()
	if err != nil {
		return err
	}
	for _, c := range all[1:] {
		if err := probe(ctx, c.client); err != nil {
			return err
		}
	}
	requests, peeks := make([][]byte, users), make([][]byte, users)
	for i := range requests {
		user := fmt.Sprintf("user-%d", i)
		requests[i], peeks[i] = rlsload.Request("user", user, false), rlsload.Request("user", user, true)
	}
	for round := -1; round < cfg.Pairs; round++ {
		for i := range all {
			c := all[(i+round+len(all))%len(all)]
			if err := c.slice(ctx, requests, cfg.Service, round >= 0); err != nil {
				return fmt.Errorf("bench: %s: %w", c.name, err)
			}
		}
	}
	for _, c := range all[1:] {
		if c.touched, err = audit(ctx, c, peeks); err != nil {
			return err
		}
	}
	writeService(cfg, rep, version, all)
	return nil
}

// build builds the servers, stint's unless there is one already, and returns the
// version of grpc-go, which must be the same in both.
func build(cfg Config, noop, stint string) (version string, err error) {
	if err := process.Build(filepath.Join(cfg.Root, "bench"), "./noop", noop); err != nil {
		return "", err
	}
	if cfg.Binary == "" {
		if err := process.Build(cfg.Root, "./cmd/stint", stint); err != nil {
			return "", err
		}
	}
	version, err = process.GRPCVersion(noop)
	if err != nil {
		return "", err
	}
	ours, err := process.GRPCVersion(stint)
	if err == nil && ours != version {
		err = fmt.Errorf("bench: the always-OK server has grpc-go %s, stint %s: not the same work", version, ours)
	}
	return version, err
}

// startContestants starts the server that always says OK, stint with counters in memory and stint as it is by default, which
// persists those of serviceLimits. They are to be closed even when it returns an error.
func startContestants(ctx context.Context, dir, noopBin, stintBin string) (all []*contestant, err error) {
	noop := &contestant{name: "always OK"}
	all = append(all, noop)
	addr, err := process.FreeAddr()
	if err != nil {
		return all, err
	}
	if err := noop.start(ctx, addr, nil, noopBin, "-grpc", addr); err != nil {
		return all, err
	}
	config := filepath.Join(dir, "limits.yaml")
	if err := os.WriteFile(config, []byte(serviceLimits), 0o600); err != nil {
		return all, fmt.Errorf("bench: %w", err)
	}
	for _, one := range []struct{ name, state string }{
		{"stint serve, in memory", "none"},
		{"stint serve, persisted", filepath.Join(dir, "state")},
	} {
		c := &contestant{name: one.name}
		all = append(all, c)
		if err := c.startStint(ctx, stintBin, config, one.state); err != nil {
			return all, err
		}
	}
	return all, nil
}

// startStint starts stint with limits and a state directory.
func (c *contestant) startStint(ctx context.Context, bin, config, state string, flags ...string) (err error) {
	var addr [3]string
	for i := range addr {
		if addr[i], err = process.FreeAddr(); err != nil {
			return err
		}
	}
	args := []string{"serve", "--config", config, "--state-dir", state, "--grpc", addr[0], "--http", addr[1], "--admin", addr[2]}
	return c.start(ctx, addr[0], nil, bin, append(args, flags...)...)
}

func (c *contestant) start(ctx context.Context, addr string, env []string, bin string, args ...string) (err error) {
	if c.process, err = process.Start(env, bin, args...); err != nil {
		return err
	}
	if c.client, err = rlsload.Dial(addr, connections, c.security); err != nil {
		return err
	}
	return c.client.Ready(ctx, c.process, rlsload.Request("none", "none", true))
}

// probe shows that the service limits: the third request of two is refused.
func probe(ctx context.Context, c *rlsload.Client) error {
	want := []rls.RateLimitResponse_Code{rls.RateLimitResponse_OK, rls.RateLimitResponse_OK, rls.RateLimitResponse_OVER_LIMIT}
	for i, code := range want {
		a, _, err := c.Ask(ctx, i, rlsload.Request("probe", "p", false), nil)
		if err != nil {
			return err
		}
		if a.Code != code {
			return fmt.Errorf("bench: stint answered request %d of a limit of 2 with %v, want %v", i+1, a.Code, code)
		}
	}
	return nil
}

// slice loads the server for d. Without record it only warms up.
func (c *contestant) slice(ctx context.Context, requests [][]byte, d time.Duration, record bool) error {
	before, err := c.process.CPU()
	if err != nil {
		return err
	}
	r, err := c.client.Run(ctx, requests, inFlight, d)
	if err != nil {
		return err
	}
	after, err := c.process.CPU()
	if err != nil {
		return err
	}
	c.answers += r.Answers
	if record {
		c.perSecond = append(c.perSecond, r.PerSecond())
		c.cpu = append(c.cpu, float64((after-before).Microseconds())/float64(r.Answers))
		c.p50 = append(c.p50, float64(r.Latency.Quantile(0.5).Microseconds()))
		c.p99 = append(c.p99, float64(r.Latency.Quantile(0.99).Microseconds()))
	}
	return nil
}

// audit peeks at every user's bucket: what is missing from all together must be
// what was answered. It returns how many users were met.
func audit(ctx context.Context, stint *contestant, peeks [][]byte) (touched int64, err error) {
	var missing, met atomic.Int64
	err = stint.client.Each(ctx, peeks, inFlight, func(_ int, a rlsload.Answer) {
		if used := serviceBurst - int64(a.Remaining); used > 0 {
			missing.Add(used)
			met.Add(1)
		}
	})
	if err != nil {
		return 0, fmt.Errorf("bench: %w", err)
	}
	if missing.Load() != stint.answers {
		return 0, fmt.Errorf("bench: stint answered %d requests and its counters hold %d", stint.answers, missing.Load())
	}
	return met.Load(), nil
}

func writeService(cfg Config, rep *Report, version string, all []*contestant) {
	noop, memory, persisted := all[0], all[1], all[2]
	rep.Section("Rate limit service over gRPC",
		fmt.Sprintf("`stint serve` against a server whose ShouldRateLimit always says OK, all real processes with grpc-go %s, on the same %d cores as the load.", version, runtime.NumCPU()),
		fmt.Sprintf("%d requests in flight on %d connections, one descriptor each, random among %d users, one token bucket per user, whose counters are in memory or persisted within a second.", inFlight, connections, users),
		fmt.Sprintf("%d rounds of slices of %v, in turn. CPU is the server process's own.", cfg.Pairs, cfg.Service),
		fmt.Sprintf("Every answer was checked. Afterwards stint's counters held exactly the requests it had answered, %d in memory and %d persisted, over %d and %d users.", memory.answers, persisted.answers, memory.touched, persisted.touched))
	var rows [][]string
	for _, c := range all {
		rows = append(rows, []string{c.name, c.perSecond.Format("%.0f"), c.cpu.Format("%.1f"), c.p50.Format("%.0f"), c.p99.Format("%.0f")})
	}
	ratio := func(a, b *contestant) (throughput, cpu float64) {
		t, c := a.perSecond.Over(b.perSecond), a.cpu.Over(b.cpu)
		rows = append(rows, []string{
			a.name + " / " + b.name, t.Format("%.3f"), c.Format("%.3f"), a.p50.Over(b.p50).Format("%.2f"), a.p99.Over(b.p99).Format("%.2f"),
		})
		return t.Median(), c.Median()
	}
	throughput, cpu := ratio(persisted, noop)
	ratio(memory, noop)
	kept, cost := ratio(persisted, memory)
	rep.Table([]string{"", "requests/s", "CPU per request, µs", "p50, µs", "p99, µs"}, rows)
	rep.AtLeast("service: throughput / always OK", throughput, 0.90, " ×")
	rep.AtMost("service: CPU per request / always OK", cpu, 1.15, " ×")
	rep.AtLeast("service: throughput, persisted / in memory", kept, 0.95, " ×")
	rep.AtMost("service: CPU per request, persisted / in memory", cost, 1.1, " ×")
}
