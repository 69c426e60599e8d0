package limit

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// noted is a Taker that notes how it is called.
type noted struct {
	Taker
	deadlines []time.Duration // from the call on; 0 = it is given no time
	peeks     int
	takes     int
}

func (n *noted) Take(ctx context.Context, req Request) (Decision, error) {
	left := time.Duration(0)
	if deadline, ok := ctx.Deadline(); ok {
		left = time.Until(deadline)
	}
	n.deadlines = append(n.deadlines, left)
	if req.Peek {
		n.peeks++
	} else {
		n.takes++
	}
	return n.Taker.Take(ctx, req)
}

// The context of a call of the Taker lasts as long as the caller wants to wait, and at least the
// grace of a timer; a caller without a bound, or that does not wait, sets no deadline.
func TestQueueGivesTheTakerItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &noted{Taker: newLimiter(t, bucketPolicy(PerSecond(100), 100))}
		queue := newQueue(t, n, QueueOptions{})
		defer queue.Close()
		short, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		for _, tt := range []struct {
			ctx            context.Context
			longest        time.Duration
			atLeast, about time.Duration
		}{
			{t.Context(), Never, 0, 0},
			{t.Context(), 0, 0, 0},
			{t.Context(), -1, 0, 0},
			{t.Context(), 1, 1, grace},
			{t.Context(), grace, grace, grace},
			{t.Context(), time.Second, time.Second, time.Second},
			{short, time.Second, time.Second, time.Second},
			{short, Never, 3 * time.Second, 3 * time.Second}, // the caller's own
			{short, 10 * time.Second, 3 * time.Second, 3 * time.Second},
		} {
			n.deadlines = nil
			if _, err := queue.WaitMax(tt.ctx, Request{}, tt.longest); err != nil {
				t.Fatal(err)
			}
			if got := n.deadlines; len(got) != 1 || got[0] < tt.atLeast || got[0] > tt.about {
				t.Errorf("one who waits %v gives the Taker %v, want %v to %v", tt.longest, got, tt.atLeast, tt.about)
			}
		}
	})
}

// With a limit that holds requests back, a waiter with a bound peeks before it takes: a permit
// that is held back for too long would be lost. Others ask once.
func TestQueueLooksBeforeALeakyBucketTakes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, Policy{Algorithm: LeakyBucket, Rate: PerSecond(10), Burst: 3})
		n := &noted{Taker: l}
		queue := newQueue(t, n, QueueOptions{})
		defer queue.Close()
		wait := func(longest time.Duration, want error, takes, peeks int) {
			t.Helper()
			n.takes, n.peeks = 0, 0
			if _, err := queue.WaitMax(t.Context(), Request{}, longest); !errors.Is(err, want) {
				t.Errorf("patience %v: %v, want %v", longest, err, want)
			}
			if n.takes != takes || n.peeks != peeks {
				t.Errorf("patience %v: the Taker was asked %d times and %d times only to look, want %d and %d", longest, n.takes, n.peeks, takes, peeks)
			}
		}
		wait(Never, nil, 1, 0)
		wait(Never, nil, 1, 0) // held back for 100 ms
		wait(100*time.Millisecond, nil, 1, 1)
		wait(100*time.Millisecond-1, ErrWaitTooLong, 0, 1)
		time.Sleep(100 * time.Millisecond)
		if got := l.Remaining(); got != 4 {
			t.Errorf("%d remain, want all 4: one that was told that it is too late was charged", got)
		}
	})
}

// A negative cost is refused before anybody is asked.
func TestQueueRefusesANegativeCost(t *testing.T) {
	n := &noted{Taker: newLimiter(t, bucketPolicy(PerSecond(1), 1))}
	queue := newQueue(t, n, QueueOptions{})
	defer queue.Close()
	for name, ask := range map[string]func(Request) (Decision, error){
		"Take": func(r Request) (Decision, error) { return queue.Take(t.Context(), r) },
		"Wait": func(r Request) (Decision, error) { return queue.Wait(t.Context(), r) },
	} {
		if d, err := ask(Request{Cost: -1}); !errors.Is(err, ErrNegativeCost) || d.Allowed {
			t.Errorf("%s: %+v, %v", name, d, err)
		}
	}
	if n.takes+n.peeks != 0 {
		t.Errorf("the Taker was asked %d times", n.takes+n.peeks)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if d, err := queue.Take(gone, Request{}); !errors.Is(err, context.Canceled) || d.Allowed || n.takes != 0 {
		t.Errorf("whose context has ended: %+v, %v", d, err)
	}
}

// stubborn is a Taker that refuses once, and then takes its time whatever its context says.
type stubborn struct {
	calls int
	done  []time.Time
}

func (s *stubborn) Take(context.Context, Request) (Decision, error) {
	if s.calls++; s.calls == 1 {
		return Decision{Results: []Result{{Limit: "stubborn", Quota: 1, Cost: 1, Verdict: Verdict{Reason: ReasonRate, RetryAfter: time.Second}}}}, nil
	}
	time.Sleep(10 * time.Second)
	s.done = append(s.done, time.Now())
	return Decision{Allowed: true}, nil
}

// Close ends the waits at once, and returns when no call on their behalf is under way.
func TestQueueCloseWaitsForTheTaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &stubborn{}
		queue, start := newQueue(t, s, QueueOptions{}), time.Now()
		var ends []time.Duration
		queue.WaitFunc(Request{}, Never, func(_ Decision, err error) {
			if !errors.Is(err, ErrQueueClosed) {
				t.Error(err)
			}
			ends = append(ends, time.Since(start))
		})
		time.Sleep(2 * time.Second) // the second call began after one
		queue.Close()
		synctest.Wait()
		if got := time.Since(start); got != 11*time.Second || len(s.done) != 1 {
			t.Errorf("closed after %v, when %d calls had returned, want 11s and 1", got, len(s.done))
		}
		if want := []time.Duration{2 * time.Second}; !slices.Equal(ends, want) {
			t.Errorf("the wait ended after %v, want %v", ends, want)
		}
	})
}

// A Queue reads what its Taker reads, and all where that does not say.
func TestQueueReadsWhatItsTakerReads(t *testing.T) {
	l := newLimiter(t, bucketPolicy(PerSecond(1), 1))
	for _, tt := range []struct {
		taker Taker
		want  []string
	}{{reads{l, []string{"user", "path"}}, []string{"user", "path"}}, {l, []string{"*"}}} {
		queue := newQueue(t, tt.taker, QueueOptions{})
		if got := queue.Attributes(); !slices.Equal(got, tt.want) {
			t.Errorf("%T: %q, want %q", tt.taker, got, tt.want)
		}
		queue.Close()
	}
}

// slowPlaces is a Taker of places that are all taken, and that takes its time to say so.
type slowPlaces struct{ takes int }

func (s *slowPlaces) Take(_ context.Context, req Request) (Decision, error) {
	if s.takes++; s.takes > 1 {
		time.Sleep(400 * time.Microsecond)
	}
	return Decision{Results: []Result{{Limit: "places", Quota: 1, Cost: costOf(req), Verdict: Verdict{Reason: ReasonConcurrency, RetryAfter: time.Hour}}}}, nil
}

// One whose time is over while the Taker is asked is sent away as soon as that refuses, and
// not when the grace for its answer is over.
func TestQueueEndsWithTheLastRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		queue, start := newQueue(t, &slowPlaces{}, QueueOptions{}), time.Now()
		defer queue.Close()
		// It asks again after a millisecond, until 1.4 ms.
		_, err := queue.WaitMax(t.Context(), Request{}, 1200*time.Microsecond)
		if got := time.Since(start); !errors.Is(err, ErrWaitTooLong) || got != 1400*time.Microsecond {
			t.Errorf("%v after %v, want %v after 1.4ms", err, got, ErrWaitTooLong)
		}
	})
}

// A refusal behind waiters has its reason: no tokens now, or a cost that never fits.
func TestRefusedBehindThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, bucketPolicy(PerSecond(1), 3))
		l.AllowN(time.Now(), 3)
		cancel := l.WaitFunc(1, Never, func(error) {})
		defer cancel()
		for cost, want := range map[int64]Verdict{
			1: {Reason: ReasonRate, RetryAfter: 2 * time.Second, ResetAfter: 4 * time.Second},
			3: {Reason: ReasonRate, RetryAfter: 4 * time.Second, ResetAfter: 4 * time.Second},
			4: {Reason: ReasonCost, RetryAfter: Never, ResetAfter: 4 * time.Second},
		} {
			for _, peek := range []bool{true, false} {
				d := must(l.Take(t.Context(), Request{Cost: cost, Peek: peek}))
				if got := d.Results[0].Verdict; d.Allowed || got != want {
					t.Errorf("a cost of %d: %+v, want %+v", cost, got, want)
				}
			}
		}
	})
}
