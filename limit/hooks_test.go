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

// heard records the calls of hooks.
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
		OnRefuse:    func(name string, cost int64, _ limit.Reason) { h.add("refuse %s %d", name, cost) },
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

// Hooks are called once for each refusal and each wait, with its cost, its length and its end,
// and not for a permit that is granted at once.
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

// A Queue calls hooks for its waits.
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

// TestQueueHooksOfATake: a Take that is refused because others wait is told once, with the reason for which
// they wait; a peek is not, and what the Taker decides it tells itself.
func TestQueueHooksOfATake(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var own, taker heard
		l, err := limit.NewLimiter(limit.Policy{Rate: limit.PerSecond(1), Burst: 1})
		if err != nil {
			t.Fatal(err)
		}
		l.SetHooks(taker.hooks())
		q, err := limit.NewQueue(l, limit.QueueOptions{Hooks: limit.Hooks{
			OnAdmit:  func(name string, cost int64) { own.add("admit %s %d", name, cost) },
			OnRefuse: func(name string, cost int64, why limit.Reason) { own.add("refuse %s %d %v", name, cost, why) },
		}})
		if err != nil {
			t.Fatal(err)
		}
		defer q.Close()
		take := func(want bool, reqs ...limit.Request) {
			t.Helper()
			for _, req := range reqs {
				if d, err := q.Take(t.Context(), req); err != nil || d.Allowed != want {
					t.Fatalf("%+v: %+v, %v", req, d, err)
				}
			}
		}
		take(true, limit.Request{})
		take(false, limit.Request{}) // nobody waits yet
		own.want(t)
		taker.want(t, "refuse limiter 1")
		leave := q.WaitFunc(limit.Request{}, limit.Never, func(limit.Decision, error) { t.Error("told") })
		taker.want(t, "refuse limiter 1") // the first try of the wait
		take(false, limit.Request{}, limit.Request{Peek: true}, limit.Request{Cost: 1})
		own.want(t, "refuse queue 1 rate_exceeded", "refuse queue 1 rate_exceeded")
		taker.want(t)
		leave()
		take(false, limit.Request{})
		own.want(t)
		taker.want(t, "refuse limiter 1")
	})
}

// No hooks, and hooks of which some are missing, call nothing.
func TestHooksThatAreMissing(t *testing.T) {
	var none *limit.Hooks
	for _, h := range []*limit.Hooks{none, {}} {
		h.Refused("a", 1, limit.ReasonRate)
		h.Admitted("a", 1)
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

// A wait that has ended cannot be cancelled any more, even before its call-back, and hooks get
// the same end as the call-back.
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

// bucketOf is burstOf, for the leaky bucket too.
func bucketOf(a limit.Algorithm, n int64) int64 {
	if a == limit.LeakyBucket {
		return n
	}
	return burstOf(a, n)
}

// TestHooksCountEachDecision: whatever the policy and the mix of verbs, the hooks count what the
// callers were answered.
func TestHooksCountEachDecision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, a := range []limit.Algorithm{limit.TokenBucket, limit.LeakyBucket, limit.FixedWindow, limit.SlidingWindowLog} {
			l, err := limit.NewLimiter(limit.Policy{Algorithm: a, Rate: limit.PerSecond(300), Burst: bucketOf(a, 20)})
			if err != nil {
				t.Fatal(err)
			}
			var admitted, refused, gave, denied atomic.Int64
			l.SetHooks(limit.Hooks{
				OnAdmit: func(_ string, n int64) { admitted.Add(n) },
				OnRefuse: func(_ string, n int64, r limit.Reason) {
					if r != limit.ReasonRate && (r != limit.ReasonCost || n < 20) {
						t.Errorf("%v: %d refused for %v", a, n, r)
					}
					refused.Add(n)
				},
			})
			count := func(allowed bool, n int64) {
				if allowed {
					gave.Add(n)
				} else {
					denied.Add(n)
				}
			}
			var work sync.WaitGroup
			for i := range 8 {
				work.Go(func() {
					for k := range 200 {
						n := int64(1 + (k+i)%3)
						switch (k + i) % 7 {
						case 0, 1:
							count(l.Allow(), 1)
						case 2:
							count(l.AllowN(time.Now(), n), n)
						case 3:
							d, err := l.Take(t.Context(), limit.Request{Cost: n})
							if err != nil {
								t.Error(err)
							}
							count(d.Allowed, n)
						case 4:
							if l.WaitMaxN(t.Context(), n, 20*time.Millisecond) == nil {
								count(true, n)
							}
						case 5:
							ended := make(chan error, 1)
							if cancel := l.WaitFunc(n, 20*time.Millisecond, func(err error) { ended <- err }); k%2 == 0 && cancel() {
								break
							}
							if <-ended == nil {
								count(true, n)
							}
						case 6:
							count(l.AllowN(time.Now(), 1e6), 1e6)
						}
						time.Sleep(time.Duration((k*7+i*3)%11) * time.Millisecond)
					}
				})
			}
			work.Wait()
			if a1, b := admitted.Load(), gave.Load(); a1 != b || b == 0 {
				t.Errorf("%v: the hook has admitted %d, the callers %d", a, a1, b)
			}
			if a1, b := refused.Load(), denied.Load(); a1 != b || b == 0 {
				t.Errorf("%v: the hook has refused %d, the callers %d", a, a1, b)
			}
		}
	})
}

// BenchmarkAllowHooked is the cost of a decision that is counted.
func BenchmarkAllowHooked(b *testing.B) {
	l, err := limit.NewLimiter(limit.Policy{Algorithm: limit.TokenBucket, Rate: limit.PerSecond(1e9), Burst: 1e9})
	if err != nil {
		b.Fatal(err)
	}
	var n atomic.Int64
	l.SetHooks(limit.Hooks{OnAdmit: func(string, int64) { n.Add(1) }, OnRefuse: func(string, int64, limit.Reason) { n.Add(1) }})
	b.ReportAllocs()
	for b.Loop() {
		l.Allow()
	}
	if n.Load() < int64(b.N) {
		b.Fatalf("%d counted of %d", n.Load(), b.N)
	}
}
