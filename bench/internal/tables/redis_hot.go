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

// pingFor is how long round trips are timed before each slice.
const pingFor = 30 * time.Millisecond

// RedisHot is one key behind one Redis, asked by 256 callers: mostly admitted,
// then mostly refused.
func RedisHot(cfg Config, rep *Report) (err error) {
	ctx := context.Background()
	server, err := redisserver.Start(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, server.Stop()) }()
	for _, v := range []struct {
		name, about string
		plan        contender.Plan
	}{
		{"admitted", "Every request is admitted. After each slice what is missing from the bucket was what had been admitted.", hotPlan},
		{"refused", fmt.Sprintf("The limit is %d/s: nearly all are refused. In no slice was more admitted than burst + rate × time.", refusedPlan.Count), refusedPlan},
	} {
		if err := redisHot(ctx, cfg, rep, server, v.name, v.about, v.plan); err != nil {
			return err
		}
	}
	return nil
}

func redisHot(ctx context.Context, cfg Config, rep *Report, server *redisserver.Server, name, about string, plan contender.Plan) (err error) {
	var all []*far
	defer func() { err = errors.Join(err, closeFar(all)) }()
	for _, c := range []remote.Contender{remote.Stint(), remote.Bare()} {
		f, err := openFar(server.Addr, c, plan, hotCallers)
		if err != nil {
			return err
		}
		all = append(all, f)
	}
	samples, err := measure.Interleave(cfg.Rounds, len(all), func(i int) (farSample, error) {
		return all[i].hot(ctx, server, cfg.Redis, name)
	})
	if err != nil {
		return err
	}
	for i, f := range all {
		f.samples = samples[i]
	}
	busy, err := pingUnderLoad(ctx, server, cfg, all[0], name)
	if err != nil {
		return err
	}
	writeRedisHot(cfg, rep, name, about, busy, all)
	return nil
}

// hot measures one slice on a key of its own, whose bucket is full at first.
func (f *far) hot(ctx context.Context, server *redisserver.Server, d time.Duration, name string) (farSample, error) {
	rtt, err := server.Ping(ctx, pingFor)
	if err != nil {
		return farSample{}, err
	}
	f.slices++
	key := fmt.Sprintf("%s-%d", name, f.slices)
	s, err := f.fly(ctx, server, d, func(int) string { return key })
	if err != nil {
		return s, err
	}
	s.rtt = rtt
	if l, ok := f.limiter.(remote.Timed); ok {
		s.call = l.RoundTrip()
	}
	return s, f.check(ctx, s, key)
}

// check compares what was admitted with what the plan grants and with what is
// left. A call that failed may have been charged: with errors there is no telling.
func (f *far) check(ctx context.Context, s farSample, key string) error {
	if s.Errors > 0 {
		return nil
	}
	refill := int64(s.Elapsed.Seconds()*float64(f.plan.Count)/f.plan.Period.Seconds()) + 1
	if f.plan == refusedPlan {
		if s.Yes < f.plan.Burst || s.Yes > f.plan.Burst+refill || s.Yes == s.Calls {
			return fmt.Errorf("bench: %s admitted %d of %d within %v, want from %d to %d", f.Name, s.Yes, s.Calls, s.Elapsed, f.plan.Burst, f.plan.Burst+refill)
		}
		return nil
	}
	a, err := f.callers[0](ctx, key)
	if err != nil {
		return fmt.Errorf("bench: %s: %w", f.Name, err)
	}
	// The slice and the request that asks, and one more unit of time for that.
	missing, want := f.plan.Burst-a.Remaining, s.Yes+1
	if s.Yes != s.Calls || missing > want || missing < want-refill-f.plan.Count {
		return fmt.Errorf("bench: %s admitted %d of %d, and %d are missing from the bucket", f.Name, s.Yes, s.Calls, missing)
	}
	return nil
}

// pingUnderLoad returns the mean round trip of a client of its own while f's
// callers ask.
func pingUnderLoad(ctx context.Context, server *redisserver.Server, cfg Config, f *far, name string) (time.Duration, error) {
	type pinged struct {
		rtt time.Duration
		err error
	}
	done := make(chan pinged, 1)
	go func() { // ends with the slice, and is waited for
		rtt, err := server.Ping(ctx, cfg.Redis/2)
		done <- pinged{rtt, err}
	}()
	key := name + "-pinged"
	_, err := f.fly(ctx, server, cfg.Redis, func(int) string { return key })
	p := <-done
	return p.rtt, errors.Join(err, p.err)
}

func writeRedisHot(cfg Config, rep *Report, name, about string, busy time.Duration, all []*far) {
	stint, bare := all[0], all[1]
	micro := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
	rtt := stint.of(func(s farSample) float64 { return micro(s.rtt) })
	calls := stint.of(func(s farSample) float64 { return float64(s.work.Scripts) / s.Elapsed.Seconds() })
	trips := stint.of(func(s farSample) float64 { return float64(s.work.Scripts) / s.Elapsed.Seconds() * s.rtt.Seconds() })
	took := stint.of(func(s farSample) float64 { return micro(s.call) })
	gap := "made no call"
	if n := calls.Median(); n > 0 {
		gap = fmt.Sprintf("made %.0f calls/s, one every %.0f µs, of %.0f decisions and %s µs each", n, 1e6/n, stint.perSecond().Median()/n, took.Format("%.0f"))
	}
	rep.Section("One hot key in Redis, "+name,
		fmt.Sprintf("%d requests in flight in one process, all for one key. %s", hotCallers, about),
		fmt.Sprintf("A PING alone took %s µs there and back, another client's under stint's load %.0f µs; stint %s.", rtt.Format("%.0f"), micro(busy), gap),
		farLegend(cfg))
	rep.Table(farHead(), [][]string{stint.row(stint), bare.row(stint)})
	rep.AtLeast("redis, one key, "+name+": stint / bare script", stint.perSecond().Over(bare.perSecond()).Median(), 5, " ×")
	rep.AtMost("redis, one key, "+name+": stint's calls per round trip", trips.Median(), 2, "")
	failed, _ := stint.errors()
	rep.AtMost("redis, one key, "+name+": stint's errors", float64(failed), 0, "")
}
