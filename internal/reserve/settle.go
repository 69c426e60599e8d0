package reserve

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
)

// settle changes a reservation as change says, and settles its cost if that says so. The record is changed first: of
// several that settle one at a time one wins. A process that dies in between leaves the reserved cost charged, which is
// too much, and what is over as owed.
func (b *Book) settle(ctx context.Context, id string, change func(*record) (bool, error)) (*record, error) {
	by := ""
	was, r, err := b.change(ctx, id, func(r *record) (bool, error) {
		listed := r.State == Open
		settle, err := change(r)
		if settle && err == nil {
			now := limit.At(b.now())
			if by = r.owe(now, r.charged()); by != "" && !listed { // the sweep has to find it
				_, _, err = b.records.Swap(ctx, byEnd, endKey(now.Add(overdue), id), nil, []byte{1}, unswept)
			}
			r.hold(r.charged())
		}
		return settle, err
	})
	if was == nil {
		if err == nil && r.overdue(limit.At(b.now())) {
			r, err = b.chargeLeft(ctx, id)
		}
		return r, err
	}
	rest := slices.DeleteFunc(slices.Clone(was.Parts), func(p engine.Part) bool {
		return p.Permit == 0 && (p.Cost < r.charged() || was.Over > mostReturned)
	})
	return r, errors.Join(err, b.charge(ctx, id, by, r), b.taker.Settle(ctx, rest, r.Taken, limit.At(b.now()), r.charged()))
}

// settled is settle for a caller.
func (b *Book) settled(ctx context.Context, id string, change func(*record) (bool, error)) (Reservation, error) {
	ctx, cancel := alone(ctx)
	defer cancel()
	r, err := b.settle(ctx, id, change)
	if r == nil {
		return Reservation{}, err
	}
	return r.shown(id), err
}

// charged is what stays charged of a reservation that has ended.
func (r *record) charged() int64 {
	switch {
	case r.State == Committed:
		return r.Actual
	case r.State == Expired && r.Told:
		return r.Used
	case r.State == Expired && r.Charge:
		return r.Reserved
	default:
		return 0
	}
}

// hold makes each part what is charged of it from now on. A part of a limit of requests in flight has no cost. What can
// never be settled again needs no parts, and many are remembered.
func (r *record) hold(cost int64) {
	if r.State == Committed || r.State == Released {
		r.Parts, r.Of = nil, nil
		return
	}
	for i := range r.Parts {
		if p := &r.Parts[i]; p.Permit == 0 {
			p.Cost = cost
		}
	}
}

// change replaces the record of a reservation, and returns it, and the one before; was nil = it stands as it did. r
// nil = it is not known how it stands. An error with a was says that it was changed, and may not be safe yet.
func (b *Book) change(ctx context.Context, id string, change func(*record) (bool, error)) (was, r *record, err error) {
	if id == "" || len(id) > 64 {
		return nil, nil, ErrUnknown
	}
	for {
		old, err := b.records.Get(ctx, byID, id)
		if err != nil {
			return nil, nil, err
		}
		if old == nil {
			return nil, nil, ErrUnknown
		}
		was, r := new(record), new(record)
		if err := json.Unmarshal(old, was); err != nil {
			return nil, nil, fmt.Errorf("reserve: the record of a reservation cannot be read: %w", err)
		}
		*r = *was
		r.Parts = slices.Clone(was.Parts)
		if changed, err := change(r); err != nil || !changed {
			return nil, r, err
		}
		r.By = rand.Text()
		value, err := json.Marshal(r)
		if err != nil {
			return nil, nil, err
		}
		keep := remembered
		if r.State == Open || len(r.Owes) > 0 {
			keep = unswept
		}
		swapped, _, err := b.records.Swap(ctx, byID, id, old, value, keep)
		if err != nil {
			// It may have been changed without an answer: nobody else would settle it.
			if is, failed := b.records.Get(ctx, byID, id); failed != nil || !bytes.Equal(is, value) {
				return nil, nil, err
			}
			b.changed(id, was, r)
			return was, r, err
		}
		if swapped {
			b.changed(id, was, r)
			return was, r, nil
		}
	}
}
