package outgoing

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

func guard(t testing.TB, p Policy) *Guard {
	t.Helper()
	g, err := New(p)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// TestStorm: a hundred goroutines send to a few servers that do whatever they like, under a limit of
// one's own that refuses, fails and grants permits. Each attempt is counted once, no permit is lost, and
// at the end no throttle believes that anything is in flight.
func TestStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := &moody{}
		g := guard(t, Policy{Limit: own, Retry: Retry{Reserve: 100}, MaxHosts: 3})
		var running sync.WaitGroup
		var tries atomic.Int64
		for seed := range seeding.Draw(t, 100) {
			r := rand.New(rand.NewPCG(seed, 3))
			running.Go(func() {
				for range 200 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.Int64N(int64(time.Second))))
					c := Call{Host: fmt.Sprint("host", r.IntN(3)), Scope: "/", Criticality: Criticality(r.IntN(5))}
					a, err := g.Do(ctx, c, func(int) Result {
						tries.Add(1)
						_ = sleep(ctx, time.Duration(r.Int64N(int64(50*time.Millisecond))))
						res := Result{Outcome: Outcome(r.IntN(3)), Again: r.IntN(2) == 0}
						if r.IntN(4) == 0 {
							res.Standing = Standing{Wait: true, RetryAfter: time.Duration(r.Int64N(int64(200 * time.Millisecond)))}
						}
						return res
					})
					if err == nil {
						a.Release()
						a.Release()
						a.End(Accepted, Standing{}) // the first time counted
					}
					cancel()
				}
			})
		}
		running.Wait()
		s := g.Stats()
		if s.Sent != tries.Load() || s.Sent != s.Accepted+s.Refused+s.Dropped || s.Retries == 0 || s.Held == 0 || s.Throttled == 0 || s.Limited == 0 {
			t.Errorf("%d tries: %+v, want each counted once, and some of each kind", tries.Load(), s)
		}
		if held := own.held.Load(); held != 0 {
			t.Errorf("%d permits are lost", held)
		}
		own.calm.Store(true)
		time.Sleep(time.Hour) // everything is forgotten; a refusal, and there are 9 to spare
		for host := range 3 {
			c := Call{Host: fmt.Sprint("host", host), Criticality: Sheddable}
			for n := range 10 {
				a, err := g.Begin(t.Context(), c)
				if err != nil {
					t.Fatalf("host %d, attempt %d: %v, want none in flight", host, n, err)
				}
				a.Release()
				if n == 0 {
					a.End(Refused, Standing{})
				} else {
					defer a.End(Dropped, Standing{})
				}
			}
		}
	})
}

// moody is a limit that refuses, fails and grants permits as it likes.
type moody struct {
	held atomic.Int64
	calm atomic.Bool
}

func (m *moody) Take(context.Context, limit.Request) (limit.Decision, error) {
	switch n := rand.IntN(20); {
	case m.calm.Load() || n > 2:
		m.held.Add(1)
		return limit.Decision{Allowed: true, Permit: 1}, nil
	case n == 0:
		return limit.Decision{}, errors.New("the store is away")
	case n == 1:
		m.held.Add(1)
		return limit.Decision{Allowed: true, Permit: 1, Delay: time.Duration(rand.Int64N(int64(time.Second)))}, nil
	default:
		return limit.Decision{Results: []limit.Result{{Limit: "moody", Verdict: limit.Verdict{RetryAfter: time.Second}}}}, nil
	}
}

func (m *moody) Finish(context.Context, limit.Request, uint64) error {
	m.held.Add(-1)
	return nil
}

// TestPanic: an attempt that panics is ended, and its permit is free.
func TestPanic(t *testing.T) {
	own := &moody{}
	own.calm.Store(true)
	g := guard(t, Policy{Limit: own})
	func() {
		defer func() { _ = recover() }()
		_, _ = g.Do(t.Context(), Call{Host: "a"}, func(int) Result { panic("the transport has a fault") })
	}()
	if s := g.Stats(); s.Sent != 1 || s.Dropped != 1 || own.held.Load() != 0 {
		t.Errorf("%+v, %d permits held", s, own.held.Load())
	}
}

// TestHostsAreBounded: a flood of names does not grow the table, and does not push out a server that
// has asked to wait.
func TestHostsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := guard(t, Policy{MaxHosts: 50})
		send := func(host string, s Standing) error {
			a, err := g.Begin(t.Context(), Call{Host: host})
			if err == nil {
				a.End(Refused, s)
			}
			return err
		}
		if err := send("kept", Standing{Wait: true, RetryAfter: 5 * time.Minute}); err != nil {
			t.Fatal(err)
		}
		for i := range 10_000 {
			if err := send(fmt.Sprint("flood", i), Standing{}); err != nil {
				t.Fatal(err)
			}
			time.Sleep(10 * time.Millisecond)
		}
		var r *Refusal
		if err := send("KEPT", Standing{}); !errors.As(err, &r) || r.Cause != Held {
			t.Errorf("%v, want the hold that is in force", err)
		}
		if n := g.Stats().Hosts; n > 50 {
			t.Errorf("%d servers are remembered, want at most 50", n)
		}
	})
}

// TestLimitThatFails: the error of a limit that cannot decide is the caller's, and nothing is sent.
func TestLimitThatFails(t *testing.T) {
	away := errors.New("the store is away")
	g := guard(t, Policy{Limit: failing{away}})
	if a, err := g.Do(t.Context(), Call{Host: "a"}, func(int) Result { t.Error("it was sent"); return Result{} }); !errors.Is(err, away) || a != nil {
		t.Errorf("%v, %v, want the error", a, err)
	}
}

type failing struct{ err error }

func (f failing) Take(context.Context, limit.Request) (limit.Decision, error) {
	return limit.Decision{}, f.err
}

// TestHooks: each refusal of our own is a Decision that names what refused.
func TestHooks(t *testing.T) {
	var names []string
	g := guard(t, Policy{Hooks: limit.Hooks{OnDecision: func(_ context.Context, d *limit.Decision) {
		names = append(names, d.Refused().Limit+" "+d.Refused().Reason.String())
	}}})
	for range 12 {
		if a, err := g.Begin(t.Context(), Call{Host: "throttled"}); err == nil {
			a.End(Refused, Standing{})
		}
	}
	a, _ := g.Begin(t.Context(), Call{Host: "held"})
	a.End(Refused, Standing{Wait: true, RetryAfter: time.Minute})
	_, err := g.Begin(t.Context(), Call{Host: "held"})
	if got, want := fmt.Sprint(names), "[client-throttle suppressed client-throttle suppressed retry-after rate_exceeded]"; got != want {
		t.Errorf("decisions %s, want %s (%v)", got, want, err)
	}
}

func BenchmarkDo(b *testing.B) {
	g := guard(b, Policy{})
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			a, err := g.Do(b.Context(), Call{Host: "a", Scope: "/"}, func(int) Result { return Result{} })
			if err != nil {
				b.Error(err)
				return
			}
			a.Release()
		}
	})
}
