package reserve

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stint-io/stint/limit"
)

// settle changes a reservation as change says, and settles its cost if that says so. The record is changed first: of
// several that settle one at a time one wins, and a process that dies in between leaves the reserved cost charged,
// which is too much and never too little of what was reserved.
func (b *Book) settle(ctx context.Context, id string, change func(*record) (bool, error)) (Reservation, error) {
	if id == "" || len(id) > 64 {
		return Reservation{}, ErrUnknown
	}
	ctx, cancel := alone(ctx)
	defer cancel()
	was, r, err := b.change(ctx, id, change)
	if r == nil || was == nil {
		if r == nil {
			return Reservation{}, err
		}
		return r.shown(id), err
	}
	parts := r.Parts
	if was.State == Expired && !r.Charge { // it was given back
		parts = slices.Clone(r.Parts)
		for i := range parts {
			parts[i].Cost = 0
		}
	}
	actual := r.Actual
	if r.State == Expired && r.Charge {
		actual = r.Reserved
	}
	return r.shown(id), errors.Join(err, b.taker.Settle(ctx, parts, r.Taken, actual))
}

// change replaces the record of a reservation, and returns it, and the one before; was nil = it stands as it did. r
// nil = it is not known how it stands. An error with a was says that it was changed, and may not be safe yet.
func (b *Book) change(ctx context.Context, id string, change func(*record) (bool, error)) (was, r *record, err error) {
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
			keep += time.Duration(r.Ends - limit.At(b.now()))
		}
		swapped, _, err := b.records.Swap(ctx, byID, id, old, value, max(keep, remembered))
		if err != nil {
			// It may have been changed without an answer: nobody else would settle it.
			if is, failed := b.records.Get(ctx, byID, id); failed != nil || !bytes.Equal(is, value) {
				return nil, nil, err
			}
			return was, r, err
		}
		if swapped {
			return was, r, nil
		}
	}
}
