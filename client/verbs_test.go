package client

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// verbs is what a Limiter of a lease has in common with one in this process.
type verbs interface {
	limit.Taker
	Allow() bool
	AllowN(t time.Time, n int64) bool
	Remaining() int64
	WaitN(ctx context.Context, n int64) error
	WaitMaxN(ctx context.Context, n int64, d time.Duration) error
	WaitFunc(n int64, d time.Duration, done func(error)) (cancel func() bool)
}

// reserved is what a Reservation of each has in common.
type reserved interface {
	OK() bool
	DelayFrom(t time.Time) time.Duration
	Cancel() bool
}

// subject is a Limiter that is asked.
type subject struct {
	verbs
	reserve func(t time.Time, n int64) reserved
}

// lentAll returns a Limiter that is lent a whole limit, and has no network.
func lentAll(tb testing.TB, rate, burst int64) *Limiter {
	l := leased(tb, fixed.Whole(rate), burst)
	st := *l.lease.state.Load()
	st.Held = lease.Capacity{Rate: fixed.Whole(rate), Burst: fixed.Whole(burst)}
	l.lease.state.Store(&st)
	return l
}

// history notes what a Limiter answers, and when.
type history struct {
	begin time.Time
	mu    sync.Mutex
	lines []string
}

func (h *history) note(format string, args ...any) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lines = append(h.lines, fmt.Sprintf("%v: ", time.Since(h.begin))+fmt.Sprintf(format, args...))
}

// taken returns what was noted, in an order that does not depend on who ran first.
func (h *history) taken() []string {
	h.mu.Lock()
	defer h.mu.Unlock()
	lines := h.lines
	h.lines = nil
	slices.Sort(lines)
	return lines
}

// class is what callers branch on.
func class(err error) string {
	var out []string
	for _, one := range []error{limit.ErrNegativeCost, limit.ErrExceedsQuota, limit.ErrWaitTooLong, context.DeadlineExceeded, context.Canceled} {
		if errors.Is(err, one) {
			out = append(out, one.Error())
		}
	}
	if len(out) == 0 && err != nil {
		return err.Error()
	}
	return fmt.Sprint(out)
}

// operate does to a Limiter what r says, in a bubble of its own, and returns its history.
func operate(t *testing.T, make func(t *testing.T) subject, seed uint64, waits bool) (steps [][]string) {
	synctest.Test(t, func(t *testing.T) {
		l := make(t)
		r := rand.New(rand.NewPCG(seed, 5))
		h := &history{begin: time.Now()}
		var cancels []func() bool
		var reservations []reserved
		var wg sync.WaitGroup
		for id := range 150 {
			time.Sleep(time.Duration(r.IntN(4)*r.IntN(80)) * time.Millisecond)
			// Between those at which tokens come: what happens in one moment has no order.
			n, d := int64(r.IntN(8)-1), time.Duration(r.IntN(1200)-50)*time.Millisecond+500*time.Microsecond
			op := r.IntN(10)
			if !waits {
				op = r.IntN(6)
				if op == 4 {
					op = 10
				}
			}
			switch op {
			case 0:
				h.note("Allow %v", l.Allow())
			case 1:
				h.note("AllowN %d %v", n, l.AllowN(time.Now(), n))
			case 2, 3:
				d, err := l.Take(t.Context(), limit.Request{Cost: n, Peek: op == 3})
				h.note("Take %d %v %s", n, op == 3, class(err))
				if err == nil {
					res := d.Results[0]
					h.note("%v %v %d of %d per %v, %v again %v", d.Allowed, res.Reason, res.Remaining, res.Quota, res.Window, d.Status, res.Cost)
					if !waits {
						h.note("retry %v, reset %v", res.RetryAfter, res.ResetAfter)
					}
				}
			case 4:
				if len(cancels) > 0 {
					h.note("cancel %v", cancels[r.IntN(len(cancels))]())
				}
			case 5:
				h.note("Remaining %d", l.Remaining())
			case 6:
				if r.IntN(3) == 0 {
					d = limit.Never
				}
				cancels = append(cancels, l.WaitFunc(n, d, func(err error) { h.note("WaitFunc %d %s", id, class(err)) }))
			case 7:
				wg.Go(func() { h.note("WaitMaxN %d %s", id, class(l.WaitMaxN(t.Context(), n, d))) })
			case 8:
				ctx, cancel := context.WithTimeout(t.Context(), d.Abs())
				wg.Go(func() {
					defer cancel()
					h.note("WaitN %d %s", id, class(l.WaitN(ctx, n)))
				})
			case 9:
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(d.Abs(), cancel)
				wg.Go(func() { h.note("WaitN, given up, %d %s", id, class(l.WaitN(ctx, n))) })
			case 10:
				reservations = append(reservations, l.reserve(time.Now(), n))
				for _, v := range reservations[max(0, len(reservations)-3):] {
					h.note("Reservation %v, in %v, or %v", v.OK(), v.DelayFrom(time.Now()), v.DelayFrom(time.Now().Add(d)))
				}
			}
			synctest.Wait()
			steps = append(steps, h.taken())
		}
		wg.Wait()
		time.Sleep(time.Minute)
		synctest.Wait()
		steps = append(steps, h.taken())
	})
	return steps
}

// TestVerbsAreThoseOfALimiter: of the same requests a lease of a whole limit decides what a
// Limiter in this process decides, to the nanosecond: who is admitted and when, in what
// order, what is refused and why, what remains and when to try again.
func TestVerbsAreThoseOfALimiter(t *testing.T) {
	for seed := range seeding.Draw(t, 20) {
		r := rand.New(rand.NewPCG(seed, 9))
		rate, burst := []int64{1, 2, 4, 5, 10, 20}[r.IntN(6)], int64(1+r.IntN(6)) // whole nanoseconds for each token
		waits := seed%3 > 0
		want := operate(t, func(t *testing.T) subject {
			l := local(t, limit.PerSecond(rate), burst)
			return subject{l, func(at time.Time, n int64) reserved { return l.ReserveN(at, n) }}
		}, seed, waits)
		got := operate(t, func(t *testing.T) subject {
			l := lentAll(t, rate, burst)
			return subject{l, func(at time.Time, n int64) reserved { return l.ReserveN(at, n) }}
		}, seed, waits)
		for i := range want {
			if !slices.Equal(got[i], want[i]) {
				t.Fatalf("seed %d, %d/s, burst %d, step %d: a lease answers\n%q\na limiter\n%q", seed, rate, burst, i, got[i], want[i])
			}
		}
	}
}
