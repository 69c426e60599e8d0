package split_test

import (
	"errors"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/split"
)

// TestName: a limiter has the name that it was given, or is called split.
func TestName(t *testing.T) {
	for name, want := range map[string]string{"": "split", "provider": "provider"} {
		l := newLimiter(t, split.Terms{Total: limit.PerSecond(1), Part: split.Instance(0, 1)}, split.Options{Name: name})
		d, err := l.Take(t.Context(), limit.Request{})
		if err != nil || l.Name() != want || d.Results[0].Limit != want {
			t.Errorf("%q: is called %q, its answers are of %q, %v", name, l.Name(), d.Results[0].Limit, err)
		}
	}
}

// TestNewWithTermsToCome: a limiter that is made for later admits nothing before.
func TestNewWithTermsToCome(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, split.Terms{Total: limit.PerSecond(10), Part: split.Instance(0, 1), From: time.Now().Add(time.Minute)}, split.Options{})
		time.Sleep(59 * time.Second)
		if l.Allow() || l.Remaining() != 0 {
			t.Error("admits before its terms begin")
		}
		time.Sleep(2 * time.Second)
		if !l.Allow() {
			t.Error("admits nothing a second after they began")
		}
	})
}

// TestCallbacksOneAfterTheOther: call-backs are made in order and never two at a time, however long
// each takes; a permit that is granted at once to a request within a call-back is passed on
// after that has returned.
func TestCallbacksOneAfterTheOther(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, split.Terms{Total: limit.PerSecond(10), Part: split.Instance(0, 1), Burst: 5}, split.Options{})
		for l.Allow() {
		}
		var called []int
		busy := false
		call := func(id int, within func()) func(error) {
			return func(err error) {
				if err != nil || busy {
					t.Errorf("%d: %v; somebody else is being called: %v", id, err, busy)
				}
				busy = true
				within()
				time.Sleep(350 * time.Millisecond)
				called, busy = append(called, id), false
			}
		}
		nothing := func() {}
		for id := range 4 {
			l.WaitFunc(1, limit.Never, call(id, nothing))
		}
		time.Sleep(5 * time.Second)
		l.WaitFunc(1, limit.Never, call(4, func() {
			l.WaitFunc(1, limit.Never, call(5, nothing))
			l.WaitFunc(1, limit.Never, call(6, nothing))
		}))
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if !slices.Equal(called, []int{0, 1, 2, 3, 4, 5, 6}) {
			t.Errorf("called %v", called)
		}
	})
}

// TestCallbacksInTime: whatever a controller does to the permits of a window, and whenever the terms
// change, a bounded wait ends by its deadline.
func TestCallbacksInTime(t *testing.T) {
	for seed := range seeding.Draw(t, 30) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 9))
			l := newLimiter(t, split.Terms{Total: limit.PerSecond(10), Part: split.Instance(0, 1)}, split.Options{Window: time.Second, Pacing: split.PID})
			waits := int64(0)
			var called, served atomic.Int64 // changed by callers and call-backs
			for range 200 {
				time.Sleep(time.Duration(r.Int64N(int64(120 * time.Millisecond))))
				if r.IntN(20) == 0 {
					if err := l.SetTotal(limit.PerSecond(5 + r.Int64N(10))); err != nil {
						t.Fatal(err)
					}
				}
				waits++
				begin, longest := time.Now(), time.Duration(r.Int64N(int64(3*time.Second)))
				l.WaitFunc(1+r.Int64N(2), longest, func(err error) {
					called.Add(1)
					if err == nil {
						served.Add(1)
					}
					if took := time.Since(begin); took > longest || err != nil && !errors.Is(err, limit.ErrWaitTooLong) {
						t.Errorf("seed %d: called %v after %v of %v", seed, err, took, longest)
					}
				})
			}
			time.Sleep(10 * time.Second)
			synctest.Wait()
			if called.Load() != waits || served.Load() == 0 {
				t.Errorf("seed %d: %d of %d were called, %d served", seed, called.Load(), waits, served.Load())
			}
		})
	}
}
