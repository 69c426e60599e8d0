package split_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/split"
)

// TestWaitFuncOrder: each call-back is made once, in order, when its permit is due. A waiter
// that gives up gets none, and those behind it move up.
func TestWaitFuncOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, split.Terms{Total: limit.PerSecond(10), Part: split.Instance(0, 1)}, split.Options{})
		begin := time.Now()
		times := map[int]time.Duration{}
		var order []int
		cancels := make([]func() bool, 6)
		for i := range 6 {
			cancels[i] = l.WaitFunc(1, limit.Never, func(err error) {
				if err != nil {
					t.Errorf("%d: %v", i, err)
				}
				order, times[i] = append(order, i), time.Since(begin)
			})
		}
		if len(order) != 1 {
			t.Errorf("%v called at once, want the first: its token is due", order)
		}
		tooLate := 0
		l.WaitFunc(1, 500*time.Millisecond, func(err error) {
			if errors.Is(err, limit.ErrWaitTooLong) {
				tooLate++
			}
		})
		if !cancels[3]() || cancels[3]() || cancels[0]() || tooLate != 1 {
			t.Error("want the fourth cancelled once, the first not, and the seventh called at once")
		}
		l.WaitFunc(1, 500*time.Millisecond, func(err error) {
			order, times[6] = append(order, 6), time.Since(begin)
		})
		time.Sleep(time.Second)
		synctest.Wait()
		if !slices.Equal(order, []int{0, 1, 2, 4, 5, 6}) {
			t.Errorf("called %v", order)
		}
		for place, i := range order {
			if want := time.Duration(place) * 100 * time.Millisecond; times[i] != want {
				t.Errorf("%d called after %v, want %v", i, times[i], want)
			}
		}
		for _, cancel := range cancels {
			if cancel() {
				t.Error("cancelled after it was called")
			}
		}
	})
}

// TestWaitFuncReenters: a done may use the limiter, be slow, or end its goroutine; the other
// call-backs are made.
func TestWaitFuncReenters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, split.Terms{Total: limit.PerSecond(100), Part: split.Instance(0, 1)}, split.Options{})
		var called []int
		l.WaitFunc(1, limit.Never, func(error) {
			called = append(called, 0)
			l.WaitFunc(1, limit.Never, func(error) { called = append(called, 1) })
			l.WaitFunc(1, limit.Never, func(error) {
				called = append(called, 2)
				time.Sleep(50 * time.Millisecond) // five tokens later; one is good for 10 ms
				l.Allow()
				if err := l.SetTotal(limit.PerSecond(50)); err != nil {
					t.Error(err)
				}
				l.WaitFunc(1, 0, func(err error) {
					if !errors.Is(err, limit.ErrWaitTooLong) {
						t.Error(err)
					}
				})
				l.WaitFunc(1, limit.Never, func(error) { called = append(called, 4) })
				runtime.Goexit()
			})
			l.WaitFunc(1, limit.Never, func(error) { called = append(called, 3) })
		})
		time.Sleep(time.Second)
		synctest.Wait()
		if !slices.Equal(called, []int{0, 1, 2, 3, 4}) {
			t.Errorf("called %v", called)
		}
	})
}

// TestWaitersInWindows: with windows, which costs above 1 must not cross, waiters are served in
// order at the first time that a naive count allows, and those that would be late fail at once.
func TestWaitersInWindows(t *testing.T) {
	const perWindow = 5
	for seed := range seeding.Draw(t, 100) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			l := newLimiter(t, split.Terms{Total: limit.PerSecond(perWindow), Part: split.Instance(0, 1)}, split.Options{Window: time.Second})
			begin, window, left := time.Now(), 0, int64(perWindow)
			var want, got []int
			for i := range 40 {
				n := 1 + rng.Int64N(perWindow)
				w, rest := window, left
				if n > rest {
					w, rest = w+1, perWindow
				}
				longest := limit.Never
				if rng.IntN(3) == 0 {
					longest = time.Duration(rng.IntN(40)) * time.Second
				}
				fits := time.Duration(w)*time.Second <= longest
				if fits {
					window, left = w, rest-n
					want = append(want, w)
				}
				l.WaitFunc(n, longest, func(err error) {
					if (err == nil) != fits {
						t.Errorf("seed %d, %d: %v, want it in time: %v", seed, i, err, fits)
					}
					if err == nil {
						got = append(got, int(time.Since(begin)/time.Second))
						return
					}
					if time.Since(begin) > 0 {
						t.Errorf("seed %d, %d: called after %v", seed, i, time.Since(begin))
					}
				})
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			if !slices.Equal(got, want) {
				t.Errorf("seed %d: let go in windows %v, want %v", seed, got, want)
			}
		})
	}
}

// TestStorm: with callers of every kind, cancellations and changes of the terms all at
// once, each wait ends exactly once, and no more is admitted than the fastest terms have.
func TestStorm(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const fastest, n = 2000, 4
		l := newLimiter(t, split.Terms{Total: limit.PerSecond(fastest), Part: split.Instance(0, n)}, split.Options{})
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		var admitted, entered, ended atomic.Int64
		var wg sync.WaitGroup
		for i := range 20 {
			rng := rand.New(rand.NewPCG(uint64(i), 5))
			wg.Go(func() {
				for ctx.Err() == nil {
					time.Sleep(time.Duration(rng.Int64N(int64(20 * time.Millisecond))))
					switch longest := time.Duration(rng.Int64N(int64(100 * time.Millisecond))); rng.IntN(5) {
					case 0:
						if l.Allow() {
							admitted.Add(1)
						}
					case 1:
						if l.WaitMax(ctx, longest) == nil {
							admitted.Add(1)
						}
					case 2:
						some, stop := context.WithTimeout(ctx, longest)
						if l.Wait(some) == nil {
							admitted.Add(1)
						}
						stop()
					default:
						entered.Add(1)
						var once atomic.Bool
						giveUp := l.WaitFunc(1, longest, func(err error) {
							if once.Swap(true) {
								t.Error("called twice")
							}
							ended.Add(1)
							if err == nil {
								admitted.Add(1)
							}
						})
						if rng.IntN(4) == 0 && giveUp() {
							if once.Swap(true) {
								t.Error("called and cancelled")
							}
							ended.Add(1)
						}
					}
				}
			})
		}
		wg.Go(func() {
			rng := seeding.Rand(t)
			for ctx.Err() == nil {
				time.Sleep(time.Duration(rng.Int64N(int64(50 * time.Millisecond))))
				if err := l.SetTotal(limit.PerSecond(1 + rng.Int64N(fastest))); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Wait()
		if err := l.SetTotal(limit.PerSecond(fastest)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		if entered.Load() != ended.Load() || entered.Load() < 1000 {
			t.Errorf("%d of %d waits have ended", ended.Load(), entered.Load())
		}
		most := int64(time.Since(begin).Seconds()*fastest/n) + fastest/100/n + 1
		if got := admitted.Load(); got > most || got < most/4 {
			t.Errorf("%d admitted, want at most %d", got, most)
		}
	})
}

// TestManyWaiters: 100,000 wait without a goroutine each; arriving, giving up in any order and
// being planned again take microseconds of a processor each.
func TestManyWaiters(t *testing.T) {
	waiters, within := 100_000, time.Second // of a processor; 0.2 s is usual
	if raceEnabled {
		waiters = 10_000
	}
	for _, o := range []split.Options{{}, {Window: time.Second}} {
		l := newLimiter(t, split.Terms{Total: limit.PerHour(int64(waiters)), Part: split.Instance(0, 3)}, o)
		before, begin := runtime.NumGoroutine(), processorTime(t)
		var called atomic.Int64
		cancels := make([]func() bool, waiters)
		for i := range cancels {
			cancels[i] = l.WaitFunc(1, 100*time.Hour, func(err error) { called.Add(1) })
		}
		if n := runtime.NumGoroutine(); n > before+2 {
			t.Errorf("%d goroutines more with %d who wait", n-before, waiters)
		}
		for i := range int64(10) {
			if err := l.SetTotal(limit.PerHour(int64(waiters) + i)); err != nil {
				t.Fatal(err)
			}
		}
		rand.Shuffle(waiters, func(i, j int) { cancels[i], cancels[j] = cancels[j], cancels[i] })
		cancelled := int64(0)
		for _, cancel := range cancels {
			if cancel() {
				cancelled++
			}
		}
		if d := processorTime(t) - begin; d > within {
			t.Errorf("%+v: all that took %v of a processor, want at most %v", o, d, within)
		}
		for cancelled+called.Load() < int64(waiters) {
			runtime.Gosched()
		}
		if cancelled+called.Load() != int64(waiters) {
			t.Errorf("%d called and %d cancelled of %d", called.Load(), cancelled, waiters)
		}
	}
}

// processorTime is what this process has used of the processors so far: a machine that does
// other work does not make it longer.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestAllocatesNothing: a decision allocates nothing, admitted or refused; an answer of
// Take is the only exception.
func TestAllocatesNothing(t *testing.T) {
	if raceEnabled {
		return // the detector allocates
	}
	now := time.Now()
	l := newLimiter(t, split.Terms{Total: limit.PerSecond(1e8), Part: split.Instance(1, 2), Burst: 1e8}, split.Options{})
	admitted := 0
	done := func(err error) { count(&admitted, err == nil) }
	for name, f := range map[string]func(){
		"Allow":    func() { count(&admitted, l.Allow()) },
		"AllowN":   func() { count(&admitted, l.AllowN(now.Add(time.Second), 3)) },
		"WaitMax":  func() { count(&admitted, l.WaitMax(context.Background(), time.Second) == nil) },
		"WaitFunc": func() { l.WaitFunc(1, 0, done) },
	} {
		for !l.Allow() {
			runtime.Gosched()
		}
		if n := testing.AllocsPerRun(1000, f); n != 0 {
			t.Errorf("%s: %v allocations, want 0", name, n)
		}
	}
	if admitted < 1000 {
		t.Errorf("%d admitted: nothing was measured", admitted)
	}
	refusing := newLimiter(t, split.Terms{Total: limit.PerHour(1), Part: split.Instance(1, 1000)}, split.Options{})
	if n := testing.AllocsPerRun(1000, func() { count(&admitted, refusing.Allow()) }); n != 0 {
		t.Errorf("refused Allow: %v allocations, want 0", n)
	}
	if n := testing.AllocsPerRun(1000, func() { _, _ = l.Take(t.Context(), limit.Request{}) }); n != 1 {
		t.Errorf("Take: %v allocations, want 1", n)
	}
}

func count(n *int, yes bool) {
	if yes {
		*n++
	}
}

// TestParallel is for the race detector: many goroutines, the real clock, and never more
// than rate and burst.
func TestParallel(t *testing.T) {
	const rate, burst = 1_000_000, 1000
	begin := time.Now()
	l := newLimiter(t, split.Terms{Total: limit.PerSecond(rate), Part: split.Instance(0, 1), Burst: burst}, split.Options{})
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for range 2000 {
				switch {
				case i%4 == 0 && l.WaitMax(t.Context(), time.Second) == nil, i%4 != 0 && l.Allow():
					admitted.Add(1)
				case i == 1:
					l.Remaining()
				case i == 2:
					_ = l.SetTotal(limit.PerSecond(rate)) // it is valid
				}
			}
		})
	}
	wg.Wait()
	if most := int64(time.Since(begin).Seconds()*rate) + burst + 1; admitted.Load() > most || admitted.Load() == 0 {
		t.Errorf("%d admitted, want at most %d", admitted.Load(), most)
	}
}

func BenchmarkAllow(b *testing.B) {
	for _, bb := range []struct {
		name    string
		total   limit.Rate
		part    split.Part
		options split.Options
		allowed bool
	}{
		{"admitted", limit.PerSecond(1e9), split.Instance(0, 1), split.Options{}, true},
		{"admitted by weight", limit.PerSecond(1e9), split.Part{First: 1, Weight: 3, Of: 5}, split.Options{}, true},
		{"admitted in a window", limit.PerSecond(1e9), split.Instance(0, 1), split.Options{Window: time.Second}, true},
		{"admitted paced", limit.PerSecond(1e9), split.Instance(0, 1), split.Options{Window: time.Second, Pacing: split.PID}, true},
		{"refused", limit.PerHour(1), split.Instance(0, 1000), split.Options{}, false},
	} {
		b.Run(bb.name, func(b *testing.B) {
			terms := split.Terms{Total: bb.total, Part: bb.part}
			if bb.options.Window == 0 {
				terms.Burst = 1e9
			}
			l := newLimiter(b, terms, bb.options)
			for bb.allowed && !l.Allow() {
				runtime.Gosched()
			}
			b.ReportAllocs()
			b.ResetTimer()
			allowed := 0
			for b.Loop() {
				if l.Allow() {
					allowed++
				}
			}
			if bb.allowed && allowed < b.N*9/10 || !bb.allowed && allowed > b.N/10 {
				b.Errorf("%d of %d were admitted", allowed, b.N)
			}
		})
	}
}
