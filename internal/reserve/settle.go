package reserve

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
)

// settle changes a reservation as change says, and settles its cost if that says so. The record is changed first: of
// several that settle one at a time one wins, and a process that dies in between leaves the reserved cost charged,
// which is too much and never too little of what was reserved.
func (b *Book) settle(ctx context.Context, id string, change func(*record) (bool, error)) (Reservation, error) {
	ctx, cancel := alone(ctx)
	defer cancel()
	was, r, err := b.change(ctx, id, func(r *record) (bool, error) {
		settle, err := change(r)
		if settle && err == nil {
			r.hold(r.charged())
		}
		return settle, err
	})
	if r == nil || was == nil {
		if r == nil {
			return Reservation{}, err
		}
		return r.shown(id), err
	}
	return r.shown(id), errors.Join(err, b.taker.Settle(ctx, was.Parts, r.Taken, r.charged()))
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

// hold makes each part what is charged of it from now on. A part of a limit of requests in flight has no cost.
func (r *record) hold(cost int64) {
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
		if r.State == Open {
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
