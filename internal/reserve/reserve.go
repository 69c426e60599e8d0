package reserve

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Reserve takes the cost of req, an estimate, for as long as ttl (0 = [DefaultTTL]). The Decision may refuse; then
// nothing was taken, and there is no reservation. An estimate above what a limit can ever admit is clamped to that:
// it would never be admitted, not even when nothing was used. A cost of 0 is estimated; see [Book.Learn]. charge says
// that what is reserved stays charged when its time is over, for budgets of money: a caller that died may have spent it.
// It says nothing once [Book.Renew] has said what was used.
func (b *Book) Reserve(ctx context.Context, req limit.Request, ttl time.Duration, charge bool) (Reservation, limit.Decision, error) {
	if ttl == 0 {
		ttl = DefaultTTL
	}
	if err := checkTTL(ttl); err != nil {
		return Reservation{}, limit.Decision{}, err
	}
	g, err := b.guess(&req)
	if err != nil {
		return Reservation{}, limit.Decision{}, err
	}
	ctx, cancel := alone(ctx)
	defer cancel()
	now := limit.At(b.now()) // before it is taken: a window that begins in between gets nothing back
	id := rand.Text()
	d, parts, cost, err := b.take(ctx, id, &req, g, now, ttl)
	if err != nil || !d.Allowed {
		return Reservation{}, d, err
	}
	return b.opened(ctx, id, d, &record{
		State: Open, Parts: parts, Taken: now, Ends: now.Add(ttl), TTL: ttl, Reserved: cost, Clamped: cost < req.Cost, Charge: charge,
		Of: g.of, Estimate: g.shown,
	})
}

// ReserveDescriptors is Reserve for descriptors in Envoy's form, which have one cost, from 1. It estimates nothing.
func (b *Book) ReserveDescriptors(ctx context.Context, domain string, descriptors []engine.Descriptor, cost int64, ttl time.Duration) (Reservation, limit.Decision, error) {
	if err := checkTTL(ttl); err != nil {
		return Reservation{}, limit.Decision{}, err
	}
	if cost < 1 || cost > limit.MaxCount {
		return Reservation{}, limit.Decision{}, fmt.Errorf("reserve: %w: cost is %d, want 1 to %d", ErrBad, cost, int64(limit.MaxCount))
	}
	ctx, cancel := alone(ctx)
	defer cancel()
	now := limit.At(b.now())
	d, parts, taken, err := b.taker.TakeDescriptors(ctx, domain, descriptors, cost)
	if err != nil || !d.Allowed {
		return Reservation{}, d, err
	}
	return b.opened(ctx, rand.Text(), d, &record{State: Open, Parts: parts, Taken: now, Ends: now.Add(ttl), TTL: ttl, Reserved: taken, Clamped: taken < cost})
}

// opened keeps a reservation whose cost is taken, or gives that back.
func (b *Book) opened(ctx context.Context, id string, d limit.Decision, r *record) (Reservation, limit.Decision, error) {
	if unknown, err := b.keep(ctx, id, r); err != nil {
		b.forget(id)
		return Reservation{}, limit.Decision{}, errors.Join(err, b.abandon(ctx, id, r, unknown))
	}
	return r.shown(id), d, nil
}

// keep writes a new reservation, its end first: an end without a reservation is passed over. unknown = the
// reservation may have been written in spite of the error.
func (b *Book) keep(ctx context.Context, id string, r *record) (unknown bool, err error) {
	err = b.list(ctx, id, r)
	var value []byte
	if err == nil {
		value, err = json.Marshal(r)
	}
	if err == nil {
		_, _, err = b.records.Swap(ctx, byID, id, nil, value, unswept)
		unknown = errors.Is(err, store.ErrUnavailable)
	}
	if err != nil {
		return unknown, fmt.Errorf("reserve: it cannot be kept: %w", err)
	}
	return false, nil
}

// abandon gives back what was reserved under an ID that nobody will know. unknown = the record may have been written,
// or may be yet: one that is ended takes its place, so that it is given back once.
func (b *Book) abandon(ctx context.Context, id string, r *record, unknown bool) error {
	if unknown {
		ended := *r
		ended.State = Released
		value, err := json.Marshal(&ended)
		if err != nil {
			return err
		}
		swapped, _, err := b.records.Swap(ctx, byID, id, nil, value, remembered)
		if err != nil {
			return nil // it stays charged, or the sweep gives it back: too much, and never too little
		}
		if !swapped {
			_, err = b.Release(ctx, id)
			return err
		}
	}
	return b.taker.Settle(ctx, r.Parts, r.Taken, r.Taken, 0)
}

// Commit makes the actual cost of a reservation known. What is above the reserved cost is charged even if it does
// not fit; what is below comes back. The same commit again changes nothing, and answers the same; another one is an
// error that wraps [ErrSettled]. After the end of the reservation what was released then is charged again: it was spent.
func (b *Book) Commit(ctx context.Context, id string, actual int64) (Reservation, error) {
	if actual < 0 || actual > limit.MaxCount {
		return Reservation{}, fmt.Errorf("reserve: %w: the actual cost is %d, want 0 to %d", ErrBad, actual, int64(limit.MaxCount))
	}
	return b.settled(ctx, id, func(r *record) (settle bool, err error) {
		switch r.State {
		case Open, Expired:
			r.Late = r.State == Expired
			r.State, r.Actual = Committed, actual
			return true, nil
		case Committed:
			if r.Actual != actual {
				return false, fmt.Errorf("reserve: %w: it was committed with %d", ErrSettled, r.Actual)
			}
			return false, nil
		default:
			return false, fmt.Errorf("reserve: %w: it was released", ErrSettled)
		}
	})
}

// Release gives a reservation back, whatever a renewal has said was used: commit that where it counts. Again, and after
// its end, it changes nothing; after a commit it is an error that wraps [ErrSettled].
func (b *Book) Release(ctx context.Context, id string) (Reservation, error) {
	return b.settled(ctx, id, func(r *record) (bool, error) {
		switch r.State {
		case Open:
			r.State = Released
			return true, nil
		case Committed:
			return false, fmt.Errorf("reserve: %w: it was committed with %d", ErrSettled, r.Actual)
		default:
			return false, nil
		}
	})
}
