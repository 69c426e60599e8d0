package split

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/stint-io/stint/internal/partition"
	"github.com/stint-io/stint/limit"
)

// Part is the part of a limit that an instance has: Weight of Of units, from unit First on.
// Parts of instances must not overlap, and all must have the same Of. A part of weight 0 admits
// nothing. The zero value is invalid; [Instance] and [Weighted] make parts.
type Part struct {
	First, Weight, Of int64
}

// Instance is the part of one of several equal instances; the first has index 0. It is invalid
// when index is not below instances.
func Instance(index, instances int) Part {
	return Part{First: int64(index), Weight: 1, Of: int64(instances)}
}

// Weighted is the part of the instance with that index among instances with weights. Weights are
// at least 0 and not all 0; their sum, divided by their greatest common divisor, is at most
// 65,536.
func Weighted(index int, weights ...int64) (Part, error) {
	if index < 0 || index >= len(weights) {
		return Part{}, fmt.Errorf("split: instance %d of %d weights: want an index from 0 to %d", index, len(weights), len(weights)-1)
	}
	common := int64(0)
	for i, w := range weights {
		if w < 0 {
			return Part{}, fmt.Errorf("split: the weight of instance %d is %d, want at least 0", i, w)
		}
		for a := w; a != 0; {
			common, a = a, common%a
		}
	}
	if common == 0 {
		return Part{}, errors.New("split: all weights are 0: nobody would own the limit")
	}
	var p Part
	for i, w := range weights {
		w /= common
		if w > partition.MaxUnits || p.Of+w > partition.MaxUnits {
			return Part{}, fmt.Errorf("split: weights have a sum above %d, even divided by %d: use rounder ones", partition.MaxUnits, common)
		}
		if i < index {
			p.First += w
		} else if i == index {
			p.Weight = w
		}
		p.Of += w
	}
	return p, nil
}

// Terms are what an instance has to know about the limit. The zero value is invalid: it has no
// part.
type Terms struct {
	// Total is the rate of the whole limit, at most one per nanosecond. The zero rate
	// admits nothing.
	Total limit.Rate

	// Part is this instance's part.
	Part Part

	// Burst is what the whole fleet may admit on top of the rate within any interval, in
	// tokens: an unused token expires once Burst further tokens of the whole limit are due. An
	// instance has its part of that, so a cost above its part is never admitted; a cost of 1
	// always can be. 0 = 10 ms of the total, at least 1; with windows, the whole window. With
	// less than 10 ms, tokens expire while the timer that serves a waiter is late. With more,
	// the limited API sees larger bursts. For callers that do not wait, a second or more may be
	// right: their requests arrive at any time, not when a token is due.
	Burst int64

	// From is when, by the wall clock, the terms come into force; zero = at once. If all
	// instances know the terms before that time, not one token too many or too few is admitted.
	// See [Limiter.Set].
	From time.Time
}

// usualBurst is 10 ms of r, at least 1.
func usualBurst(r limit.Rate) int64 {
	const usual = float64(10 * time.Millisecond)
	if r.Period <= 0 {
		return 1
	}
	return int64(min(max(usual*float64(r.Count)/float64(r.Period), 1), limit.MaxCount))
}

// shared returns t as terms of package partition.
func (t Terms) shared(window time.Duration) (terms partition.Terms, from limit.Time, err error) {
	terms = partition.Terms{Total: t.Total, Part: partition.Part(t.Part), Burst: t.Burst}
	if t.Burst == 0 && window == 0 {
		terms.Burst = usualBurst(t.Total)
	}
	if err := terms.Validate(limit.Time(window)); err != nil {
		return terms, 0, fmt.Errorf("split: %w", err)
	}
	if t.From.IsZero() {
		return terms, 0, nil
	}
	if year := t.From.UTC().Year(); year < 1970 || year > 2261 {
		return terms, 0, fmt.Errorf("split: terms from %v on: want a time from 1970 to 2261", t.From)
	}
	return terms, max(1, limit.At(t.From)), nil
}

// Set puts t in force from t.From on, for all tokens due then or later, and replaces all changes
// that were to begin then or later. Waiters are planned again at once, in their order, and are
// served by t, sooner or later than before: those that t cannot serve by their deadlines get
// [limit.ErrWaitTooLong], and those whose cost it never admits [limit.ErrExceedsQuota]. What was
// used stays used. Invalid terms, and more than 15 changes ahead, are an error and change
// nothing.
//
// If all instances know of a change before it begins, the fleet stays within the bound of the
// old terms before it and of the new ones after it; an interval across it may have one token
// more, for rounding. Otherwise some use the old terms while others use the new ones: between
// the first and the last instance to change, at most the refill of that time at the lower of the
// two rates is admitted on top.
func (l *Limiter) Set(t Terms) error {
	return l.change(func(u *Terms) { *u = t })
}

// SetTotal changes the total at once; see [Limiter.Set].
func (l *Limiter) SetTotal(r limit.Rate) error {
	return l.change(func(t *Terms) { t.Total = r })
}

// SetInstances makes this the instance with that index, from 0, of several equal ones, at once;
// see [Limiter.Set].
func (l *Limiter) SetInstances(index, instances int) error {
	if instances < 1 || index < 0 || index >= instances {
		return fmt.Errorf("split: instance %d of %d: want at least one instance, and an index below their number", index, instances)
	}
	return l.change(func(t *Terms) { t.Part = Instance(index, instances) })
}

// SetWeights makes this the instance with that index among instances with weights, at once; see
// [Weighted] and [Limiter.Set].
func (l *Limiter) SetWeights(index int, weights ...int64) error {
	p, err := Weighted(index, weights...)
	if err != nil {
		return err
	}
	return l.change(func(t *Terms) { t.Part = p })
}

// Terms returns the latest terms that were set, which may not be in force yet.
func (l *Limiter) Terms() Terms {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.terms
}

func (l *Limiter) change(edit func(*Terms)) error {
	l.mu.Lock()
	defer l.unlock()
	if l.origin.IsZero() {
		return errors.New("split: this Limiter was not made by New")
	}
	t := l.terms
	t.From = time.Time{}
	edit(&t)
	terms, from, err := t.shared(l.window)
	if err != nil {
		return err
	}
	now := l.now()
	l.followWall(now)
	l.settle(now)
	if err := l.split.Change(now, terms, from); err != nil {
		return fmt.Errorf("split: %w", err)
	}
	l.terms = t
	l.review(now)
	l.settle(now)
	l.arm(now)
	return nil
}

// never is the time that does not come.
const never limit.Time = math.MaxInt64
