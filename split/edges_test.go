package split_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/split"
)

// TestPermitAtTheDeadline: where permit and deadline come at the same time, the wait ends with
// one of them, and the waiters behind are served accordingly: one token earlier if it was given
// up.
func TestPermitAtTheDeadline(t *testing.T) {
	outcomes := map[bool]int{}
	for range 200 {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(t, split.Terms{Total: limit.PerSecond(10), Part: split.Instance(0, 1)}, split.Options{})
			for l.Allow() {
			}
			begin := time.Now()
			ctx, cancel := context.WithDeadline(t.Context(), begin.Add(100*time.Millisecond))
			defer cancel()
			first := make(chan error, 1)
			go func() { first <- l.Wait(ctx) }()
			synctest.Wait()
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			second := time.Since(begin)
			err := <-first
			outcomes[err == nil]++
			want := 200 * time.Millisecond
			if err != nil {
				want = 100 * time.Millisecond
			}
			if err != nil && !errors.Is(err, context.DeadlineExceeded) || second != want {
				t.Errorf("the first got %v, the second came after %v", err, second)
			}
			time.Sleep(time.Second)
			if n := l.Remaining(); n != 1 {
				t.Errorf("%d remain when nobody waits", n)
			}
		})
	}
	if outcomes[true] == 0 {
		t.Errorf("outcomes: %v", outcomes)
	}
}

// TestSetSaysWhatIsInForce: Terms returns what was set, and nothing that was refused.
func TestSetSaysWhatIsInForce(t *testing.T) {
	terms := split.Terms{Total: limit.PerSecond(10), Part: split.Instance(0, 2), Burst: 4}
	l := newLimiter(t, terms, split.Options{})
	if l.Terms() != terms {
		t.Errorf("%+v, want %+v", l.Terms(), terms)
	}
	for _, wrong := range [][2]int{{2, 2}, {-1, 2}, {0, 0}, {0, -1}, {3, 2}} {
		if err := l.SetInstances(wrong[0], wrong[1]); err == nil || l.Terms() != terms {
			t.Errorf("instance %d of %d: %v; %+v", wrong[0], wrong[1], err, l.Terms())
		}
	}
	for _, weights := range [][]int64{{}, {0, 0}, {1, -1}, {1, 1 << 40}} {
		if err := l.SetWeights(0, weights...); err == nil || l.Terms() != terms {
			t.Errorf("weights %v: %v; %+v", weights, err, l.Terms())
		}
	}
	if err := l.SetWeights(2, 1, 1); err == nil || l.Terms() != terms {
		t.Errorf("the third of two: %v", err)
	}
	for i, set := range []func() error{
		func() error { return l.SetTotal(limit.PerSecond(20)) },
		func() error { return l.SetInstances(4, 5) },
		func() error { return l.SetWeights(1, 4, 6, 2) },
		func() error { return l.Set(split.Terms{Total: limit.PerSecond(1), Part: split.Instance(0, 1)}) },
	} {
		want := []split.Terms{
			{Total: limit.PerSecond(20), Part: split.Instance(0, 2), Burst: 4},
			{Total: limit.PerSecond(20), Part: split.Part{First: 4, Weight: 1, Of: 5}, Burst: 4},
			{Total: limit.PerSecond(20), Part: split.Part{First: 2, Weight: 3, Of: 6}, Burst: 4},
			{Total: limit.PerSecond(1), Part: split.Instance(0, 1)},
		}[i]
		if err := set(); err != nil || l.Terms() != want {
			t.Errorf("change %d: %v; %+v, want %+v", i, err, l.Terms(), want)
		}
	}
}

// TestWaitsThatEndAtOnce: their errors say what was wanted.
func TestWaitsThatEndAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, split.Terms{Total: limit.PerSecond(10), Part: split.Instance(0, 1)}, split.Options{Name: "provider"})
		for l.Allow() {
		}
		for _, d := range []time.Duration{-time.Hour, 0} {
			if err := l.WaitMax(t.Context(), d); !errors.Is(err, limit.ErrWaitTooLong) || !strings.Contains(err.Error(), `"provider" within 0s`) {
				t.Errorf("%v: %v", d, err)
			}
		}
		if err := l.WaitN(t.Context(), 0); err != nil {
			t.Error(err)
		}
		if err := l.WaitN(t.Context(), -1); !errors.Is(err, limit.ErrNegativeCost) {
			t.Error(err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := l.WaitN(ended, 0); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
		if l.AllowN(time.Now(), -1) || !l.AllowN(time.Now(), 0) {
			t.Error("a cost of -1 was admitted, or one of 0 was not")
		}
		var called []error
		note := func(err error) { called = append(called, err) }
		l.WaitFunc(0, 0, note)
		l.WaitFunc(-1, 0, note)
		l.WaitFunc(1, -time.Hour, note)
		if len(called) != 3 || called[0] != nil || !slices.Equal([]bool{errors.Is(called[1], limit.ErrNegativeCost), errors.Is(called[2], limit.ErrWaitTooLong)}, []bool{true, true}) {
			t.Errorf("called %v", called)
		}
	})
}
