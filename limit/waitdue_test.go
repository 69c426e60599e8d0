package limit

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
)

// dueAtOnce are policies under which n waiters are due at a few times.
func dueAtOnce(n int64) []Policy {
	some := min(n, MaxLogCount)
	return []Policy{
		bucketPolicy(Rate{1e15, time.Second}, n),
		{Algorithm: LeakyBucket, Rate: Rate{1e15, time.Second}, Burst: n},
		{Algorithm: FixedWindow, Rate: Rate{n, time.Second}},
		{Algorithm: SlidingWindowLog, Rate: Rate{some, time.Second}},
		{Algorithm: SlidingWindowCounter, Rate: Rate{n, 100}},
	}
}

// fill uses p up.
func fill(t *testing.T, l *Limiter, p Policy) {
	t.Helper()
	if !l.AllowN(time.Now(), p.Quota()-1) && !l.ReserveN(time.Now(), p.Quota()).OK() {
		t.Fatalf("%v: %d are not there", p.Algorithm, p.Quota())
	}
	for l.Allow() {
	}
}

// All waiters that are due are served in order, without another call of the limiter.
func TestLimiterCrowdIsDueAtOnce(t *testing.T) {
	for _, p := range dueAtOnce(crowd) {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(t, p)
			fill(t, l, p)
			q := told{start: time.Now()}
			after := make([]time.Duration, crowd)
			var wg sync.WaitGroup
			for i := range after {
				wg.Go(func() {
					if err := l.Wait(t.Context()); err != nil {
						t.Error(err)
					}
					after[i] = time.Since(q.start)
				})
				synctest.Wait() // it stands in line
			}
			for i := range crowd {
				q.join(l, i, 1, Never)
			}
			wg.Wait()
			for i := 1; i < len(after); i++ {
				if after[i] < after[i-1] {
					t.Fatalf("%v: %d of those who block were let go after %v, %d after %v", p.Algorithm, i-1, after[i-1], i, after[i])
				}
			}
			<-time.After(5 * time.Second)
			got := q.all()
			if len(got) != crowd {
				t.Fatalf("%v: %d of %d were called", p.Algorithm, len(got), crowd)
			}
			for i, f := range got {
				if f.who != i || f.err != nil || f.after < after[len(after)-1] {
					t.Fatalf("%v: %d-th call: %+v", p.Algorithm, i, f)
				}
			}
		})
	}
}

// The same for crowds of any size and cost, some of which leave: the others are served in order,
// whenever each is due.
func TestCrowdsAtRandom(t *testing.T) {
	for seed := range seeding.Draw(t, 100) {
		r := rand.New(rand.NewPCG(seed, 31))
		policies := dueAtOnce(1 + r.Int64N(2000))
		p := policies[r.IntN(len(policies))]
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(t, p)
			fill(t, l, p)
			q := told{start: time.Now()}
			n := 200 + r.IntN(1500)
			cancels, gone := make([]func() bool, n), make([]bool, n)
			for i := range cancels {
				cancels[i] = q.join(l, i, 1+r.Int64N(min(3, p.Quota())), Never)
			}
			for range r.IntN(n) {
				i := r.IntN(n)
				gone[i] = cancels[i]() || gone[i]
			}
			<-time.After(time.Hour)
			next := 0
			for _, f := range q.all() {
				for next < n && gone[next] {
					next++
				}
				if f.who != next || f.err != nil {
					t.Fatalf("seed %d, %v: %+v, want %d next", seed, p, f, next)
				}
				next++
			}
			for ; next < n; next++ {
				if !gone[next] {
					t.Fatalf("seed %d, %v: %d of %d was not called", seed, p, next, n)
				}
			}
		})
	}
}

// Many waiters have a bound that a change of policy makes too short: all fail at once.
func TestCrowdIsTooLateAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, bucketPolicy(PerSecond(1000), 1))
		l.Allow()
		q := told{start: time.Now()}
		for i := range 1000 {
			q.join(l, i, 1, time.Second)
		}
		if err := l.SetRate(Rate{}); err != nil {
			t.Fatal(err)
		}
		got := q.all()
		if len(got) != 1000 {
			t.Fatalf("%d were told", len(got))
		}
		for i, f := range got {
			if f.who != i || !errors.Is(f.err, ErrWaitTooLong) || f.after != 0 {
				t.Fatalf("%d-th: %+v", i, f)
			}
		}
	})
}

// Those behind somebody who leaves move up, whatever their time was before: in a log of n
// per second the next n go each second.
func TestCrowdMovesUp(t *testing.T) {
	for seed := range seeding.Draw(t, 50) {
		r := rand.New(rand.NewPCG(seed, 37))
		quota, n := 300+r.IntN(700), 1000+r.IntN(2000)
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(t, Policy{Algorithm: SlidingWindowLog, Rate: PerSecond(int64(quota))})
			l.AllowN(time.Now(), int64(quota))
			q := told{start: time.Now()}
			cancels := make([]func() bool, n)
			for i := range cancels {
				cancels[i] = q.join(l, i, 1, time.Hour) // with a bound, so that all are planned
			}
			for i := range n {
				if r.IntN(3) == 0 {
					cancels[i]()
				}
			}
			<-time.After(time.Minute)
			for i, f := range q.all() {
				if want := time.Duration(1+i/quota) * time.Second; f.err != nil || f.after != want {
					t.Fatalf("seed %d: %d-th of a log of %d: %+v, want it after %v", seed, i, quota, f, want)
				}
			}
		})
	}
}
