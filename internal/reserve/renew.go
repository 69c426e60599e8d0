package reserve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
)

// Renew says what was used of a reservation so far, and has it live for another ttl from now (0 = as long as it was
// made for). When its time is over, what was used stays charged and the rest comes back. Whoever says so before it uses
// what it says loses nothing when it crashes: at most that last piece was not used. Used above what is reserved is
// charged at once, whether it fits or not, and the reservation holds that from then on (Extended).
//
// Less than an earlier renewal has said changes nothing: it is one that was late on its way. So does the same again,
// but for the end, which never comes nearer. A renewal after the end opens the reservation again with what was used,
// and no more (Late). After a commit or a release it is an error that wraps [ErrSettled].
func (b *Book) Renew(ctx context.Context, id string, used int64, ttl time.Duration) (Reservation, error) {
	if used < 0 || used > limit.MaxCount {
		return Reservation{}, fmt.Errorf("reserve: %w: used is %d, want 0 to %d", ErrBad, used, int64(limit.MaxCount))
	}
	if ttl != 0 {
		if err := checkTTL(ttl); err != nil {
			return Reservation{}, err
		}
	}
	ctx, cancel := alone(ctx)
	defer cancel()
	was, r, err := b.change(ctx, id, func(r *record) (bool, error) {
		switch {
		case r.State == Committed:
			return false, fmt.Errorf("reserve: %w: it was committed with %d", ErrSettled, r.Actual)
		case r.State == Released:
			return false, fmt.Errorf("reserve: %w: it was released", ErrSettled)
		case r.Told && used < r.Used:
			return false, nil
		}
		if ttl != 0 {
			r.TTL = ttl
		}
		r.Ends = max(r.Ends, limit.At(b.now()).Add(r.TTL))
		r.Extended = r.Extended || used > r.Reserved
		if r.State == Expired {
			r.Reserved = r.charged()
			r.State, r.Late = Open, true
			if err := b.list(ctx, id, r); err != nil {
				return false, err
			}
		}
		r.Used, r.Told, r.Reserved = used, true, max(r.Reserved, used)
		for i := range r.Parts {
			if p := &r.Parts[i]; p.Permit == 0 {
				p.Cost = max(p.Cost, used)
			}
		}
		return true, nil
	})
	if r == nil {
		return Reservation{}, err
	}
	if was == nil {
		return r.shown(id), err
	}
	return r.shown(id), errors.Join(err, b.extend(ctx, was, r))
}

// extend charges what each part holds more than before: all these hold what was used.
func (b *Book) extend(ctx context.Context, was, r *record) error {
	var parts []engine.Part
	for i := range r.Parts {
		if was.Parts[i].Cost < r.Parts[i].Cost {
			parts = append(parts, was.Parts[i])
		}
	}
	if len(parts) == 0 {
		return nil
	}
	return b.taker.Settle(ctx, parts, r.Taken, r.Used)
}
