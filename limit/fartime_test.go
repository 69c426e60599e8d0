package limit

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"
)

// farTime draws a time from d on to the end of time.
func farTime(r *rand.Rand, d time.Duration) time.Time {
	now := time.Now()
	switch r.IntN(3) {
	case 0:
		return now.Add(d + time.Duration(r.Int64N(int64(math.MaxInt64-d))))
	case 1:
		return now.Add(math.MaxInt64 - time.Duration(r.Int64N(int64(3*time.Second))))
	default:
		return time.Unix(now.Unix()+int64(d/time.Second)+1+r.Int64N(1<<(33+r.IntN(28))), r.Int64N(1e9))
	}
}

// At never goes back: later times are later or the end of time, and times before 1678 the first.
func TestAtIsMonotonic(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	for range 100_000 {
		a := time.Unix(r.Int64N(1<<(1+r.IntN(61)))-r.Int64N(1<<(1+r.IntN(61))), r.Int64N(1e9))
		b := a.Add(time.Duration(r.Int64()))
		if At(a) > At(b) {
			t.Fatalf("At(%v) = %d, and of the later %v %d", a, At(a), b, At(b))
		}
		if a.Year() > 1700 && a.Year() < 2200 && int64(At(a)) != a.UnixNano() {
			t.Fatalf("At(%v) = %d", a, At(a))
		}
	}
}

// Waiters whose deadline is far away wait: for a Limiter, for one that was given its policy late, and for
// a Queue.
func TestFarDeadlines(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 2))
	policy := Policy{Rate: Rate{Count: 1, Period: time.Second}, Burst: 1}
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			deadline := farTime(r, time.Minute)
			ctx, cancel := context.WithDeadline(context.Background(), deadline)
			defer cancel()
			l, err := NewLimiter(policy)
			if err != nil {
				t.Fatal(err)
			}
			var late Limiter
			if err := late.SetPolicy(policy); err != nil {
				t.Fatal(err)
			}
			q := newQueue(t, &keyed{p: policy, of: map[string]*Limiter{}}, QueueOptions{})
			defer q.Close()
			for i := range 3 {
				if err := l.Wait(ctx); err != nil {
					t.Errorf("limiter, wait %d until %v: %v", i, deadline, err)
				}
				if err := late.Wait(ctx); err != nil {
					t.Errorf("limiter without a clock, wait %d until %v: %v", i, deadline, err)
				}
				if d, err := q.Wait(ctx, requestOf("k", 1)); err != nil || !d.Allowed {
					t.Errorf("queue, wait %d until %v: %+v, %v", i, deadline, d, err)
				}
			}
			if l.AllowN(time.Now(), 1) {
				t.Error("a fourth was admitted")
			}
		})
	}
}
