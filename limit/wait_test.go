package limit

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
)

// line is a number of goroutines that wait, and when each was served.
type line struct {
	start time.Time
	wg    sync.WaitGroup
	mu    sync.Mutex
	done  []finish
}

type finish struct {
	who   int
	after time.Duration
	cost  int64
	err   error
}

// join starts a goroutine that waits, and returns when it stands in line.
func (q *line) join(l *Limiter, ctx context.Context, who int, cost int64) {
	q.wg.Go(func() {
		err := l.WaitN(ctx, cost)
		q.mu.Lock()
		defer q.mu.Unlock()
		q.done = append(q.done, finish{who, time.Since(q.start), cost, err})
	})
	synctest.Wait()
}

// goroutinesIn counts those in whose stack there is such a function.
func goroutinesIn(function string) (n int) {
	stacks := make([]byte, 1<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for stack := range strings.SplitSeq(string(stacks), "\n\n") {
		if strings.Contains(stack, function) {
			n++
		}
	}
	return n
}

func TestWaitIsFIFO(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, q := newLimiter(t, bucketPolicy(PerSecond(2), 3)), line{start: time.Now()}
		costs := []int64{3, 2, 1, 3, 1}
		for i, cost := range costs {
			q.join(l, t.Context(), i, cost)
		}
		if n := goroutinesIn("limit.(*Limiter)"); n != 4 {
			t.Errorf("%d goroutines for 4 who wait, want only theirs", n)
		}
		q.wg.Wait()
		want := []time.Duration{0, time.Second, 1500 * time.Millisecond, 3 * time.Second, 3500 * time.Millisecond}
		for i, f := range q.done {
			if f.err != nil || f.who != i || f.after != want[i] {
				t.Errorf("%d-th: %+v, want %v", i, f, want[i])
			}
		}
	})
}

// The edge of a window serves the waiters that the window admits, and wakes no others.
func TestWaitAtAWindowsEdge(t *testing.T) {
	for _, p := range []Policy{
		{Algorithm: FixedWindow, Rate: PerSecond(10)},
		{Algorithm: SlidingWindowLog, Rate: PerSecond(10)},
	} {
		synctest.Test(t, func(t *testing.T) {
			l, q := newLimiter(t, p), line{start: time.Now()}
			for i := range 35 {
				q.join(l, t.Context(), i, 1)
			}
			for second, want := range []int{10, 20, 30, 35} {
				synctest.Wait()
				q.mu.Lock()
				if len(q.done) != want {
					t.Errorf("%v: after %d s: %d let go, want %d", p.Algorithm, second, len(q.done), want)
				}
				for _, f := range q.done {
					if f.err != nil || f.after != time.Duration(f.who/10)*time.Second {
						t.Errorf("%v: %+v", p.Algorithm, f)
					}
				}
				q.mu.Unlock()
				<-time.After(time.Second)
			}
			q.wg.Wait()
		})
	}
}

func TestWaitLeakyBucketPaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, Policy{Algorithm: LeakyBucket, Rate: PerSecond(10), Burst: 1})
		q := line{start: time.Now()}
		for i := range 5 {
			q.join(l, t.Context(), i, 1)
		}
		q.wg.Wait()
		for i, f := range q.done {
			if f.err != nil || f.who != i || f.after != time.Duration(i)*100*time.Millisecond {
				t.Errorf("%d-th: %+v", i, f)
			}
		}
	})
}

func TestWaitCancelledGivesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, q := newLimiter(t, bucketPolicy(PerSecond(1), 1)), line{start: time.Now()}
		ctx, cancel := context.WithCancel(t.Context())
		q.join(l, t.Context(), 0, 1)
		q.join(l, ctx, 1, 1)
		q.join(l, t.Context(), 2, 1)
		q.join(l, t.Context(), 3, 1)
		<-time.After(500 * time.Millisecond)
		cancel()
		q.wg.Wait()
		want := []finish{{0, 0, 1, nil}, {1, 500 * time.Millisecond, 1, context.Canceled}, {2, time.Second, 1, nil}, {3, 2 * time.Second, 1, nil}}
		if !slices.Equal(q.done, want) {
			t.Errorf("got %v, want %v", q.done, want)
		}
	})
}

// Ten who give up leave no debt behind.
func TestWaitManyCancelled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, q := newLimiter(t, bucketPolicy(PerSecond(1), 1)), line{start: time.Now()}
		l.Allow()
		ctx, cancel := context.WithCancel(t.Context())
		for i := range 100 {
			q.join(l, ctx, i, 1)
		}
		cancel()
		q.wg.Wait()
		if len(l.slots) != 0 || l.waiting != 0 || l.pending != 0 {
			t.Errorf("left behind: %d slots", len(l.slots))
		}
		if err := l.Wait(t.Context()); err != nil || time.Since(q.start) != time.Second {
			t.Errorf("the next one waited %v, want 1s (%v)", time.Since(q.start), err)
		}
	})
}

func TestWaitIsReplannedWhenTheRateChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, q := newLimiter(t, bucketPolicy(PerMinute(1), 1)), line{start: time.Now()}
		l.Allow()
		q.join(l, t.Context(), 0, 1)
		<-time.After(6 * time.Second) // a tenth of a token
		if err := l.SetRate(PerSecond(1)); err != nil {
			t.Fatal(err)
		}
		q.wg.Wait()
		if q.done[0].after != 6900*time.Millisecond {
			t.Errorf("let go after %v, want 6.9s", q.done[0].after)
		}
		q.start = time.Now()
		q.join(l, t.Context(), 1, 1)
		if err := l.SetRate(Rate{}); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Hour)
		if len(q.done) != 1 {
			t.Error("let go at rate 0")
		}
		if err := l.SetRate(PerMinute(1)); err != nil {
			t.Fatal(err)
		}
		q.wg.Wait()
		if got := q.done[1].after; got != time.Hour+time.Minute {
			t.Errorf("let go after %v, want 1h1m", got)
		}
	})
}

func TestWaitWhenTheBurstShrinks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, q := newLimiter(t, bucketPolicy(PerSecond(1), 5)), line{start: time.Now()}
		l.AllowN(time.Now(), 5)
		q.join(l, t.Context(), 0, 4)
		q.join(l, t.Context(), 1, 1)
		if err := l.SetBurst(2); err != nil {
			t.Fatal(err)
		}
		q.wg.Wait()
		if f := q.done[0]; f.who != 0 || f.after != 0 || !errors.Is(f.err, ErrExceedsQuota) {
			t.Errorf("got %+v, want ErrExceedsQuota at once", f)
		}
		// 5 are used and 2 fit: 4 have to be paid before the 1 has room.
		if f := q.done[1]; f.err != nil || f.after != 4*time.Second {
			t.Errorf("got %+v, want it let go after 4s", f)
		}
	})
}

func TestWaitFailsAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, start := newLimiter(t, bucketPolicy(PerSecond(1), 1)), time.Now()
		l.Allow()
		ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond)
		defer cancel()
		ended, end := context.WithCancel(t.Context())
		end()
		for _, c := range []struct {
			name string
			err  error
			want []error
		}{
			{"WaitMax", l.WaitMax(t.Context(), 999*time.Millisecond), []error{ErrWaitTooLong}},
			{"WaitMax 0", l.WaitMax(t.Context(), 0), []error{ErrWaitTooLong}},
			{"WaitMax negative", l.WaitMax(t.Context(), -1), []error{ErrWaitTooLong}},
			{"deadline", l.Wait(ctx), []error{ErrWaitTooLong, context.DeadlineExceeded}},
			{"ended", l.Wait(ended), []error{context.Canceled}},
			{"above the quota", l.WaitN(t.Context(), 2), []error{ErrExceedsQuota}},
			{"negative", l.WaitN(t.Context(), -1), []error{ErrNegativeCost}},
			{"nothing", l.WaitN(t.Context(), 0), []error{nil}},
		} {
			for _, want := range c.want {
				if !errors.Is(c.err, want) {
					t.Errorf("%s: got %v, want %v", c.name, c.err, want)
				}
			}
		}
		if waited := time.Since(start); waited != 0 {
			t.Errorf("that took %v", waited)
		}
		if err := l.WaitMax(t.Context(), time.Second); err != nil || time.Since(start) != time.Second {
			t.Errorf("WaitMax: %v after %v, want success after 1s: what failed took nothing", err, time.Since(start))
		}
	})
}

func TestNobodyPassesThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, q := newLimiter(t, bucketPolicy(PerSecond(1), 5)), line{start: time.Now()}
		l.AllowN(time.Now(), 5)
		q.join(l, t.Context(), 0, 5)
		<-time.After(3 * time.Second)
		if l.Allow() || l.Remaining() != 0 {
			t.Error("Allow passed one who waits")
		}
		d, err := l.Take(t.Context(), Request{})
		if err != nil || d.Allowed || d.RetryAfter() != 3*time.Second {
			t.Errorf("Take: %+v, %v, want a retry after 3s: two for the one who waits, one for this", d, err)
		}
		r := l.Reserve()
		if r.Delay() != 3*time.Second {
			t.Errorf("Reserve: delay %v, want 3s", r.Delay())
		}
		q.wg.Wait()
		if q.done[0].after != 5*time.Second {
			t.Errorf("%+v", q.done[0])
		}
	})
}

func TestTakeOfALeakyBucketQueuesBehindThoseWhoWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, Policy{Algorithm: LeakyBucket, Rate: PerSecond(1), Burst: 3})
		q := line{start: time.Now()}
		q.join(l, t.Context(), 0, 1)
		q.join(l, t.Context(), 1, 1)
		d, err := l.Take(t.Context(), Request{})
		if err != nil || !d.Allowed || d.Delay != 2*time.Second {
			t.Errorf("got %+v, %v, want it admitted after 2s", d, err)
		}
		q.join(l, t.Context(), 2, 1)
		if d, err = l.Take(t.Context(), Request{}); err != nil || d.Allowed {
			t.Errorf("got %+v, %v, want the queue full", d, err)
		}
		q.wg.Wait()
		if q.done[2].after != 3*time.Second {
			t.Errorf("%+v", q.done[2])
		}
	})
}

// Many callers wait, reserve, give up and change the rate. What is admitted is within the limit
// in every interval, no permit is lost, and no waiter starves.
func TestHistoriesWait(t *testing.T) {
	t.Parallel()
	for seed := range seeding.Draw(t, max(1, histories(t)/20)) {
		synctest.Test(t, func(t *testing.T) {
			if err := waitHistory(t, rand.New(rand.NewPCG(seed, 1))); err != nil {
				t.Fatalf("history %d: %v", seed, err)
			}
		})
	}
}

func waitHistory(t *testing.T, r *rand.Rand) error {
	burst := 1 + r.Int64N(5)
	rate := PerSecond(1 + r.Int64N(20))
	p := bucketPolicy(rate, burst)
	if r.IntN(2) == 0 {
		p = Policy{Algorithm: SlidingWindowLog, Rate: rate}
		burst = rate.Count
	}
	l, q := newLimiter(t, p), line{start: time.Now()}
	var changed bool
	var acts []event
	for i := range 40 {
		switch r.IntN(10) {
		case 0:
			<-time.After(time.Duration(r.Int64N(int64(time.Second))))
		case 1:
			if l.Allow() {
				acts = append(acts, event{Time(time.Since(q.start)), 1})
			}
		case 2:
			if res := l.ReserveN(time.Now(), 1); r.IntN(2) == 0 {
				res.Cancel()
			} else {
				acts = append(acts, event{Time(time.Since(q.start) + res.Delay()), 1})
			}
		case 3:
			if p.Algorithm == TokenBucket && r.IntN(5) == 0 {
				changed = true
				if err := l.SetRate(PerSecond(1 + r.Int64N(20))); err != nil {
					return err
				}
			}
		case 4, 5:
			ctx, cancel := context.WithCancel(t.Context())
			q.join(l, ctx, i, 1+r.Int64N(burst))
			timer := time.AfterFunc(time.Duration(r.Int64N(int64(2*time.Second))), cancel)
			defer timer.Stop()
			defer cancel()
		default:
			q.join(l, t.Context(), i, 1+r.Int64N(burst))
		}
	}
	q.wg.Wait()
	last := -1
	for _, f := range q.done {
		switch {
		case errors.Is(f.err, context.Canceled):
			continue
		case f.err != nil:
			return f.err
		}
		last = max(last, f.who)
		acts = append(acts, event{Time(f.after), f.cost})
	}
	slices.SortStableFunc(acts, func(a, b event) int { return int(a.at - b.at) })
	for i, e := range acts {
		over := p.Algorithm == TokenBucket && !withinBucket(acts[:i], e, rate, burst) ||
			p.Algorithm == SlidingWindowLog && sumIn(acts[:i+1], e.at-Time(rate.Period), e.at) > rate.Count
		if over && !changed {
			return fmt.Errorf("%+v: over at %v: %v", p, time.Duration(e.at), acts)
		}
	}
	l.lock()
	defer l.unlock()
	if l.waiting != 0 || last < 0 {
		return fmt.Errorf("%d still wait", l.waiting)
	}
	return nil
}

// All verbs at once, from many goroutines: every call comes back, and nothing is
// left behind.
func TestLimiterAllVerbsAtOnce(t *testing.T) {
	for _, p := range []Policy{
		bucketPolicy(PerSecond(20_000), 10),
		{Algorithm: LeakyBucket, Rate: PerSecond(20_000), Burst: 10},
		{Algorithm: FixedWindow, Rate: Rate{20, time.Millisecond}},
		{Algorithm: SlidingWindowLog, Rate: Rate{20, time.Millisecond}},
		{Algorithm: SlidingWindowCounter, Rate: Rate{20, time.Millisecond}, CountRefused: true},
	} {
		l := newLimiter(t, p)
		var wg sync.WaitGroup
		for g := range uint64(16) {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(g, 3))
				for range 150 {
					if err := anyVerb(t.Context(), l, p, r); err != nil {
						t.Errorf("%v: %v", p.Algorithm, err)
					}
				}
			})
		}
		wg.Wait()
		if err := l.Wait(t.Context()); err != nil { // all that was reserved has acted
			t.Error(err)
		}
		l.lock()
		if l.pending != 0 || l.waiting != 0 || len(l.slots) > journal {
			t.Errorf("%v: left behind: %d slots, %d pending, %d waiting", p.Algorithm, len(l.slots), l.pending, l.waiting)
		}
		l.unlock()
	}
}

func anyVerb(ctx context.Context, l *Limiter, p Policy, r *rand.Rand) error {
	n := 1 + r.Int64N(3)
	switch r.IntN(8) {
	case 0:
		l.Allow()
	case 1:
		if res := l.ReserveN(time.Now(), n); r.IntN(3) > 0 {
			res.Cancel()
			res.Delay()
		}
	case 2:
		p.Rate.Count += r.Int64N(10)
		return l.SetPolicy(p)
	case 3:
		_, err := l.Take(ctx, Request{Cost: n})
		return err
	case 4:
		if err := l.WaitMaxN(ctx, n, time.Millisecond); err != nil && !errors.Is(err, ErrWaitTooLong) {
			return err
		}
	case 5, 6:
		short, cancel := context.WithCancel(ctx)
		defer time.AfterFunc(time.Duration(r.IntN(300))*time.Microsecond, cancel).Stop()
		defer cancel()
		if err := l.WaitN(short, n); err != nil && !errors.Is(err, context.Canceled) {
			return err
		}
	default:
		return l.WaitN(ctx, n)
	}
	return nil
}

func TestNobodyPassesOneWhoCannotBeServed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, q := newLimiter(t, Policy{Burst: 3}), line{start: time.Now()} // rate 0
		l.AllowN(time.Now(), 2)
		ctx, cancel := context.WithCancel(t.Context())
		q.join(l, ctx, 0, 2)
		if r := l.Reserve(); r.OK() {
			t.Error("a reservation at rate 0 behind one who cannot be served")
		}
		if err := l.WaitMax(t.Context(), time.Hour); !errors.Is(err, ErrWaitTooLong) {
			t.Errorf("WaitMax: %v", err)
		}
		q.join(l, t.Context(), 1, 1)
		<-time.After(time.Hour)
		synctest.Wait()
		if len(q.done) != 0 || l.Allow() {
			t.Errorf("passed: %v", q.done)
		}
		cancel()
		q.wg.Wait()
		if q.done[0].err != context.Canceled && q.done[1].err != context.Canceled {
			t.Errorf("got %v", q.done)
		}
	})
}
