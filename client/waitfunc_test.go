package client

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// answers is what the call-backs were called with, in order.
type answers struct {
	begin time.Time
	mu    sync.Mutex
	list  []answer
}

type answer struct {
	who   int
	err   error
	after time.Duration
}

func (a *answers) of(who int) func(error) {
	return func(err error) {
		a.mu.Lock()
		defer a.mu.Unlock()
		a.list = append(a.list, answer{who, err, time.Since(a.begin)})
	}
}

func (a *answers) all() []answer {
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.list)
}

func TestWaitFunc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = rateOf(10, 5)
		c := h.run(t, "one")
		l := openLimit(t, c, "m", LimitOptions{})
		synctest.Wait()
		goroutines := runtime.NumGoroutine()
		a := answers{begin: time.Now()}
		l.WaitFunc(5, limit.Never, a.of(0)) // nothing is leased yet
		l.WaitFunc(2, limit.Never, a.of(1))
		third := l.WaitFunc(3, limit.Never, a.of(2))
		l.WaitFunc(1, time.Second, a.of(3))
		l.WaitFunc(-1, limit.Never, a.of(4))
		l.WaitFunc(0, 0, a.of(5))
		if got := runtime.NumGoroutine(); got > goroutines || l.Allow() { // those of tests before may end
			t.Errorf("%d goroutines, %d before", got, goroutines)
		}
		time.Sleep(150 * time.Millisecond)
		if !third() || third() {
			t.Error("cancel: want true, once")
		}
		l.WaitFunc(6, limit.Never, a.of(6))
		time.Sleep(10 * time.Millisecond)
		begin := time.Since(a.begin)
		l.WaitFunc(5, 100*time.Millisecond, a.of(7)) // in about 0.7 s
		time.Sleep(2 * time.Second)
		last := a.all()
		order := []int{4, 5, 0, 6, 7, 1, 3}
		for i, want := range order {
			if i >= len(last) || last[i].who != want {
				t.Fatalf("told %+v, want %v", last, order)
			}
			var wantErr error
			switch want {
			case 4:
				wantErr = limit.ErrNegativeCost
			case 6:
				wantErr = limit.ErrExceedsQuota
			case 7:
				wantErr = limit.ErrWaitTooLong
			}
			if !errors.Is(last[i].err, wantErr) || wantErr == nil && last[i].err != nil {
				t.Errorf("%+v, want %v", last[i], wantErr)
			}
		}
		if after := last[4].after - begin; after > 100*time.Millisecond {
			t.Errorf("%v until it was told that it would be late", after)
		}
		if third := last[6].after - last[5].after; third != 100*time.Millisecond {
			t.Errorf("the one behind who left came %v after the one before", third)
		}
		l.WaitFunc(5, limit.Never, a.of(8))
		l.WaitFunc(5, limit.Never, a.of(9))
		l.Close()
		if last = a.all(); !errors.Is(last[len(last)-1].err, ErrClosed) {
			t.Errorf("%+v", last)
		}
		l.WaitFunc(1, limit.Never, a.of(10))
		if last = a.all(); last[len(last)-1].who != 10 || !errors.Is(last[len(last)-1].err, ErrClosed) {
			t.Errorf("%+v", last[len(last)-1])
		}
	})
}

// Without an answer bounded waits end when their time is over, to the nanosecond of the
// clock, in whatever order they came.
func TestWaitFuncTimesOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.mute = true
		c := h.run(t, "one")
		g, err := c.Semaphore("jobs", LimitOptions{})
		if err != nil {
			t.Fatal(err)
		}
		l := openLimit(t, c, "m", LimitOptions{})
		a := answers{begin: time.Now()}
		rng := seeding.Rand(t)
		bounds := make([]time.Duration, 200)
		for i := range bounds {
			bounds[i] = time.Duration(rng.Int64N(int64(3 * time.Second)))
			if i%2 == 0 {
				l.WaitFunc(1, bounds[i], a.of(i))
			} else {
				g.AcquireFunc(1, bounds[i], a.of(i))
			}
		}
		time.Sleep(4 * time.Second)
		got := a.all()
		for _, f := range got {
			if f.after != bounds[f.who] || !errors.Is(f.err, limit.ErrWaitTooLong) {
				t.Errorf("%+v, want after %v", f, bounds[f.who])
			}
		}
		if len(got) != len(bounds) || l.lease.line.First() != nil || l.lease.line.checks.Len() != 0 {
			t.Errorf("told %d", len(got))
		}
	})
}

func TestAcquireFunc(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["jobs"] = placesOf(2)
		g, err := h.run(t, "one").Semaphore("jobs", LimitOptions{})
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var order []int
		for i := range 7 {
			g.AcquireFunc(1, limit.Never, func(err error) {
				mu.Lock()
				defer mu.Unlock()
				if order = append(order, i); err != nil {
					t.Error(err)
				}
				time.AfterFunc(time.Second, func() { g.Release(1) })
			})
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if !slices.Equal(order, []int{0, 1, 2, 3, 4, 5, 6}) || g.InUse() != 0 {
			t.Errorf("order %v, %d in use", order, g.InUse())
		}
	})
}

// A done that is slow, uses the limiter or ends its goroutine costs the others their
// time, never their order.
func TestWaitFuncBadManners(t *testing.T) {
	l := leased(t, 0, 3)
	var mu sync.Mutex
	var order []int
	told := make(chan struct{}, 20)
	for i := range 10 {
		l.WaitFunc(1, limit.Never, func(err error) {
			mu.Lock()
			order = append(order, i)
			mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			switch i {
			case 0:
				l.WaitFunc(0, 0, func(error) { told <- struct{}{} })
			case 4:
				defer func() { told <- struct{}{} }()
				runtime.Goexit()
			case 5:
				l.Allow()
				l.Reserve().Cancel()
				l.WaitFunc(1, 0, func(err error) {
					if !errors.Is(err, limit.ErrWaitTooLong) {
						t.Error(err)
					}
				})
			}
			told <- struct{}{}
		})
	}
	for range 7 { // with the 3 of the start, a token for each: none is left for the calls in a call-back
		l.lease.mu.Lock()
		l.bucket.Update(l.lease.client.now(), 0, 3*fixed.Token, fixed.Token)
		l.lease.settle(l.lease.client.now())
		l.lease.unlock()
	}
	for range 11 {
		<-told
	}
	mu.Lock()
	defer mu.Unlock()
	if !slices.Equal(order, []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9}) {
		t.Errorf("order %v", order)
	}
}

// processorTime is what this process has used of the processors so far: a machine that does
// other work does not make it longer.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A hundred thousand who come and leave in any order take a time that does not grow with
// the square of their number, which would be minutes.
func TestCrowd(t *testing.T) {
	const crowd, within = 100_000, 20 * time.Second // of a processor, with the race detector; 0.2 s is usual
	for order, index := range map[string]func(i int) int{
		"first to last": func(i int) int { return i },
		"last to first": func(i int) int { return crowd - 1 - i },
		"at random":     func(i int) int { return i * 7919 % crowd },
	} {
		for _, bounded := range []bool{false, true} {
			start := processorTime()
			l := leased(t, fixed.Token/3600, 1)
			l.Allow()
			cancels := make([]func() bool, crowd)
			for i := range cancels {
				longest := limit.Never
				if bounded {
					longest = 100*365*24*time.Hour + time.Duration(i)
				}
				cancels[i] = l.WaitFunc(1, longest, func(err error) { t.Errorf("told %v", err) })
			}
			for i := range cancels {
				if !cancels[index(i)]() {
					t.Fatalf("leaving %s: cancel of %d failed", order, index(i))
				}
			}
			if took := processorTime() - start; took > within {
				t.Errorf("leaving %s, bounded %v: %v", order, bounded, took)
			}
			if l.lease.line.First() != nil || l.lease.line.until() != 0 || l.lease.line.Cost() != 0 {
				t.Error("the line should be as new")
			}
		}
	}
}

func TestWaitFuncAllocatesNothing(t *testing.T) {
	l, nobody := leased(t, 1_000_000_000*fixed.Token, 1_000_000), func(error) {}
	if n := testing.AllocsPerRun(1000, func() { l.WaitFunc(1, limit.Never, nobody) }); n != 0 {
		t.Errorf("%v allocations for a permit that is there", n)
	}
}
