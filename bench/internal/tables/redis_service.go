package tables

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"sync/atomic"
	"time"

	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"

	"github.com/stint-io/stint/bench/internal/measure"
	"github.com/stint-io/stint/bench/internal/process"
	"github.com/stint-io/stint/bench/internal/redisserver"
	"github.com/stint-io/stint/bench/internal/rlsload"
)

// windowLimits is one file for both services, in envoyproxy/ratelimit's format.
// No window but the probe's is used up.
const windowLimits = `domain: bench
descriptors:
  - key: second
    rate_limit: {unit: second, requests_per_unit: 100000000}
  - key: minute
    rate_limit: {unit: minute, requests_per_unit: 100000000}
  - key: probe
    rate_limit: {unit: day, requests_per_unit: 200}
`

const (
	probeQuota  = 200
	windowUsers = 10_000
)

// workload is one kind of request, asked of every service.
type workload struct {
	name     string
	requests [][]byte
}

func workloads() []workload {
	var all []workload
	for _, unit := range []string{"second", "minute"} {
		for _, n := range []int{windowUsers, 1} {
			w := workload{name: fmt.Sprintf("per %s, %d keys", unit, n)}
			if n == 1 {
				w.name = fmt.Sprintf("per %s, one key", unit)
			}
			for i := range n {
				w.requests = append(w.requests, rlsload.Request(unit, fmt.Sprintf("user-%d", i), false))
			}
			all = append(all, w)
		}
	}
	return all
}

// served is a slice of load on one service.
type served struct {
	perSecond, cpu, p50, p99 float64 // CPU of the server per request, latencies, in microseconds
	redis, calls             float64 // CPU of Redis in microseconds and commands, per request
}

// RedisService compares stint's rate limit service with envoyproxy/ratelimit, both
// with the same Redis.
func RedisService(cfg Config, rep *Report) (err error) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "stint-bench-")
	if err != nil {
		return fmt.Errorf("bench: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	server, err := redisserver.Start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	services, versions, err := startServices(ctx, cfg, dir, server.Addr)
	defer func() {
		for _, s := range services {
			s.close()
		}
	}()
	if err != nil {
		return err
	}
	rep.Section("Rate limit service with Redis",
		fmt.Sprintf("`stint serve` and envoyproxy/ratelimit %s, both real processes built from source with grpc-go %s, given the same file in the latter's format and the same redis-server %s, all on the cores of the load.", versions.envoy, versions.grpc, server.Version),
		fmt.Sprintf("%d requests in flight on %d connections, one descriptor each. %d slices of %v of each service, in turn, for each kind of request.", inFlight, connections, cfg.Rounds, cfg.RedisService),
		fmt.Sprintf("envoyproxy/ratelimit has a pool of 10 connections to Redis unless told otherwise. Every answer was checked. Before, each admitted exactly %d of %d requests of one key under a limit of %d.", probeQuota, 2*probeQuota, probeQuota))
	var rows [][]string
	for _, w := range workloads() {
		samples, err := measure.Interleave(cfg.Rounds, len(services), func(i int) (served, error) {
			return services[i].serve(ctx, server, w, cfg.RedisService)
		})
		if err != nil {
			return err
		}
		rows = append(rows, compareServices(rep, w, services, samples)...)
	}
	rep.Table([]string{"", "requests/s", "stint / it", "server CPU, µs", "Redis CPU, µs", "commands", "p50, µs", "p99, µs"}, rows)
	return nil
}

// builtWith is what was compared.
type builtWith struct{ envoy, grpc string }

// startServices builds and starts stint, then envoyproxy/ratelimit with its
// default pool and with one connection for each request in flight. They are to be
// closed even when it returns an error.
func startServices(ctx context.Context, cfg Config, dir, redis string) (services []*contestant, versions builtWith, err error) {
	stintBin, envoyBin := filepath.Join(dir, "stint"), filepath.Join(dir, "service_cmd")
	if versions, err = buildServices(cfg, stintBin, envoyBin); err != nil {
		return nil, versions, err
	}
	if cfg.Binary != "" {
		stintBin = cfg.Binary
	}
	config := filepath.Join(dir, "ratelimit", "config", "bench.yaml")
	if err := os.MkdirAll(filepath.Dir(config), 0o700); err != nil {
		return nil, versions, fmt.Errorf("bench: %w", err)
	}
	if err := os.WriteFile(config, []byte(windowLimits), 0o600); err != nil {
		return nil, versions, fmt.Errorf("bench: %w", err)
	}
	stint, err := startStint(ctx, stintBin, config, redis)
	services = append(services, stint)
	for _, pool := range []string{"10", "64"} {
		if err != nil {
			return services, versions, err
		}
		var envoy *contestant
		envoy, err = startEnvoy(ctx, envoyBin, dir, redis, pool)
		services = append(services, envoy)
	}
	for _, s := range services {
		if err == nil {
			err = probeQuotaOf(ctx, s)
		}
	}
	return services, versions, err
}

func buildServices(cfg Config, stint, envoy string) (v builtWith, err error) {
	const pkg = "github.com/envoyproxy/ratelimit/src/service_cmd"
	if err := process.Build(filepath.Join(cfg.Root, "bench", "envoyratelimit"), pkg, envoy); err != nil {
		return v, err
	}
	if cfg.Binary == "" {
		err = process.Build(cfg.Root, "./cmd/stint", stint)
	} else {
		stint = cfg.Binary
	}
	if err != nil {
		return v, err
	}
	if v.envoy, err = process.Version(envoy, "github.com/envoyproxy/ratelimit"); err != nil {
		return v, err
	}
	if v.grpc, err = process.GRPCVersion(envoy); err != nil {
		return v, err
	}
	ours, err := process.GRPCVersion(stint)
	if err == nil && ours != v.grpc {
		err = fmt.Errorf("bench: envoyproxy/ratelimit has grpc-go %s, stint %s: not the same work", v.grpc, ours)
	}
	return v, err
}

func startStint(ctx context.Context, bin, config, redis string) (*contestant, error) {
	c := &contestant{name: "stint serve"}
	var addr [3]string
	for i := range addr {
		var err error
		if addr[i], err = process.FreeAddr(); err != nil {
			return c, err
		}
	}
	// The rival waits for Redis for 10 s. With less than a second a machine with
	// other work on it would show as errors instead of in the latency.
	err := c.start(ctx, addr[0], nil, bin, "serve", "--config", config, "--store", "redis://"+redis+"?timeout=1s",
		"--grpc", addr[0], "--http", addr[1], "--admin", addr[2])
	if err != nil {
		return c, err
	}
	return c, process.AwaitOK(ctx, "http://"+addr[2]+"/readyz")
}

// startEnvoy starts envoyproxy/ratelimit. All but the addresses, the pool and the
// sending of statistics to nobody is as it comes.
func startEnvoy(ctx context.Context, bin, dir, redis, pool string) (*contestant, error) {
	c := &contestant{name: "envoyproxy/ratelimit, pool of " + pool}
	env := []string{
		"RUNTIME_ROOT=" + dir, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false",
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + redis, "REDIS_POOL_SIZE=" + pool, "USE_STATSD=false", "LOG_LEVEL=error",
	}
	var serving string
	for _, prefix := range []string{"", "DEBUG_", "GRPC_"} {
		addr, err := process.FreeAddr()
		if err != nil {
			return c, err
		}
		host, port, err := net.SplitHostPort(addr)
		if err != nil {
			return c, fmt.Errorf("bench: %w", err)
		}
		env = append(env, prefix+"HOST="+host, prefix+"PORT="+port)
		serving = addr
	}
	return c, c.start(ctx, serving, env, bin)
}

// probeQuotaOf shows that a service limits: of twice the quota of one key, asked
// for at once, it admits exactly the quota.
func probeQuotaOf(ctx context.Context, c *contestant) error {
	requests := make([][]byte, 2*probeQuota)
	for i := range requests {
		requests[i] = rlsload.Request("probe", c.name, false)
	}
	var admitted atomic.Int64
	err := c.client.Each(ctx, requests, inFlight, func(_ int, a rlsload.Answer) {
		if a.Code == rls.RateLimitResponse_OK {
			admitted.Add(1)
		}
	})
	if err == nil && admitted.Load() != probeQuota {
		err = fmt.Errorf("bench: %s admitted %d of %d requests under a limit of %d", c.name, admitted.Load(), len(requests), probeQuota)
	}
	return err
}

// serve loads the service for d and reads what that took of it and of Redis.
func (c *contestant) serve(ctx context.Context, server *redisserver.Server, w workload, d time.Duration) (s served, err error) {
	before, err := server.Work(ctx)
	if err != nil {
		return s, err
	}
	used, err := c.process.CPU()
	if err != nil {
		return s, err
	}
	r, err := c.client.Run(ctx, w.requests, inFlight, d)
	if err != nil {
		return s, fmt.Errorf("bench: %s, %s: %w", c.name, w.name, err)
	}
	after, err := c.process.CPU()
	if err != nil {
		return s, err
	}
	work, err := server.Work(ctx)
	if err != nil {
		return s, err
	}
	work = work.Since(before)
	n := float64(r.Answers)
	micro := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	s = served{
		perSecond: r.PerSecond(), cpu: micro(after-used) / n,
		p50: micro(r.Latency.Quantile(0.5)), p99: micro(r.Latency.Quantile(0.99)),
		redis: micro(work.CPU) / n, calls: float64(work.Commands) / n,
	}
	if s.calls == 0 {
		err = fmt.Errorf("bench: %s answered without asking Redis: not the same work", c.name)
	}
	return s, err
}

// compareServices returns the rows of one workload and records its goals, which
// are those against the quicker of the pools. The first service is stint.
func compareServices(rep *Report, w workload, services []*contestant, samples [][]served) (rows [][]string) {
	of := func(i int, figure func(served) float64) measure.Series { return measure.Figures(samples[i], figure) }
	rate := func(s served) float64 { return s.perSecond }
	p99 := func(s served) float64 { return s.p99 }
	fastest := 1
	for i, c := range services {
		if i > 0 && of(i, rate).Median() > of(fastest, rate).Median() {
			fastest = i
		}
		rows = append(rows, []string{
			w.name + ": " + c.name, of(i, rate).Format("%.0f"),
			fmt.Sprintf("%.2f", of(0, rate).Over(of(i, rate)).Median()),
			of(i, func(s served) float64 { return s.cpu }).Format("%.1f"),
			of(i, func(s served) float64 { return s.redis }).Format("%.1f"),
			fmt.Sprintf("%.3f", of(i, func(s served) float64 { return s.calls }).Median()),
			of(i, func(s served) float64 { return s.p50 }).Format("%.0f"), of(i, p99).Format("%.0f"),
		})
	}
	goal := "service with redis, " + w.name + ": stint / envoyproxy/ratelimit, "
	rep.AtLeast(goal+"requests/s", of(0, rate).Over(of(fastest, rate)).Median(), 1.5, " ×")
	rep.AtMost(goal+"p99", of(0, p99).Over(of(fastest, p99)).Median(), 1, " ×")
	return rows
}
