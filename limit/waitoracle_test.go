package limit

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/seeding"
)

// naive is the oracle of a limiter with waiters: it keeps what was taken and who waits, and
// plans all waiters again each time.
type naive struct {
	m     meter
	state ledger
	line  []naiveWaiter
	floor Time
	done  map[int]string
}

type naiveWaiter struct {
	who          int
	cost         int64
	from, latest Time
}

func (o *naive) end(w naiveWaiter, at Time, what string) {
	o.done[w.who] = fmt.Sprintf("%s at %d", what, at)
}

// pass lets go all whose time comes until now.
func (o *naive) pass(now Time) {
	for len(o.line) > 0 {
		w := o.line[0]
		take, act, ok := o.m.earliest(&o.state, max(w.from, o.floor), w.cost)
		if !ok || act > now {
			return
		}
		o.m.take(&o.state, take, w.cost)
		o.end(w, max(act, o.floor), "granted")
		o.line = o.line[1:]
	}
}

// plan returns when each waiter is served, and the ledger after all of them.
func (o *naive) plan(keep func(w naiveWaiter, act Time) bool) ledger {
	l := o.state.clone()
	left := o.line[:0:0]
	for _, w := range o.line {
		take, act, ok := o.m.earliest(&l, max(w.from, o.floor), w.cost)
		if keep != nil && !keep(w, act) {
			continue
		}
		left = append(left, w)
		if !ok {
			l.last = math.MaxInt64
			continue
		}
		o.m.take(&l, take, w.cost)
	}
	o.line = left
	return l
}

func (o *naive) join(now Time, w naiveWaiter) {
	o.pass(now)
	if w.cost > o.m.quota {
		o.end(w, now, "exceeds")
		return
	}
	l := o.plan(nil)
	if _, act, _ := o.m.earliest(&l, now, w.cost); act > w.latest {
		o.end(w, now, "too long")
		return
	}
	o.line = append(o.line, w)
	o.pass(now)
}

func (o *naive) cancel(now Time, who int) bool {
	o.pass(now)
	for i, w := range o.line {
		if w.who == who {
			if i == 0 {
				o.floor = now
			}
			o.line = slices.Delete(o.line, i, i+1)
			o.end(w, now, "cancelled")
			o.pass(now)
			return true
		}
	}
	return false
}

func (o *naive) set(now Time, p Policy) {
	o.pass(now)
	next := newMeter(p)
	o.state = next.convert(o.state, &o.m, now)
	o.m, o.floor = next, now
	o.line = slices.DeleteFunc(o.line, func(w naiveWaiter) bool {
		if w.cost > next.quota {
			o.end(w, now, "exceeds")
		}
		return w.cost > next.quota
	})
	o.pass(now)
	o.plan(func(w naiveWaiter, act Time) bool {
		if act > w.latest {
			o.end(w, now, "too long")
		}
		return act <= w.latest
	})
	o.pass(now)
}

// The limiter against the oracle: random policies, costs, bounds, cancels and changes
// of policy; every outcome and every time is the same to the nanosecond.
func TestHistoriesWaitFunc(t *testing.T) {
	t.Parallel()
	for seed := range seeding.Draw(t, max(1, histories(t)/20)) {
		synctest.Test(t, func(t *testing.T) {
			if err := waitFuncHistory(t, rand.New(rand.NewPCG(seed, 7))); err != nil {
				t.Fatalf("history %d: %v", seed, err)
			}
		})
	}
}

func randomPolicy(r *rand.Rand) Policy {
	count := 1 + r.Int64N(6)
	rate := Rate{count, time.Duration(1+r.Int64N(20)) * 10 * time.Millisecond}
	if r.IntN(4) == 0 {
		rate.Period += time.Duration(r.Int64N(7)) // ticks that are no nanoseconds
	}
	switch r.IntN(7) {
	case 0:
		return Policy{Algorithm: FixedWindow, Rate: rate}
	case 1:
		return Policy{Algorithm: FixedWindow, Rate: rate, Align: AlignFirstHit}
	case 2:
		return Policy{Algorithm: SlidingWindowLog, Rate: rate}
	case 3:
		return Policy{Algorithm: SlidingWindowCounter, Rate: rate}
	case 4:
		return Policy{Algorithm: LeakyBucket, Rate: rate, Burst: r.Int64N(5)}
	default:
		return bucketPolicy(rate, 1+r.Int64N(5))
	}
}

// waitFuncs is one history: the limiter and the oracle side by side.
type waitFuncs struct {
	t       *testing.T
	r       *rand.Rand
	p       Policy
	l       *Limiter
	o       *naive
	cancels map[int]func() bool

	mu     sync.Mutex
	got    map[int]string
	grants []int
}

func (h *waitFuncs) now() Time { return h.l.epoch.Add(time.Since(h.l.origin)) }

func waitFuncHistory(t *testing.T, r *rand.Rand) error {
	p := randomPolicy(r)
	h := &waitFuncs{
		t: t, r: r, p: p, l: newLimiter(t, p), cancels: map[int]func() bool{}, got: map[int]string{},
		o: &naive{m: newMeter(p), done: map[int]string{}},
	}
	unit := r.IntN(2) == 0
	const steps = 120
	for i := range steps {
		cost := int64(1)
		if !unit {
			cost += r.Int64N(4)
		}
		var err error
		switch r.IntN(12) {
		case 0, 1:
			<-time.After(time.Duration(r.Int64N(int64(100 * time.Millisecond))))
		case 2, 3, 4:
			if i > 0 {
				err = h.cancel(r.IntN(i))
			}
		case 5:
			if r.IntN(6) == 0 {
				err = h.set()
			}
		default:
			h.join(i, cost)
		}
		if err != nil {
			return fmt.Errorf("step %d: %w", i, err)
		}
		synctest.Wait()
	}
	for len(h.o.line) > 0 {
		<-time.After(time.Second)
		h.o.pass(h.now())
	}
	synctest.Wait()
	if !slices.IsSorted(h.grants) {
		return fmt.Errorf("out of order: %v", h.grants)
	}
	for who := range steps {
		if h.got[who] != h.o.done[who] {
			return fmt.Errorf("%+v: %d is %q, want %q", h.p, who, h.got[who], h.o.done[who])
		}
	}
	if l := h.l; len(l.slots) != 0 || l.cost != (fixed.Wide{}) || l.unplanned != (fixed.Wide{}) || l.waiting+l.pending != 0 {
		return fmt.Errorf("left behind: %d slots, cost %v, unplanned %v", len(l.slots), l.cost, l.unplanned)
	}
	return nil
}

func (h *waitFuncs) cancel(who int) error {
	cancel := h.cancels[who]
	if cancel == nil {
		return nil
	}
	if a, b := cancel(), h.o.cancel(h.now(), who); a != b {
		return fmt.Errorf("cancel of %d: %v, want %v", who, a, b)
	} else if a {
		h.note(who, "cancelled")
	}
	return nil
}

func (h *waitFuncs) set() error {
	if h.r.IntN(2) == 0 {
		h.p.Rate.Count = 1 + h.r.Int64N(8)
	} else {
		h.p = randomPolicy(h.r)
	}
	h.o.set(h.now(), h.p)
	return h.l.SetPolicy(h.p)
}

func (h *waitFuncs) join(i int, cost int64) {
	longest := Never
	switch h.r.IntN(4) {
	case 0:
		longest = time.Duration(h.r.Int64N(int64(400 * time.Millisecond)))
	case 1, 2: // to the nanosecond
		h.o.pass(h.now())
		after := h.o.plan(nil)
		if _, act, ok := h.o.m.earliest(&after, h.now(), cost); ok {
			longest = max(0, time.Duration(act-h.now())-time.Duration(h.r.IntN(2)))
		}
	}
	h.o.join(h.now(), naiveWaiter{i, cost, h.now(), h.now().Add(longest)})
	h.cancels[i] = h.l.WaitFunc(cost, longest, func(err error) {
		switch {
		case errors.Is(err, ErrWaitTooLong):
			h.note(i, "too long")
		case errors.Is(err, ErrExceedsQuota):
			h.note(i, "exceeds")
		default:
			h.note(i, "granted")
			h.grants = append(h.grants, i)
		}
	})
}

func (h *waitFuncs) note(who int, what string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.got[who] != "" {
		h.t.Errorf("%d is told twice: %s, %s", who, h.got[who], what)
	}
	h.got[who] = fmt.Sprintf("%s at %d", what, h.now())
}
