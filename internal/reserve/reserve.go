// Package reserve takes a cost before it is known, and settles it when it is: reserve an estimate, commit the
// actual cost, or release it. What is over becomes debt, what is under comes back at once, and a reservation that
// nobody settles is released when its time is over. Each is settled once, whichever process is asked, however often.
//
// It speaks no protocol, and knows no limit.
package reserve

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// The times that a reservation may last.
const (
	DefaultTTL = time.Minute
	MinTTL     = time.Second
	MaxTTL     = time.Hour
)

const (
	// remembered is how long an ended reservation is known, for a commit that comes late or again.
	remembered = time.Hour
	// sweepEvery is how often reservations whose time is over are looked for. Not longer: what they hold is
	// missing to others. Not shorter: each server asks the store.
	sweepEvery = time.Second
	sweepMost  = 256
	// answerWithin bounds a call once it has begun. It goes on without its caller, who may have gone: what is half
	// done, nobody could finish.
	answerWithin = 10 * time.Second

	byID  = "reservations"
	byEnd = "reservationends" // keys are the end in hexadecimal, and the ID
)

// The errors that a caller can do something about.
var (
	// ErrUnknown is the error of an ID that nobody has given out, or that has ended long ago.
	ErrUnknown = errors.New("no such reservation: it was never made, or ended more than an hour ago")
	// ErrSettled is wrapped by the error of a call that contradicts an earlier one.
	ErrSettled = errors.New("the reservation is settled")
	// ErrBad is wrapped by the errors of values that no call takes.
	ErrBad = errors.New("bad request")
)

// State is what has become of a reservation.
type State string

// The states.
const (
	Open      State = "open"
	Committed State = "committed"
	Released  State = "released"
	Expired   State = "expired" // released because its time was over
)

// Taker takes and settles. [engine.Engine] is one.
type Taker interface {
	TakeParts(ctx context.Context, req limit.Request) (limit.Decision, []engine.Part, int64, error)
	Settle(ctx context.Context, parts []engine.Part, taken limit.Time, actual int64) error
}

// Book has the reservations of a store. It is safe for concurrent use; New makes it.
type Book struct {
	taker   Taker
	records store.Records
	log     *slog.Logger
	now     func() time.Time
}

// New returns the book of the reservations in records, which are where the counters are. now is the clock; nil =
// the system's.
func New(t Taker, records store.Records, log *slog.Logger, now func() time.Time) *Book {
	if now == nil {
		now = time.Now
	}
	return &Book{t, records, log, now}
}

// Reservation is one as a caller sees it.
type Reservation struct {
	ID       string
	State    State
	Reserved int64 // at most what was asked for: see Clamped
	Actual   int64 // if State is Committed
	// Clamped says that the estimate was above what the limits can ever admit, and that Reserved is that.
	Clamped bool
	// Late says that the commit came when the reservation had been released because its time was over, and that
	// the whole actual cost was charged then.
	Late bool
	Ends time.Time
}

// record is a reservation as it is kept.
type record struct {
	State    State
	Parts    []engine.Part
	Taken    limit.Time
	Ends     limit.Time
	Reserved int64
	Actual   int64
	Clamped  bool
	Late     bool
	Charge   bool // what is reserved stays charged when its time is over
	// By is different for each attempt to change the record, so that one whose answer was lost can be recognised.
	By string
}

func (r *record) shown(id string) Reservation {
	return Reservation{id, r.State, r.Reserved, r.Actual, r.Clamped, r.Late, time.Unix(0, int64(r.Ends))}
}

// Reserve takes the cost of req, an estimate, for as long as ttl (0 = [DefaultTTL]). The Decision may refuse; then
// nothing was taken, and there is no reservation. An estimate above what a limit can ever admit is clamped to that:
// it would never be admitted, not even when nothing was used. charge says that what is reserved stays charged when
// its time is over, for budgets of money: a caller that died may have spent it.
func (b *Book) Reserve(ctx context.Context, req limit.Request, ttl time.Duration, charge bool) (Reservation, limit.Decision, error) {
	if ttl == 0 {
		ttl = DefaultTTL
	}
	if ttl < MinTTL || ttl > MaxTTL {
		return Reservation{}, limit.Decision{}, fmt.Errorf("reserve: %w: ttl is %v, want %v to %v", ErrBad, ttl, MinTTL, MaxTTL)
	}
	if req.Cost < 1 || req.Cost > limit.MaxCount {
		return Reservation{}, limit.Decision{}, fmt.Errorf("reserve: %w: cost is %d, want 1 to %d", ErrBad, req.Cost, int64(limit.MaxCount))
	}
	ctx, cancel := alone(ctx)
	defer cancel()
	now := limit.At(b.now()) // before it is taken: a window that begins in between gets nothing back
	d, parts, cost, err := b.taker.TakeParts(ctx, req)
	if err != nil || !d.Allowed {
		return Reservation{}, d, err
	}
	r := record{State: Open, Parts: parts, Taken: now, Ends: now.Add(ttl), Reserved: cost, Clamped: cost < req.Cost, Charge: charge}
	id := rand.Text()
	if unknown, err := b.keep(ctx, id, &r, ttl); err != nil {
		return Reservation{}, limit.Decision{}, errors.Join(err, b.abandon(ctx, id, &r, unknown))
	}
	return r.shown(id), d, nil
}

// alone is ctx without its end: see answerWithin.
func alone(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
}

// keep writes a new reservation, its end first: an end without a reservation is passed over. unknown = the
// reservation may have been written in spite of the error.
func (b *Book) keep(ctx context.Context, id string, r *record, ttl time.Duration) (unknown bool, err error) {
	value, err := json.Marshal(r)
	if err == nil {
		_, _, err = b.records.Swap(ctx, byEnd, endKey(r.Ends, id), nil, []byte{1}, ttl+remembered)
	}
	if err == nil {
		_, _, err = b.records.Swap(ctx, byID, id, nil, value, ttl+remembered)
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
	return b.taker.Settle(ctx, r.Parts, r.Taken, 0)
}

func endKey(at limit.Time, id string) string { return fmt.Sprintf("%016x/%s", uint64(at), id) }

// Commit makes the actual cost of a reservation known. What is above the reserved cost is charged even if it does
// not fit; what is below comes back. The same commit again changes nothing, and answers the same; another one is an
// error that wraps [ErrSettled]. After the end of the reservation the whole actual cost is charged: it was spent.
func (b *Book) Commit(ctx context.Context, id string, actual int64) (Reservation, error) {
	if actual < 0 || actual > limit.MaxCount {
		return Reservation{}, fmt.Errorf("reserve: %w: the actual cost is %d, want 0 to %d", ErrBad, actual, int64(limit.MaxCount))
	}
	return b.settle(ctx, id, func(r *record) (settle bool, err error) {
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

// Release gives a reservation back. Again, and after its end, it changes nothing; after a commit it is an error
// that wraps [ErrSettled].
func (b *Book) Release(ctx context.Context, id string) (Reservation, error) {
	return b.settle(ctx, id, func(r *record) (bool, error) {
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

// Run releases reservations whose time is over, until ctx ends.
func (b *Book) Run(ctx context.Context) {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := b.Sweep(ctx); err != nil && ctx.Err() == nil {
			b.log.Warn("reservations whose time is over cannot be released yet", "error", err)
		}
	}
}

// Sweep releases the reservations whose time is over. Several processes may do so at a time.
func (b *Book) Sweep(ctx context.Context) error {
	for {
		ends, err := b.records.Range(ctx, byEnd, "", "", sweepMost)
		if err != nil {
			return err
		}
		now := fmt.Sprintf("%016x", uint64(limit.At(b.now())))
		for _, e := range ends {
			if e.Key[:16] > now {
				return nil
			}
			_, err := b.settle(ctx, e.Key[17:], func(r *record) (bool, error) {
				if r.State != Open {
					return false, nil
				}
				r.State = Expired
				return true, nil
			})
			if err != nil && !errors.Is(err, ErrUnknown) {
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
