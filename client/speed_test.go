package client

import (
	"context"
	"log/slog"
	"math"
	"runtime"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/internal/waitline"
	"github.com/stint-io/stint/limit"
)

// leased returns a Limiter that has a lease and no network.
func leased(tb testing.TB, rate fixed.Amount, depth int64) *Limiter {
	tb.Helper()
	c, err := New(Options{Address: "127.0.0.1:1", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		tb.Fatal(err)
	}
	l, err := c.Limit("m", LimitOptions{})
	if err != nil {
		tb.Fatal(err)
	}
	c.lanes()[0].agent.Deadline().Store(int64(time.Hour))
	l.lease.Update(c.now(), rate, fixed.Whole(depth), fixed.Whole(depth))
	l.lease.state.Store(&agent.State{Known: true, Saturated: true, Limit: lease.Terms{Rate: rate, Burst: fixed.Whole(depth)}})
	return l
}

func TestAllowAllocatesNothing(t *testing.T) {
	l := leased(t, 1000*fixed.Token, 100)
	if n := testing.AllocsPerRun(1000, func() { l.Allow() }); n != 0 {
		t.Errorf("%v allocations per Allow, want 0", n)
	}
	if n := testing.AllocsPerRun(1000, func() { l.AllowN(time.Now(), 2) }); n != 0 {
		t.Errorf("%v allocations per AllowN, want 0", n)
	}
}

// TestTakeAllocatesLikeALocalLimiter: the answer, and nothing else.
func TestTakeAllocatesLikeALocalLimiter(t *testing.T) {
	local, err := limit.NewLimiter(limit.Policy{Rate: limit.PerSecond(1000), Burst: 100})
	if err != nil {
		t.Fatal(err)
	}
	l := leased(t, 1000*fixed.Token, 100)
	k, err := l.lease.client.Keyed("k", []string{"account", "path"}, KeyedOptions{})
	if err != nil {
		t.Fatal(err)
	}
	req := limit.Request{Attributes: []limit.Attribute{{Name: "account", Value: "acme"}, {Name: "path", Value: "/v1/messages/send"}}}
	e, err := k.entry(mustKey(t, k, req))
	if err != nil {
		t.Fatal(err)
	}
	e.Done()
	e.Value.limiter.lease.Update(l.lease.client.now(), 1000*fixed.Token, fixed.Whole(100), fixed.Whole(100))
	e.Value.limiter.lease.state.Store(l.lease.state.Load())
	allowed, refused := 0, 0
	allocations := func(taker limit.Taker) float64 {
		return testing.AllocsPerRun(1000, func() {
			d, err := taker.Take(t.Context(), req)
			if err != nil || len(d.Results) != 1 {
				t.Fatalf("%+v, %v", d, err)
			}
			if d.Allowed {
				allowed++
			} else {
				refused++
			}
		})
	}
	want := allocations(local)
	for name, taker := range map[string]limit.Taker{"Limiter": l, "Keyed": k} {
		allowed, refused = 0, 0
		if got := allocations(taker); got > want || allowed == 0 || refused == 0 {
			t.Errorf("%s: %v allocations per Take, want at most %v; %d allowed and %d refused", name, got, want, allowed, refused)
		}
	}
	t.Logf("%v allocations per Take", want)
}

func mustKey(t *testing.T, k *Keyed, req limit.Request) []byte {
	t.Helper()
	key, err := k.key(nil, req)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func BenchmarkTake(b *testing.B) {
	l := leased(b, 4_000_000_000*fixed.Token, 1_000_000)
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		if d, err := l.Take(ctx, limit.Request{}); err != nil || !d.Allowed {
			b.Fatal("wrong answer")
		}
	}
}

// BenchmarkAllow is a local decision, admitted and refused; BenchmarkInProcess is the
// same by limit.Limiter, beside which it should take at most 1.5 times as long.
func BenchmarkAllow(b *testing.B) {
	for _, bm := range []struct {
		name string
		rate fixed.Amount
		want bool
	}{{"admitted", 4_000_000_000 * fixed.Token, true}, {"refused", 1, false}} {
		b.Run(bm.name, func(b *testing.B) {
			l := leased(b, bm.rate, 1_000_000)
			if !bm.want {
				l.AllowN(time.Now(), 1_000_000)
			}
			for b.Loop() {
				if l.Allow() != bm.want {
					b.Fatal("wrong answer")
				}
			}
		})
	}
}

// BenchmarkAllowPolicies decides on ten thousand policies, each with a lease, one thread at a time and on
// all processors, each of which has its own policies. The figure is of one processor.
func BenchmarkAllowPolicies(b *testing.B) {
	const policies = 10_000
	c, err := New(Options{Address: "127.0.0.1:1", Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		b.Fatal(err)
	}
	c.lanes()[0].agent.Deadline().Store(int64(time.Hour))
	all := make([]*Limiter, policies)
	for i := range all {
		if all[i], err = c.Limit("policy-"+strconv.Itoa(i), LimitOptions{}); err != nil {
			b.Fatal(err)
		}
		all[i].lease.Update(c.now(), 4_000_000_000*fixed.Token, fixed.Whole(1_000_000), fixed.Whole(1_000_000))
	}
	b.Run("one", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i = (i + 7919) % policies {
			all[i].Allow()
		}
	})
	b.Run("all", func(b *testing.B) {
		b.ReportAllocs()
		var next atomic.Int64
		b.RunParallel(func(pb *testing.PB) {
			part := policies / runtime.GOMAXPROCS(0)
			mine := all[int(next.Add(1)-1)%runtime.GOMAXPROCS(0)*part:][:part]
			for i := 0; pb.Next(); i = (i + 7919) % part {
				mine[i].Allow()
			}
		})
	})
}

func BenchmarkInProcess(b *testing.B) {
	for _, bm := range []struct {
		name string
		rate limit.Rate
		want bool
	}{{"admitted", limit.PerSecond(4_000_000_000), true}, {"refused", limit.Rate{Count: 1, Period: 24 * time.Hour}, false}} {
		b.Run(bm.name, func(b *testing.B) {
			l, err := limit.NewLimiter(limit.Policy{Rate: bm.rate, Burst: 1_000_000})
			if err != nil {
				b.Fatal(err)
			}
			if !bm.want {
				l.AllowN(time.Now(), 1_000_000)
			}
			for b.Loop() {
				if l.Allow() != bm.want {
					b.Fatal("wrong answer")
				}
			}
		})
	}
}

// TestLineSettles: random amendments, arrivals and departures. Nobody overtakes, and
// the totals agree.
func TestLineSettles(t *testing.T) {
	rng := seeding.Rand(t)
	for range 200 {
		l := &leased(t, 50*fixed.Token, 5).lease
		if !l.timer.IsSetTo(waitline.Never) {
			t.Fatal("a timer without a line")
		}
		now := l.client.now()
		var waiters []*waiter
		served := 0
		for range 200 {
			now += limit.Time(rng.Int64N(int64(30 * time.Millisecond)))
			l.mu.Lock()
			switch rng.IntN(6) {
			case 0, 1, 2:
				w := newWaiter(1+rng.Int64N(4), limit.Time(1<<62))
				w.until, w.Signal = limit.Time(1+rng.Int64N(9)), waitline.Wake()
				if rng.IntN(8) == 0 {
					w.until = math.MaxInt64
				}
				l.enter(now, w)
				waiters = append(waiters, w)
			case 3:
				if len(waiters) > 0 {
					if w := waiters[rng.IntN(len(waiters))]; w.Waiting() {
						l.leave(w)
						w.End(&l.calls, errLate)
						l.settle(now)
					}
				}
			case 4:
				if len(waiters) > 0 && waiters[len(waiters)-1].Waiting() {
					l.line.wait(waiters[len(waiters)-1], limit.Time(1+rng.Int64N(9)))
				}
				l.spender.Update(now, fixed.Whole(rng.Int64N(100)), fixed.Whole(rng.Int64N(8)), fixed.Whole(rng.Int64N(3)))
				l.settle(now)
			default:
				l.settle(now)
			}
			waiting, cost, until := false, int64(0), limit.Time(0)
			waiters = slices.DeleteFunc(waiters, func(w *waiter) bool {
				if w.Waiting() {
					waiting = true
					cost += w.Cost
					until = max(until, w.until)
					return false
				}
				if w.Await(context.Background(), nil) == nil {
					served++
					if waiting {
						t.Fatal("it overtook one who waits")
					}
				}
				return true
			})
			if until == math.MaxInt64 {
				until = 0
			}
			if r := l.spender.Observe(now); r.Waiting != fixed.Whole(cost) || l.line.Cost() != cost || r.WaitUntil != until {
				t.Fatalf("%v wait until %v, counted %d, want %d until %v", r.Waiting, r.WaitUntil, l.line.Cost(), cost, until)
			}
			l.unlock()
		}
		l.end(ErrClosed)
		if served == 0 || l.line.First() != nil || l.line.Cost() != 0 {
			t.Fatalf("%d served; the line should be empty", served)
		}
	}
}
