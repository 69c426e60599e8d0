package reserve

import (
	"context"
	"crypto/rand"
	"errors"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
)

// A reservation says what it is to be charged for beyond what it holds, before it is charged, and says so until it was:
// the store may fail in between, and whoever repeats the call, or the sweep, charges it then. It is charged once as long
// as the store answers; where an answer is lost it may be charged twice, which is too much, and never too little.

// overdue is how long what is owed is left to whoever has it to charge. Not shorter than a call lasts (answerWithin) and
// clocks of servers differ.
const overdue = time.Minute

// over are the parts that hold less than actual.
func over(parts []engine.Part, actual int64) (list []engine.Part) {
	for i := range parts {
		if p := &parts[i]; p.Permit == 0 && p.Cost < actual {
			list = append(list, *p)
		}
	}
	return list
}

// owe notes that the parts are to become actual as far as they are below it, and returns the ID of the change that charges them; "" = none is below.
func (r *record) owe(now limit.Time, actual int64) (by string) {
	parts := over(r.Parts, actual)
	if len(parts) == 0 {
		return ""
	}
	by = rand.Text()
	r.Owes = append(slices.Clip(r.Owes), owed{By: by, At: now, Parts: parts, Actual: actual})
	return by
}

// overdue reports whether something is owed that nobody is charging.
func (r *record) overdue(now limit.Time) bool {
	return slices.ContainsFunc(r.Owes, func(o owed) bool { return o.left(now) })
}

func (o *owed) left(now limit.Time) bool {
	return o.At == 0 || now >= o.At.Add(overdue) || o.At > now.Add(overdue)
}

// charge charges what a reservation owes by that name, and notes that it was.
func (b *Book) charge(ctx context.Context, id, by string, r *record) error {
	if by == "" {
		return nil
	}
	var failed error
	for i := range r.Owes {
		if o := &r.Owes[i]; o.By == by {
			failed = errors.Join(failed, b.taker.Settle(ctx, o.Parts, r.Taken, limit.At(b.now()), o.Actual))
		}
	}
	_, _, err := b.change(ctx, id, func(r *record) (changed bool, err error) {
		r.Owes = slices.Clone(r.Owes)
		for i := range r.Owes {
			if o := &r.Owes[i]; o.By == by {
				o.At, changed = 0, true
			}
		}
		if failed == nil {
			r.Owes = slices.DeleteFunc(r.Owes, func(o owed) bool { return o.By == by })
		}
		return changed, nil
	})
	if failed == nil {
		if err != nil {
			b.log.Warn("a reservation was charged and it cannot be noted: it may be charged again", "error", err)
		}
		return nil
	}
	// The next sweep tries again. Where that cannot be noted, the one at the end of the reservation does.
	if _, _, err := b.records.Swap(ctx, byEnd, endKey(limit.At(b.now()), id), nil, []byte{1}, unswept); err != nil {
		b.log.Warn("a reservation is charged later: the store does not answer", "error", failed)
	}
	return failed
}

// chargeLeft charges what a reservation owes and nobody is charging.
func (b *Book) chargeLeft(ctx context.Context, id string) (*record, error) {
	by := rand.Text()
	was, r, err := b.change(ctx, id, func(r *record) (changed bool, err error) {
		now := limit.At(b.now())
		r.Owes = slices.Clone(r.Owes)
		for i := range r.Owes {
			if o := &r.Owes[i]; o.left(now) {
				o.By, o.At, changed = by, now, true
			}
		}
		return changed, nil
	})
	if was == nil || err != nil {
		return r, err
	}
	return r, b.charge(ctx, id, by, r)
}
