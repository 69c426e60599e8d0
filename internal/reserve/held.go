package reserve

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"

	"github.com/stint-io/stint/limit"
)

// Held returns how much open reservations hold of a key of the counter of that ID: it counts as used, and comes
// back by itself. It reads every open reservation.
func (b *Book) Held(ctx context.Context, counter string, key []byte) (sum int64, err error) {
	err = b.holders(ctx, counter, key, func(_ string, r *record, part int) error {
		sum = min(sum+r.Parts[part].Cost, limit.MaxCount)
		return nil
	})
	return sum, err
}

// Forget makes open reservations hold nothing of a key that has been reset: nothing comes back that is gone. What
// they commit is charged in whole. It reads every open reservation.
func (b *Book) Forget(ctx context.Context, counter string, key []byte) error {
	return b.holders(ctx, counter, key, func(id string, _ *record, _ int) error {
		_, _, err := b.change(ctx, id, func(r *record) (changed bool, err error) {
			for i := range r.Parts {
				if p := &r.Parts[i]; r.State == Open && p.ID == counter && p.Cost > 0 && bytes.Equal(p.Key, key) {
					p.Cost, changed = 0, true
				}
			}
			return changed, nil
		})
		if errors.Is(err, ErrUnknown) {
			return nil
		}
		return err
	})
}

// holders calls see with each part of an open reservation that holds something of a key.
func (b *Book) holders(ctx context.Context, counter string, key []byte, see func(id string, r *record, part int) error) error {
	for after := ""; ; {
		ends, err := b.records.Range(ctx, byEnd, "", after, sweepMost)
		if err != nil {
			return err
		}
		for _, e := range ends {
			after = e.Key
			id := id(e.Key)
			raw, err := b.records.Get(ctx, byID, id)
			if err != nil {
				return err
			}
			r := new(record)
			if raw == nil || json.Unmarshal(raw, r) != nil || r.State != Open || endKey(r.Due, id) != e.Key {
				continue
			}
			for i := range r.Parts {
				if p := &r.Parts[i]; p.ID == counter && p.Cost > 0 && bytes.Equal(p.Key, key) {
					if err := see(id, r, i); err != nil {
						return err
					}
				}
			}
		}
		if len(ends) < sweepMost {
			return nil
		}
	}
}
