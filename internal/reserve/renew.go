package reserve

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stint-io/stint/limit"
)

// Renew says what was used of a reservation so far, and has it live for another ttl from now (0 = as long as it was
// made for). When the ttl ends, used stays charged and the rest comes back. A caller that renews before it uses more loses
// nothing by a crash, except that its last piece may be charged and not used. Used above what is reserved is
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
	by := ""
	was, r, err := b.change(ctx, id, func(r *record) (bool, error) {
		by = ""
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
		r.Over = min(r.Over+max(used-r.Reserved, 0), limit.MaxCount)
		r.Used, r.Told, r.Reserved = used, true, max(r.Reserved, used)
		by = r.owe(limit.At(b.now()), used)
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
	if was != nil {
		err = errors.Join(err, b.charge(ctx, id, by, r))
	}
	if err == nil && r.overdue(limit.At(b.now())) {
		_, err = b.chargeLeft(ctx, id)
	}
	return r.shown(id), err
}
