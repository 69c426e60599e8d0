package limit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
)

var _ Taker = (*Limiter)(nil)

func newLimiter(t testing.TB, p Policy) *Limiter {
	t.Helper()
	l, err := NewLimiter(p)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func bucketPolicy(r Rate, burst int64) Policy { return Policy{Rate: r, Burst: burst} }

func TestLimiterAllow(t *testing.T) {
	for _, p := range []Policy{
		bucketPolicy(PerSecond(3), 3),
		{Algorithm: FixedWindow, Rate: PerHour(3), Align: AlignFirstHit},
		{Algorithm: SlidingWindowLog, Rate: PerHour(3)},
		{Algorithm: SlidingWindowCounter, Rate: PerHour(3)},
	} {
		t.Run(p.Algorithm.String(), func(t *testing.T) {
			l, now := newLimiter(t, p), time.Now()
			for i := range 5 {
				if got := l.AllowN(now, 1); got != (i < 3) {
					t.Errorf("request %d: allowed %v", i+1, got)
				}
			}
			if l.AllowN(now, -1000) || l.AllowN(now, 1) {
				t.Error("a negative cost filled the limit up")
			}
			if l.AllowN(now, math.MaxInt64) || l.RemainingAt(now) != 0 {
				t.Error("a cost above the quota was admitted")
			}
			if !l.AllowN(now.Add(2*time.Hour), 3) {
				t.Error("refused two hours later")
			}
			if l.AllowN(now, 1) {
				t.Error("a clock that stepped back admitted more")
			}
		})
	}
}

func TestLimiterLeakyBucketAllowsOnlyWhatNeedNotWait(t *testing.T) {
	l, now := newLimiter(t, Policy{Algorithm: LeakyBucket, Rate: PerSecond(10), Burst: 5}), time.Now()
	if !l.AllowN(now, 1) || l.AllowN(now, 1) || l.AllowN(now.Add(99*time.Millisecond), 1) {
		t.Error("want one at once and no other before 100 ms")
	}
	if !l.AllowN(now.Add(100*time.Millisecond), 1) {
		t.Error("refused after 100 ms")
	}
}

func TestLimiterZeroValue(t *testing.T) {
	var l Limiter
	if l.Allow() || l.Remaining() != 0 || l.Policy() != (Policy{}) {
		t.Error("the zero value admitted something")
	}
	if r := l.Reserve(); r.OK() || r.Delay() != Never || r.Cancel() {
		t.Errorf("got %+v", r)
	}
	if err := l.Wait(t.Context()); !errors.Is(err, ErrExceedsQuota) {
		t.Errorf("Wait: %v", err)
	}
	d, err := l.Take(t.Context(), Request{})
	if err != nil || d.Allowed || d.Status != 429 || d.RetryAfter() != Never {
		t.Errorf("Take: %+v, %v", d, err)
	}
	if err := l.SetPolicy(bucketPolicy(PerSecond(1), 1)); err != nil {
		t.Fatal(err)
	}
	if !l.Allow() {
		t.Error("a zero value that got a policy refuses")
	}
}

func TestNewLimiterErrors(t *testing.T) {
	for _, c := range []struct {
		p    Policy
		want string
	}{
		{Policy{Algorithm: Concurrency, MaxInFlight: 1, Timeout: time.Second}, "use a Finisher"},
		{Policy{Rate: Rate{-1, time.Second}}, "negative"},
	} {
		if _, err := NewLimiter(c.p); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%+v: got %v, want %q", c.p, err, c.want)
		}
		l := newLimiter(t, bucketPolicy(PerSecond(1), 1))
		if err := l.SetPolicy(c.p); err == nil || l.Policy() != bucketPolicy(PerSecond(1), 1) {
			t.Errorf("%+v: SetPolicy: %v, policy now %+v", c.p, err, l.Policy())
		}
	}
}

func TestLimiterTake(t *testing.T) {
	l := newLimiter(t, Policy{Algorithm: SlidingWindowLog, Rate: PerHour(3)})
	d, err := l.Take(t.Context(), Request{Cost: 2, Peek: true})
	if err != nil || !d.Allowed || l.Remaining() != 3 {
		t.Errorf("peek: %+v, %v", d, err)
	}
	d, err = l.Take(t.Context(), Request{Cost: 2})
	if r := d.Results[0]; err != nil || !d.Allowed || r.Algorithm != SlidingWindowLog || r.Quota != 3 || r.Window != time.Hour || r.Cost != 2 || r.Remaining != 1 {
		t.Errorf("take: %+v, %v", d, err)
	}
	d, err = l.Take(t.Context(), Request{Cost: 2})
	if err != nil || d.Allowed || d.Status != 429 || d.RetryAfter() <= 0 || d.RetryAfter() > time.Hour || d.Refused().Reason != ReasonRate {
		t.Errorf("refusal: %+v, %v", d, err)
	}
	if _, err = l.Take(t.Context(), Request{Cost: -1}); !errors.Is(err, ErrNegativeCost) {
		t.Errorf("negative cost: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err = l.Take(ctx, Request{}); !errors.Is(err, context.Canceled) {
		t.Errorf("ended context: %v", err)
	}
}

func TestLimiterPolicyChangeNeitherRefillsNorForgets(t *testing.T) {
	l := newLimiter(t, bucketPolicy(PerHour(1), 10))
	l.AllowN(time.Now(), 8)
	for _, c := range []struct{ burst, remaining int64 }{{10, 2}, {20, 12}, {5, 0}, {20, 12}} {
		if err := l.SetBurst(c.burst); err != nil {
			t.Fatal(err)
		}
		if got := l.Remaining(); got != c.remaining {
			t.Errorf("burst %d: remaining %d, want %d", c.burst, got, c.remaining)
		}
	}
	if err := l.SetRate(PerHour(7)); err != nil {
		t.Fatal(err)
	}
	if got := l.Remaining(); got != 12 {
		t.Errorf("rate changed: remaining %d, want 12", got)
	}
}

func TestLimiterDoesNotAllocate(t *testing.T) {
	ctx := context.Background()
	for _, a := range []Algorithm{TokenBucket, FixedWindow, SlidingWindowLog, SlidingWindowCounter} {
		l := newLimiter(t, Policy{Algorithm: a, Rate: PerHour(10), Burst: 10})
		for l.Allow() {
		}
		if n := testing.AllocsPerRun(100, func() { l.Allow() }); n != 0 {
			t.Errorf("%v: %v allocations per refusal", a, n)
		}
	}
	l := newLimiter(t, bucketPolicy(PerSecond(1e9), 1e9))
	if n := testing.AllocsPerRun(100, func() { l.Allow() }); n != 0 {
		t.Errorf("%v allocations per Allow", n)
	}
	if n := testing.AllocsPerRun(100, func() {
		if l.Wait(ctx) != nil {
			t.Error("refused")
		}
	}); n != 0 {
		t.Errorf("%v allocations per Wait that need not wait", n)
	}
}

// Under contention, too, never more than burst + rate x T are admitted.
func TestLimiterExactUnderContention(t *testing.T) {
	const burst, goroutines = 1000, 2000
	for _, c := range []struct {
		procs int
		rate  int64 // 99991 is prime: too odd for the path without a lock
	}{{2, 100_000}, {64, 100_000}, {64, 99_991}} {
		procs, rate := c.procs, c.rate
		t.Run(fmt.Sprintf("GOMAXPROCS=%d,rate=%d", procs, rate), func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(procs))
			var admitted, asked atomic.Int64
			var stop atomic.Bool
			var wg sync.WaitGroup
			start := time.Now()
			l := newLimiter(t, bucketPolicy(PerSecond(rate), burst))
			timer := time.AfterFunc(time.Second, func() { stop.Store(true) })
			defer timer.Stop()
			for range goroutines {
				wg.Go(func() {
					for !stop.Load() {
						asked.Add(1)
						if l.Allow() {
							admitted.Add(1)
						}
						runtime.Gosched()
					}
				})
			}
			wg.Wait()
			bound := burst + int64(float64(rate)*time.Since(start).Seconds()) + 1
			if got := admitted.Load(); got > bound {
				t.Errorf("%d admitted, bound %d: %.2f x", got, bound, float64(got)/float64(bound))
			}
			if asked.Load() <= bound {
				t.Logf("only %d asked: the machine is too slow to go over", asked.Load())
			}
		})
	}
}

// In any interval of length T at most burst + rate x T are admitted at once, and
// those refused could not have been.
func TestHistoriesLimiterAllow(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	eachHistory(t, func(r *rand.Rand) error {
		rate, burst := Rate{1 + r.Int64N(7), time.Duration(1 + r.Int64N(40))}, r.Int64N(6)
		l, err := NewLimiter(bucketPolicy(rate, burst))
		if err != nil {
			return err
		}
		var admitted []event
		now := Time(0)
		for range 60 {
			now += Time(r.Int64N(12))
			cost := smallCost(r, burst)
			fits := withinBucket(admitted, event{now, cost}, rate, burst)
			if got := l.AllowN(l.origin.Add(time.Duration(now)), cost); got != fits {
				return fmt.Errorf("%v burst %d: %d at %d after %v: got %v", rate, burst, cost, now, admitted, got)
			}
			if fits && cost > 0 {
				admitted = append(admitted, event{now, cost})
			}
		}
		return nil
	})
}

// withinBucket says whether e, the latest, may join what was admitted: whether for
// every i what was admitted from i on is at most burst + rate x T.
func withinBucket(admitted []event, e event, rate Rate, burst int64) bool {
	sum := e.cost
	if sum > burst {
		return sum == 0
	}
	for i := len(admitted) - 1; i >= 0; i-- {
		sum += admitted[i].cost
		if (sum-burst)*int64(rate.Period) > rate.Count*int64(e.at-admitted[i].at) {
			return e.cost == 0
		}
	}
	return true
}

// Allow, which takes no lock, answers what AllowN does, also long after its word
// began and with other calls in between.
func TestHistoriesLimiterWithoutLock(t *testing.T) {
	t.Parallel()
	for seed := range seeding.Draw(t, max(1, histories(t)/20)) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 7))
			p := bucketPolicy(Rate{1 + r.Int64N(8), time.Duration(1 + r.Int64N(int64(time.Second)))}, r.Int64N(5))
			free, locked := newLimiter(t, p), newLimiter(t, p)
			if free.fast.Load() == nil {
				t.Fatalf("%+v has no word", p)
			}
			locked.fast.Store(nil)
			for step := range 100 {
				switch r.IntN(10) {
				case 0:
					<-time.After(time.Duration(r.Int64N(int64(40 * 24 * time.Hour))))
				case 1, 2, 3:
					<-time.After(time.Duration(r.Int64N(int64(time.Second) / 4)))
				case 4:
					if f, l := free.Remaining(), locked.Remaining(); f != l {
						t.Fatalf("history %d, step %d: %+v: remaining %d, want %d", seed, step, p, f, l)
					}
				case 5:
					p.Burst = r.Int64N(5)
					if free.SetPolicy(p) != nil || locked.SetPolicy(p) != nil {
						t.Fatal("policy refused")
					}
					locked.fast.Store(nil)
				}
				if f, l := free.Allow(), locked.AllowN(time.Now(), 1); f != l {
					t.Fatalf("history %d, step %d: %+v: got %v, want %v", seed, step, p, f, l)
				}
			}
		})
	}
}

func TestLimiterLeavesTheLockAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, bucketPolicy(PerSecond(1), 1))
		f := func() bool { _, decided := l.fast.Load().allow(l.now()); return decided }
		if !l.Allow() || !f() {
			t.Error("the lock is taken from the start")
		}
		err := l.Wait(t.Context())
		synctest.Wait() // the goroutine that ends the wait holds the lock until then
		if err != nil || !f() {
			t.Errorf("the lock is taken after a wait (%v)", err)
		}
		l.AllowN(time.Now().Add(200*24*time.Hour), 1)
		<-time.After(90 * 24 * time.Hour)
		l.Allow()
		if <-time.After(200 * 24 * time.Hour); !l.Allow() || !f() {
			t.Error("the lock is taken after its word was begun anew")
		}
	})
}

func BenchmarkLimiterAllow(b *testing.B) {
	l := newLimiter(b, bucketPolicy(PerSecond(1e9), 1e9))
	b.ReportAllocs()
	for b.Loop() {
		if !l.Allow() {
			b.Fatal("refused")
		}
	}
}

func BenchmarkLimiterRefuse(b *testing.B) {
	l := newLimiter(b, bucketPolicy(PerHour(1), 1))
	l.Allow()
	b.ReportAllocs()
	for b.Loop() {
		if l.Allow() {
			b.Fatal("allowed")
		}
	}
}

// A time far ahead, which a caller may choose, has no word; its state must not be
// cut to one.
func TestLimiterFarAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const day = 24 * time.Hour
		l := newLimiter(t, bucketPolicy(Rate{255, 1e9 + 7}, 1))
		if !l.AllowN(time.Now().Add(876*day), 1) {
			t.Fatal("refused")
		}
		for range 20 {
			<-time.After(45 * day)
			if got, want := l.Allow(), time.Since(l.origin) > 876*day; got != want {
				t.Fatalf("after %v: allowed %v", time.Since(l.origin), got)
			}
		}
	})
}
