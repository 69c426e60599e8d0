package reserve

import (
	"context"
	"errors"
	"time"

	"github.com/stint-io/stint/limit"
)

// Run releases reservations whose time is over, until ctx ends.
func (b *Book) Run(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	failing := false
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		err := b.Sweep(ctx)
		if err != nil && !failing && ctx.Err() == nil {
			b.log.Warn("reservations whose time is over cannot be released while the store does not answer; more of this is not logged until it does", "error", err)
		}
		failing = err != nil
	}
}

// Sweep ends the reservations whose time is over: what was not used is released. Several processes may do so at a time.
func (b *Book) Sweep(ctx context.Context) error {
	for {
		ends, err := b.records.Range(ctx, byEnd, "", "", sweepMost)
		if err != nil {
			return err
		}
		now := limit.At(b.now()) // once: the clock may be put back in between
		until := endKey(now, "~")
		for _, e := range ends {
			if e.Key > until {
				return nil
			}
			if err := b.end(ctx, e.Key, now); err != nil {
				return err
			}
			if _, _, err := b.records.Swap(ctx, byEnd, e.Key, e.Value, nil, 0); err != nil {
				return err
			}
		}
		if len(ends) < sweepMost {
			return nil
		}
	}
}

// end ends the reservation of a key of byEnd that is not after now, or lists it under its present end.
func (b *Book) end(ctx context.Context, key string, now limit.Time) error {
	ctx, cancel := alone(ctx)
	defer cancel()
	r, err := b.settle(ctx, id(key), func(r *record) (bool, error) {
		if r.State != Open || r.Ends > now {
			return false, nil
		}
		r.State = Expired
		return true, nil
	})
	if err == nil && r.State == Open {
		_, _, err = b.change(ctx, id(key), func(r *record) (bool, error) {
			if r.State != Open || r.Ends <= now || endKey(r.Due, id(key)) != key {
				return false, nil
			}
			return true, b.list(ctx, id(key), r)
		})
	}
	if err == nil && len(r.Owes) > 0 && !r.overdue(now) { // somebody charges it, or has died of it
		_, _, err = b.records.Swap(ctx, byEnd, endKey(now.Add(overdue), id(key)), nil, []byte{1}, unswept)
	}
	if errors.Is(err, ErrUnknown) {
		return nil
	}
	return err
}
