package split_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/split"
)

// waiter is one in the naive line of a counted.
type waiter struct {
	id, n int
}

// counted is what a limiter of one instance, 10 per second, should do: a token every 100 ms,
// at most burst of them kept, and a line.
type counted struct {
	burst, have int
	line        []waiter
	served      map[int]time.Duration
}

func (c *counted) tick(at time.Duration) {
	c.have = min(c.burst, c.have+1)
	c.serve(at)
}

func (c *counted) serve(at time.Duration) {
	for len(c.line) > 0 && c.line[0].n <= c.have {
		c.have -= c.line[0].n
		c.served[c.line[0].id] = at
		c.line = c.line[1:]
	}
}

// after is how many tokens have to come before it is the turn of one who wants n.
func (c *counted) after(n int) int {
	for _, w := range c.line {
		n += w.n
	}
	return n - c.have
}

// TestQueueAgainstCount: without windows, whoever waits has its turn at the moment that a
// naive count of tokens gives; who would be late is told at once, and nobody else; those
// behind one who gives up move up; and while somebody waits nobody passes.
func TestQueueAgainstCount(t *testing.T) {
	const every = 100 * time.Millisecond
	for seed := range uint64(100) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 7))
			c := &counted{burst: 1 + r.IntN(6), served: map[int]time.Duration{}}
			l := newLimiter(t, split.Terms{Total: limit.PerSecond(10), Part: split.Instance(0, 1), Burst: int64(c.burst)}, split.Options{})
			begin := time.Now()
			if l.Allow() {
				c.have = 0
			}
			got := map[int]time.Duration{}
			cancels := map[int]func() bool{}
			time.Sleep(every / 2)
			for id := range 300 {
				now := time.Since(begin)
				n := 1 + r.IntN(c.burst)
				fits := len(c.line) == 0 && n <= c.have
				switch kind := r.IntN(6); kind {
				case 0:
					if got := l.AllowN(time.Now(), int64(n)); got != fits {
						t.Fatalf("seed %d, %v: AllowN(%d) = %v, count %+v", seed, now, n, got, c)
					}
				case 1:
					if d, err := l.Take(t.Context(), limit.Request{Cost: int64(n)}); err != nil || d.Allowed != fits || (d.Status == 429) != !fits {
						t.Fatalf("seed %d, %v: Take(%d) = %+v, %v, count %+v", seed, now, n, d, err, c)
					}
				case 2:
					n = 1
					fits = len(c.line) == 0 && c.have > 0
					if got := l.Allow(); got != fits {
						t.Fatalf("seed %d, %v: Allow() = %v, count %+v", seed, now, got, c)
					}
				case 3:
					fits = false
					if len(c.line) > 0 {
						i := r.IntN(len(c.line))
						if !cancels[c.line[i].id]() || cancels[c.line[i].id]() {
							t.Fatalf("seed %d, %v: %d gives up once", seed, now, c.line[i].id)
						}
						c.line = slices.Delete(c.line, i, i+1)
						c.serve(now)
					}
				default:
					longest := limit.Never
					late := false
					if after := c.after(n); kind == 4 && after > 0 {
						// A quarter of a token before or after its turn.
						at := now + every/2 + time.Duration(after-1)*every
						late = r.IntN(2) == 0
						longest = at - now + every/4
						if late {
							longest -= every / 2
						}
					}
					wait := waiter{id, n}
					told := false
					cancels[id] = l.WaitFunc(int64(n), longest, func(err error) {
						told = true
						if (err != nil) != late || late && !errors.Is(err, limit.ErrWaitTooLong) {
							t.Errorf("seed %d, %v: %d waits %v for %d: %v", seed, now, id, longest, n, err)
						}
						if err == nil {
							got[id] = time.Since(begin)
						}
					})
					if told != (late || fits) {
						t.Fatalf("seed %d, %v: told at once: %v, late %v, fits %v", seed, now, told, late, fits)
					}
					fits = false
					if !late {
						c.line = append(c.line, wait)
						c.serve(now)
					}
				}
				if fits {
					c.have -= n
				}
				want := int64(c.have)
				if len(c.line) > 0 {
					want = 0
				}
				if remaining := l.Remaining(); remaining != want {
					t.Fatalf("seed %d, %v: %d remain, count %+v", seed, now, remaining, c)
				}
				for range r.IntN(4) {
					time.Sleep(every / 2)
					c.tick(time.Since(begin))
					time.Sleep(every / 2)
				}
			}
			for len(c.line) > 0 {
				time.Sleep(every / 2)
				c.tick(time.Since(begin))
				time.Sleep(every / 2)
			}
			if len(got) != len(c.served) {
				t.Errorf("seed %d: %d were let go, want %d", seed, len(got), len(c.served))
			}
			for id, at := range c.served {
				if got[id] != at {
					t.Errorf("seed %d: %d was let go at %v, want %v", seed, id, got[id], at)
				}
			}
		})
	}
}

// TestChangeTellsWhoIsLate: when the total changes while several wait, whoever cannot be in
// time is told at that moment, and whoever can is let go in time, in order.
func TestChangeTellsWhoIsLate(t *testing.T) {
	late, served := 0, 0
	for seed := range uint64(50) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 8))
			l := newLimiter(t, split.Terms{Total: limit.PerSecond(10), Part: split.Instance(0, 1), Burst: 3}, split.Options{})
			for l.Allow() {
			}
			begin := time.Now()
			type wait struct {
				n       int
				longest time.Duration
				told    time.Duration
				err     error
			}
			waits := make([]wait, 8)
			for i := range waits {
				w := &waits[i]
				w.n, w.longest, w.told = 1+r.IntN(3), time.Duration(4+r.IntN(20))*time.Second, -1
				l.WaitFunc(int64(w.n), w.longest, func(err error) { w.told, w.err = time.Since(begin), err })
			}
			change := 50 * time.Millisecond
			time.Sleep(change)
			if err := l.SetTotal(limit.PerSecond(1)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(time.Minute)
			synctest.Wait()
			ahead, last := 0, time.Duration(0)
			for i, w := range waits {
				turn := time.Duration(ahead+w.n) * time.Second // the token of that number
				switch {
				case w.told < 0:
					t.Errorf("seed %d: %d was never told", seed, i)
				case w.err != nil:
					late++
					if !errors.Is(w.err, limit.ErrWaitTooLong) || w.told != change || turn < w.longest-time.Second {
						t.Errorf("seed %d: %d, whose turn would be at %v of %v, was told %v at %v", seed, i, turn, w.longest, w.err, w.told)
					}
				default:
					served++
					ahead += w.n
					if w.told > w.longest || w.told < last || w.told < turn-time.Second || w.told > turn+time.Second {
						t.Errorf("seed %d: %d was let go at %v, after one at %v, and should be at %v of %v", seed, i, w.told, last, turn, w.longest)
					}
					last = w.told
				}
			}
		})
	}
	if late < 50 || served < 50 {
		t.Errorf("%d were late and %d served: the cases are one-sided", late, served)
	}
}

// TestAllowFollowsChanges: Allow, which remembers when the next token is due, goes by the
// terms in force and by who waits.
func TestAllowFollowsChanges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, split.Terms{Total: limit.PerHour(1), Part: split.Instance(0, 1)}, split.Options{})
		for l.Allow() {
		}
		admits := func(what string, within time.Duration) {
			t.Helper()
			if l.Allow() {
				t.Errorf("%s: admits at once", what)
			}
			time.Sleep(within)
			if !l.Allow() {
				t.Errorf("%s: refuses after %v", what, within)
			}
		}
		if err := l.SetTotal(limit.PerSecond(1)); err != nil {
			t.Fatal(err)
		}
		admits("a faster total", time.Second)
		if err := l.SetInstances(1, 60); err != nil {
			t.Fatal(err)
		}
		time.Sleep(30 * time.Second)
		for l.Allow() {
		}
		if err := l.SetInstances(0, 1); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Second)
		for l.Allow() {
		}
		admits("a larger part", time.Second)
		if err := l.SetTotal(limit.Rate{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		for l.Allow() {
		}
		if err := l.Set(split.Terms{Total: limit.PerSecond(10), Part: split.Instance(0, 1), From: time.Now().Add(time.Minute)}); err != nil {
			t.Fatal(err)
		}
		admits("terms to come", time.Minute+100*time.Millisecond)
		// Somebody waits for three; meanwhile nobody else has anything, and afterwards they do.
		if err := l.Set(split.Terms{Total: limit.PerSecond(10), Part: split.Instance(0, 1), Burst: 3}); err != nil {
			t.Fatal(err)
		}
		for l.Allow() {
		}
		let := false
		l.WaitFunc(3, limit.Never, func(err error) { let = err == nil })
		for range 2 {
			time.Sleep(100 * time.Millisecond)
			if l.Allow() || l.AllowN(time.Now(), 1) || l.Remaining() != 0 {
				t.Error("somebody passes who waits")
			}
		}
		time.Sleep(100 * time.Millisecond)
		synctest.Wait()
		if !let {
			t.Error("three have come, and it still waits")
		}
		admits("nobody waits", 100*time.Millisecond)
	})
}

// TestCostsThatNeverFit: they are told so, when they come and when a change of the burst
// makes them so, blocking or called; those behind them are served.
func TestCostsThatNeverFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		terms := split.Terms{Total: limit.PerSecond(10), Part: split.Instance(0, 1), Burst: 4}
		l := newLimiter(t, terms, split.Options{Name: "provider"})
		for l.Allow() {
		}
		var direct error
		if cancel := l.WaitFunc(5, limit.Never, func(err error) { direct = err }); cancel() {
			t.Error("one who was told gives up")
		}
		if !errors.Is(direct, limit.ErrExceedsQuota) || !strings.Contains(direct.Error(), `5 is above the 4 that this part of "provider" admits`) {
			t.Errorf("5 of a burst of 4: %v", direct)
		}
		if err := l.WaitN(t.Context(), 5); !errors.Is(err, limit.ErrExceedsQuota) {
			t.Errorf("5 of a burst of 4: %v", err)
		}
		results := make(chan error, 4)
		var order []int
		l.WaitFunc(4, limit.Never, func(err error) { results <- err })
		l.WaitFunc(1, limit.Never, func(err error) {
			if err == nil {
				order = append(order, 1)
			}
		})
		go func() { results <- l.WaitN(t.Context(), 3) }()
		synctest.Wait()
		l.WaitFunc(2, limit.Never, func(err error) {
			if err == nil {
				order = append(order, 2)
			}
		})
		terms.Burst = 2
		if err := l.Set(terms); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		for range 2 {
			if err := <-results; !errors.Is(err, limit.ErrExceedsQuota) {
				t.Errorf("above the new burst: %v", err)
			}
		}
		time.Sleep(300 * time.Millisecond)
		synctest.Wait()
		if !slices.Equal(order, []int{1, 2}) {
			t.Errorf("let go: %v, want those of 1 and 2", order)
		}
		// All who wait together ask for no more than can be counted.
		if err := l.SetTotal(limit.Rate{}); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Hour)
		var cancels []func() bool
		var errs []error
		for range 3 {
			cancels = append(cancels, l.WaitFunc(math.MaxInt64/2, limit.Never, func(err error) { errs = append(errs, err) }))
		}
		for _, err := range errs {
			if !errors.Is(err, limit.ErrExceedsQuota) {
				t.Errorf("a large sum: %v", err)
			}
		}
		if len(errs) == 0 {
			t.Error("a sum above what can be counted was taken")
		}
		for _, cancel := range cancels {
			cancel()
		}
	})
}

// TestBoundsOfTerms: the largest sum of weights, the first and the last moment of a change,
// and the usual burst, are what their comments say.
func TestBoundsOfTerms(t *testing.T) {
	if p, err := split.Weighted(1, 65535, 1); err != nil || p != (split.Part{First: 65535, Weight: 1, Of: 65536}) {
		t.Errorf("a sum of 65,536: %+v, %v", p, err)
	}
	if _, err := split.Weighted(1, 65535, 2); err == nil {
		t.Error("a sum of 65,537 is taken")
	}
	good := split.Terms{Total: limit.PerSecond(10), Part: split.Instance(0, 1)}
	for at, ok := range map[time.Time]bool{
		time.Date(1969, 12, 31, 23, 59, 59, 0, time.UTC): false,
		time.Date(1970, 1, 1, 0, 0, 0, 0, time.UTC):      true,
		time.Date(2261, 12, 31, 0, 0, 0, 0, time.UTC):    true,
		time.Date(2262, 1, 1, 0, 0, 0, 0, time.UTC):      false,
	} {
		terms := good
		terms.From = at
		if _, err := split.New(terms, split.Options{}); (err == nil) != ok {
			t.Errorf("terms from %v on: %v", at, err)
		}
	}
	for rate, want := range map[int64]int64{1: 1, 100: 1, 200: 2, 1000: 10, 100_000: 1000} {
		synctest.Test(t, func(t *testing.T) {
			l := newLimiter(t, split.Terms{Total: limit.PerSecond(rate), Part: split.Instance(0, 1)}, split.Options{})
			time.Sleep(time.Minute)
			if got := l.Remaining(); got != want {
				t.Errorf("%d/s: %d are there after a minute, want 10 ms of the total, %d", rate, got, want)
			}
		})
	}
}
