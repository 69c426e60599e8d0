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

	"github.com/stint-io/stint/internal/seeding"
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

// after is how many tokens have to be due before a waiter for n is served.
func (c *counted) after(n int) int {
	for _, w := range c.line {
		n += w.n
	}
	return n - c.have
}

const every = 100 * time.Millisecond // a token comes

// queue is a limiter beside its count.
type queue struct {
	*counted
	t       *testing.T
	r       *rand.Rand
	seed    uint64
	l       *split.Limiter
	begin   time.Time
	got     map[int]time.Duration
	cancels map[int]func() bool
}

// TestQueueAgainstCount: without windows, waiters are served at the times that a naive count of
// tokens gives. Those that would be late, and no others, fail at once; the waiters behind one
// that gives up move up; and no request overtakes a waiter.
func TestQueueAgainstCount(t *testing.T) {
	for seed := range seeding.Draw(t, 100) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 7))
			c := &counted{burst: 1 + r.IntN(6), served: map[int]time.Duration{}}
			q := &queue{counted: c, t: t, r: r, seed: seed, begin: time.Now(), got: map[int]time.Duration{}, cancels: map[int]func() bool{}}
			q.l = newLimiter(t, split.Terms{Total: limit.PerSecond(10), Part: split.Instance(0, 1), Burst: int64(c.burst)}, split.Options{})
			q.l.Allow()
			pass := func() {
				time.Sleep(every / 2)
				c.tick(time.Since(q.begin))
				time.Sleep(every / 2)
				synctest.Wait()
			}
			time.Sleep(every / 2)
			for id := range 300 {
				q.step(id)
				synctest.Wait() // those who are called are called
				want := int64(c.have)
				if len(c.line) > 0 {
					want = 0
				}
				if remaining := q.l.Remaining(); remaining != want {
					t.Fatalf("seed %d, step %d: %d remain, count %+v", seed, id, remaining, c)
				}
				for range r.IntN(4) {
					pass()
				}
			}
			for len(c.line) > 0 {
				pass()
			}
			if len(q.got) != len(c.served) {
				t.Errorf("seed %d: %d were let go, want %d", seed, len(q.got), len(c.served))
			}
			for id, at := range c.served {
				if q.got[id] != at {
					t.Errorf("seed %d: %d was let go at %v, want %v", seed, id, q.got[id], at)
				}
			}
		})
	}
}

// step asks, waits or gives up, and wants what the count says.
func (q *queue) step(id int) {
	n := 1 + q.r.IntN(q.burst)
	kind := q.r.IntN(6)
	if kind == 2 {
		n = 1
	}
	fits := len(q.line) == 0 && n <= q.have
	got := fits
	switch kind {
	case 0:
		got = q.l.AllowN(time.Now(), int64(n))
	case 1:
		d, err := q.l.Take(q.t.Context(), limit.Request{Cost: int64(n)})
		if got = d.Allowed; err != nil || (d.Status == 429) == got {
			q.t.Errorf("seed %d, step %d: %+v, %v", q.seed, id, d, err)
		}
	case 2:
		got = q.l.Allow()
	case 3:
		if len(q.line) > 0 {
			i := q.r.IntN(len(q.line))
			if cancel := q.cancels[q.line[i].id]; !cancel() || cancel() {
				q.t.Errorf("seed %d, step %d: one who waits gives up once", q.seed, id)
			}
			q.line = slices.Delete(q.line, i, i+1)
			q.serve(time.Since(q.begin))
		}
		return
	default:
		q.wait(id, n, kind == 4)
		return
	}
	if got != fits {
		q.t.Fatalf("seed %d, step %d: kind %d of %d: %v, count %+v", q.seed, id, kind, n, got, q.counted)
	}
	if fits {
		q.have -= n
	}
}

// wait waits for n, and if bounded for a quarter of a token more or less than it takes.
func (q *queue) wait(id, n int, bounded bool) {
	longest, late := limit.Never, false
	if after := q.after(n); bounded && after > 0 {
		late = q.r.IntN(2) == 0
		longest = every/2 + time.Duration(after-1)*every + every/4
		if late {
			longest -= every / 2
		}
	}
	atOnce := late || len(q.line) == 0 && n <= q.have
	called := false
	q.cancels[id] = q.l.WaitFunc(int64(n), longest, func(err error) {
		called = true
		if (err != nil) != late || late && !errors.Is(err, limit.ErrWaitTooLong) {
			q.t.Errorf("seed %d, step %d: it waits %v for %d: %v", q.seed, id, longest, n, err)
		}
		if err == nil {
			q.got[id] = time.Since(q.begin)
		}
	})
	if called != atOnce {
		q.t.Errorf("seed %d, step %d: at once %v, late %v, count %+v", q.seed, id, called, late, q.counted)
	}
	if !late {
		q.line = append(q.line, waiter{id, n})
		q.serve(time.Since(q.begin))
	}
}

// TestChangeTellsWhoIsLate: when the total changes, waiters that cannot be served in time fail
// at that moment, and the others are served in time, in order.
func TestChangeTellsWhoIsLate(t *testing.T) {
	late, served := 0, 0
	for seed := range seeding.Draw(t, 50) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 8))
			l := newLimiter(t, split.Terms{Total: limit.PerSecond(10), Part: split.Instance(0, 1), Burst: 3}, split.Options{})
			for l.Allow() {
			}
			begin := time.Now()
			type wait struct {
				n       int
				longest time.Duration
				called  time.Duration
				err     error
			}
			waits := make([]wait, 8)
			for i := range waits {
				w := &waits[i]
				w.n, w.longest, w.called = 1+r.IntN(3), time.Duration(4+r.IntN(20))*time.Second, -1
				l.WaitFunc(int64(w.n), w.longest, func(err error) { w.called, w.err = time.Since(begin), err })
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
				case w.called < 0:
					t.Errorf("seed %d: %d was never called", seed, i)
				case w.err != nil:
					late++
					if !errors.Is(w.err, limit.ErrWaitTooLong) || w.called != change || turn < w.longest-time.Second {
						t.Errorf("seed %d: %d, which was due at %v of %v, was called %v at %v", seed, i, turn, w.longest, w.err, w.called)
					}
				default:
					served++
					ahead += w.n
					if w.called > w.longest || w.called < last || w.called < turn-time.Second || w.called > turn+time.Second {
						t.Errorf("seed %d: %d was let go at %v, after one at %v, and should be at %v of %v", seed, i, w.called, last, turn, w.longest)
					}
					last = w.called
				}
			}
		})
	}
	if late < 50 || served < 50 {
		t.Errorf("%d were late and %d served: the cases are one-sided", late, served)
	}
}

// TestAllowFollowsChanges: Allow, which remembers when the next token is due, follows changes of
// the terms and of the line.
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
		// While a waiter for three is in line, other requests are refused; afterwards they are
		// not.
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

// TestCostsThatNeverFit: they fail at once, on arrival and when a change of the burst makes them
// so, blocking or not; the waiters behind them are served.
func TestCostsThatNeverFit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		terms := split.Terms{Total: limit.PerSecond(10), Part: split.Instance(0, 1), Burst: 4}
		l := newLimiter(t, terms, split.Options{Name: "provider"})
		for l.Allow() {
		}
		var direct error
		if cancel := l.WaitFunc(5, limit.Never, func(err error) { direct = err }); cancel() {
			t.Error("a waiter that was called gave up")
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
		// The sum of the costs in line must not overflow.
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
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, split.Terms{Total: limit.Rate{Count: 1, Period: time.Nanosecond}, Part: split.Instance(0, 1)}, split.Options{})
		time.Sleep(time.Minute)
		if got := l.Remaining(); got != 10_000_000 {
			t.Errorf("one per nanosecond: %d are there after a minute, want 10 ms of the total", got)
		}
	})
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

// TestEveryVerbFollowsTheWallClock: after the wall clock has stepped, tokens are due by it
// again a minute later, at a millisecond for each second or two, whichever verb is used.
func TestEveryVerbFollowsTheWallClock(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for name, verb := range map[string]func(l *split.Limiter) bool{
		"Allow": func(l *split.Limiter) bool { return l.Allow() },
		"Take": func(l *split.Limiter) bool {
			d, err := l.Take(t.Context(), limit.Request{})
			return err == nil && d.Allowed
		},
		"WaitMax": func(l *split.Limiter) bool { return l.WaitMax(t.Context(), 0) == nil },
	} {
		for _, step := range []time.Duration{20 * time.Millisecond, -20 * time.Millisecond} {
			t.Run(name+step.String(), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					wall := &stepping{}
					l := newLimiter(t, split.Terms{Total: limit.PerSecond(1), Part: split.Instance(0, 1), Burst: 1}, split.Options{Wall: wall.now})
					time.Sleep(5 * time.Second)
					wall.off = step
					last, admitted := time.Duration(0), 0
					for range 60_000 {
						time.Sleep(time.Millisecond)
						if verb(l) {
							last = time.Duration(wall.now().UnixNano()) % time.Second
							admitted++
						}
					}
					if last > 2*time.Millisecond {
						t.Errorf("the last token came %v after a whole second of the wall clock", last)
					}
					if admitted < 59 || admitted > 61 {
						t.Errorf("%d were admitted in a minute", admitted)
					}
				})
			})
		}
	}
}

// TestTooManyChangesAhead: fifteen changes may be ahead; one more is an error and changes
// nothing.
func TestTooManyChangesAhead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(t, split.Terms{Total: limit.PerSecond(10), Part: split.Instance(0, 1)}, split.Options{})
		set := func(i int) error {
			return l.Set(split.Terms{Total: limit.PerSecond(int64(i)), Part: split.Instance(0, 1), From: time.Now().Add(time.Duration(i) * time.Hour)})
		}
		for i := range 15 {
			if err := set(i + 1); err != nil {
				t.Fatalf("change %d: %v", i+1, err)
			}
		}
		if err := set(16); err == nil || !strings.HasPrefix(err.Error(), "split: ") {
			t.Errorf("change 16: %v", err)
		}
		if got := l.Terms().Total; got != limit.PerSecond(15) {
			t.Errorf("%v after a change that was refused", got)
		}
	})
}
