package tables

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stint-io/stint/bench/internal/contender"
	"github.com/stint-io/stint/bench/internal/measure"
	"github.com/stint-io/stint/bench/internal/redisserver"
	"github.com/stint-io/stint/bench/internal/remote"
)

// The plans of the tables with Redis. No key is used up in any but the last.
var (
	spreadPlan  = contender.Plan{Count: 1, Period: time.Minute, Burst: 10_000}
	hotPlan     = contender.Plan{Count: 10, Period: time.Second, Burst: 10_000_000}
	refusedPlan = contender.Plan{Count: 100, Period: time.Second, Burst: 100}
)

// hotCallers ask for one key.
const hotCallers = 256

// far is one contender connected to Redis.
type far struct {
	remote.Contender
	plan    contender.Plan
	limiter remote.Limiter
	callers []remote.Caller
	slices  int // so far, each of the hot ones on a key of its own
	samples []farSample
}

// farSample is one slice: what the callers got and what that took in Redis.
type farSample struct {
	*measure.Flight
	work redisserver.Work
	rtt  time.Duration // of a PING on an idle server, right before
	call time.Duration // what the contender's calls took, where it knows
}

func openFar(addr string, c remote.Contender, p contender.Plan, callers int) (*far, error) {
	l, err := c.New(addr, p)
	if err != nil {
		return nil, fmt.Errorf("bench: %s: %w", c.Name, err)
	}
	f := &far{Contender: c, plan: p, limiter: l}
	for range callers {
		f.callers = append(f.callers, l.Caller())
	}
	return f, nil
}

func closeFar(all []*far) (err error) {
	for _, f := range all {
		err = errors.Join(err, f.limiter.Close())
	}
	return err
}

// fly measures one slice, and the work of the server meanwhile.
func (f *far) fly(ctx context.Context, s *redisserver.Server, d time.Duration, key func(caller int) string) (farSample, error) {
	before, err := s.Work(ctx)
	if err != nil {
		return farSample{}, err
	}
	flight, err := measure.Fly(len(f.callers), d, func(c int) (bool, error) {
		a, err := f.callers[c](ctx, key(c))
		return a.Allowed, err
	})
	if err != nil {
		return farSample{}, err
	}
	after, err := s.Work(ctx)
	if err == nil && flight.Errors == flight.Calls {
		err = fmt.Errorf("bench: %s answered only errors: %w", f.Name, flight.First)
	}
	return farSample{Flight: flight, work: after.Since(before)}, err
}

// of extracts a figure of every slice.
func (f *far) of(figure func(farSample) float64) measure.Series {
	return measure.Figures(f.samples, figure)
}

func (f *far) perSecond() measure.Series {
	return f.of(func(s farSample) float64 { return s.PerSecond() })
}

func (f *far) quantile(q float64) measure.Series {
	return f.of(func(s farSample) float64 { return float64(s.Latency.Quantile(q).Nanoseconds()) / 1000 })
}

func (f *far) errors() (failed, calls int64) {
	for _, s := range f.samples {
		failed += s.Errors
		calls += s.Calls
	}
	return failed, calls
}

// perCall is a figure divided by the calls of its slice.
func (f *far) perCall(figure func(farSample) float64) measure.Series {
	return f.of(func(s farSample) float64 { return figure(s) / float64(s.Calls) })
}

// row is what all tables with Redis say of a contender.
func (f *far) row(stint *far) []string {
	failed, calls := f.errors()
	micro := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	return []string{
		f.Name, f.perSecond().Format("%.0f"), fmt.Sprintf("%.2f", stint.perSecond().Over(f.perSecond()).Median()),
		f.quantile(0.5).Format("%.0f"), f.quantile(0.99).Format("%.0f"),
		fmt.Sprintf("%d of %d", failed, calls),
		fmt.Sprintf("%.1f", f.perCall(func(s farSample) float64 { return float64(s.Allocs) }).Median()),
		fmt.Sprintf("%.2f", f.perCall(func(s farSample) float64 { return micro(s.CPU) }).Median()),
		fmt.Sprintf("%.2f", f.perCall(func(s farSample) float64 { return micro(s.work.CPU) }).Median()),
		fmt.Sprintf("%.3f", f.perCall(func(s farSample) float64 { return float64(s.work.Scripts) }).Median()),
		fmt.Sprintf("%.3f", f.perCall(func(s farSample) float64 { return float64(s.work.Commands) }).Median()),
	}
}

// farHead is the head of these rows.
func farHead() []string {
	return []string{
		"", "decisions/s", "stint / it", "p50, µs", "p99, µs", "errors", "allocs",
		"own CPU, µs", "Redis CPU, µs", "scripts", "commands",
	}
}

// farLegend says what the columns are and how long was measured.
func farLegend(cfg Config) string {
	return fmt.Sprintf("%d slices of %v each, in turn. The last five columns are per decision; commands count scripts and what they call, "+
		"own CPU is that of the callers and the client. Redis runs without persistence on the same cores.", cfg.Rounds, cfg.Redis)
}

// RedisKeys is many keys behind one Redis, asked by 64 callers.
func RedisKeys(cfg Config, rep *Report) (err error) {
	ctx := context.Background()
	server, err := redisserver.Start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	var all []*far
	defer func() { err = errors.Join(err, closeFar(all)) }()
	keys := contender.NewKeys(cfg.RedisKeys)
	walks := make([]*contender.Walk, inFlight)
	for w := range walks {
		walks[w] = contender.NewWalk(keys, uint64(w))
	}
	for _, c := range append([]remote.Contender{remote.Stint(), remote.Bare()}, remote.Rivals()...) {
		f, err := openFar(server.Addr, c, spreadPlan, inFlight)
		if err != nil {
			return err
		}
		all = append(all, f)
		if err := f.fill(ctx, keys); err != nil {
			return err
		}
	}
	samples, err := measure.Interleave(cfg.Rounds, len(all), func(i int) (farSample, error) {
		s, err := all[i].fly(ctx, server, cfg.Redis, func(c int) string { return walks[c].Next() })
		if err == nil && s.Yes != s.Calls-s.Errors {
			err = fmt.Errorf("bench: %s admitted %d of %d on keys that are not used up: the answers are wrong, so is the time", all[i].Name, s.Yes, s.Calls-s.Errors)
		}
		return s, err
	})
	if err != nil {
		return err
	}
	for i, f := range all {
		f.samples = samples[i]
	}
	writeRedisKeys(cfg, rep, server, all)
	return nil
}

// fill takes once for every key.
func (f *far) fill(ctx context.Context, keys *contender.Keys) error {
	failed := make(chan error, len(f.callers))
	for w, call := range f.callers {
		go func() { // ends after its share of the keys, which is waited for
			for i := w; i < keys.Len(); i += len(f.callers) {
				if a, err := call(ctx, keys.At(i)); err != nil || !a.Allowed {
					failed <- errors.Join(err, fmt.Errorf("bench: %s did not admit the first request of key %d", f.Name, i))
					return
				}
			}
			failed <- nil
		}()
	}
	var all error
	for range f.callers {
		all = errors.Join(all, <-failed)
	}
	return all
}

func writeRedisKeys(cfg Config, rep *Report, server *redisserver.Server, all []*far) {
	rep.Section(fmt.Sprintf("%d keys in Redis", cfg.RedisKeys),
		fmt.Sprintf("%d requests in flight in one process, uniformly random keys that were all there before, a limit that is never reached; redis-server %s.", inFlight, server.Version),
		"The bare script decides one request by integer GCRA, through the client that stint uses.",
		fmt.Sprintf("The rivals have a pool of %d connections. %s", remote.Connections, farLegend(cfg)))
	stint, bare := all[0], all[1]
	var rows [][]string
	for _, f := range all {
		rows = append(rows, f.row(stint))
	}
	rep.Table(farHead(), rows)
	over := func(f *far) float64 { return stint.perSecond().Over(f.perSecond()).Median() }
	rep.AtLeast("redis, many keys: stint / bare script", over(bare), 0.90, " ×")
	for _, f := range all[2:] {
		rep.AtLeast("redis, many keys: stint / "+f.Name, over(f), 1.4, " ×")
	}
	failed, _ := stint.errors()
	rep.AtMost("redis, many keys: stint's errors", float64(failed), 0, "")
}
