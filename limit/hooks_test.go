package limit_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/limit"
)

// heard writes down what hooks are told.
type heard struct {
	sync.Mutex
	lines []string
}

func (h *heard) add(format string, args ...any) {
	h.Lock()
	defer h.Unlock()
	h.lines = append(h.lines, fmt.Sprintf(format, args...))
}

func (h *heard) hooks() limit.Hooks {
	return limit.Hooks{
		OnRefuse:    func(name string, cost int64) { h.add("refuse %s %d", name, cost) },
		OnWaitStart: func(name string, cost int64) { h.add("start %s %d", name, cost) },
		OnWaitEnd: func(name string, cost int64, waited time.Duration, err error) {
			h.add("end %s %d %v %v", name, cost, waited, err)
		},
	}
}

func (h *heard) want(t *testing.T, want ...string) {
	t.Helper()
	h.Lock()
	defer h.Unlock()
	if !slices.Equal(h.lines, want) {
		t.Errorf("told %q\nwant %q", h.lines, want)
	}
	h.lines = nil
}

// Each refusal and each wait is told once, with its cost, its length and its end; what is
// admitted at once is not.
func TestLimiterHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, algorithm := range []limit.Algorithm{limit.TokenBucket, limit.SlidingWindowLog} {
			l, err := limit.NewLimiter(limit.Policy{Algorithm: algorithm, Rate: limit.Rate{Count: 2, Period: 2 * time.Second}, Burst: burstOf(algorithm, 2)})
			if err != nil {
				t.Fatal(err)
			}
			var h heard
			l.Allow()
			l.Allow()
			l.Allow() // nobody is told yet
			l.SetHooks(h.hooks())
			l.Allow()
			l.AllowN(time.Now(), 2)
			if _, err := l.Take(t.Context(), limit.Request{}); err != nil {
				t.Fatal(err)
			}
			if _, err := l.Take(t.Context(), limit.Request{Peek: true}); err != nil {
				t.Fatal(err)
			}
			h.want(t, "refuse limiter 1", "refuse limiter 2", "refuse limiter 1")
			time.Sleep(time.Hour)
			l.Allow()
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			h.want(t)
			wait := 1 * time.Second
			if algorithm == limit.SlidingWindowLog {
				wait = 2 * time.Second
			}
			if err := l.Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			h.want(t, "start limiter 1", fmt.Sprintf("end limiter 1 %v <nil>", wait))
			if err := l.WaitN(t.Context(), 2); err != nil { // takes all that there is then
				t.Fatal(err)
			}
			h.Lock()
			h.lines = nil
			h.Unlock()
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(100*time.Millisecond, cancel)
			if err := l.Wait(ctx); !errors.Is(err, context.Canceled) {
				t.Fatal(err)
			}
			h.want(t, "start limiter 1", "end limiter 1 100ms context canceled")
			leave := l.WaitFunc(1, limit.Never, func(error) { t.Error("told") })
			time.Sleep(50 * time.Millisecond)
			if !leave() || leave() {
				t.Error("the place is not given up once")
			}
			done := make(chan error, 1)
			l.WaitFunc(1, limit.Never, func(err error) { done <- err })
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			h.want(t, "start limiter 1", "end limiter 1 50ms context canceled", "start limiter 1", fmt.Sprintf("end limiter 1 %v <nil>", wait-150*time.Millisecond))
			if err := l.WaitMaxN(t.Context(), 2, time.Millisecond); !errors.Is(err, limit.ErrWaitTooLong) {
				t.Fatal(err)
			}
			h.want(t)
		}
	})
}

func burstOf(a limit.Algorithm, n int64) int64 {
	if a == limit.TokenBucket {
		return n
	}
	return 0
}

// A Queue tells of its waits.
func TestQueueHooks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := limit.NewLimiter(limit.Policy{Rate: limit.PerSecond(1), Burst: 1})
		if err != nil {
			t.Fatal(err)
		}
		var h heard
		q, err := limit.NewQueue(l, limit.QueueOptions{Hooks: h.hooks()})
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		for range 2 {
			if _, err := q.Wait(t.Context(), limit.Request{}); err != nil {
				t.Fatal(err)
			}
		}
		h.want(t, "start queue 1", "end queue 1 1s <nil>")
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Millisecond, cancel)
		if _, err := q.Wait(ctx, limit.Request{}); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		leave := q.WaitFunc(limit.Request{Cost: 1}, limit.Never, func(limit.Decision, error) { t.Error("told") })
		time.Sleep(10 * time.Millisecond)
		leave()
		h.want(t, "start queue 1", "end queue 1 10ms context canceled", "start queue 1", "end queue 1 10ms context canceled")
		done := make(chan error, 1)
		q.WaitFunc(limit.Request{}, time.Minute, func(_ limit.Decision, err error) { done <- err })
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		h.want(t, "start queue 1", "end queue 1 980ms <nil>")
	})
}

// No hooks, and hooks of which some are missing, call nothing.
func TestHooksThatAreMissing(t *testing.T) {
	var none *limit.Hooks
	for _, h := range []*limit.Hooks{none, {}} {
		h.Refused("a", 1)
		h.Skipped("a")
		h.Decided(t.Context(), &limit.Decision{}, nil)
		h.Decided(t.Context(), nil, errors.New("e"))
		w := h.NewWait("a", 1)
		w.Start()
		w.End(nil)
	}
	calls := 0
	h := limit.Hooks{OnWaitEnd: func(string, int64, time.Duration, error) { calls++ }}
	w := h.NewWait("a", 1)
	w.End(nil)
	w.Start()
	w.End(nil)
	if calls != 1 {
		t.Errorf("the end is told %d times", calls)
	}
}

// One whose wait has ended cannot be cancelled any more, though it is not told yet, and the
// end that hooks are told is the one that it is told.
func TestHooksAfterACancelThatIsTooLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var h heard
		l, err := limit.NewLimiter(limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: 2, Period: time.Second}, Align: limit.AlignFirstHit})
		if err != nil {
			t.Fatal(err)
		}
		q, err := limit.NewQueue(l, limit.QueueOptions{Hooks: h.hooks()})
		if err != nil {
			t.Fatal(err)
		}
		var cancel atomic.Pointer[func() bool]
		dones := 0
		first := func(error) {
			if dones++; (*cancel.Load())() {
				t.Error("a wait that has ended was cancelled")
			}
		}
		second := func(error) { dones++ }

		l.AllowN(time.Now(), 2)
		l.SetHooks(h.hooks())
		l.WaitFunc(1, limit.Never, first)
		late := l.WaitFunc(1, limit.Never, second)
		cancel.Store(&late)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		h.want(t, "start limiter 1", "start limiter 1", "end limiter 1 1s <nil>", "end limiter 1 1s <nil>")

		l.SetHooks(limit.Hooks{})
		l.AllowN(time.Now(), 2)
		q.WaitFunc(limit.Request{}, limit.Never, func(_ limit.Decision, err error) { first(err) })
		closed := q.WaitFunc(limit.Request{}, limit.Never, func(_ limit.Decision, err error) { second(err) })
		cancel.Store(&closed)
		q.Close()
		synctest.Wait()
		h.want(t, "start queue 1", "start queue 1", "end queue 1 0s limit: queue closed", "end queue 1 0s limit: queue closed")
		if dones != 4 {
			t.Errorf("%d were told, want 4", dones)
		}
	})
}
