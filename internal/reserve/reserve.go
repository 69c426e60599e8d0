// Package reserve takes a cost before it is known, and settles it when it is: reserve an estimate, renew it with what
// was used so far, commit the actual cost, or release it. What is over becomes debt, what is under comes back at once,
// and a reservation that nobody settles is released when its time is over, but for what a renewal has said was used.
// Each is settled once, whichever process is asked, however often.
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
	"github.com/stint-io/stint/internal/estimate"
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
	// unswept is how long one is kept that nobody has ended: no server may run, or the clock may be put on. Not shorter:
	// what it holds would be charged for as long as its window lasts, mostly a month at most. Not longer: a store that no
	// server uses any more is to be empty some day.
	unswept = 32 * 24 * time.Hour
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
	Expired   State = "expired" // its time was over, and what was not used was released
)

// Taker takes and settles. [engine.Engine] is one.
type Taker interface {
	TakeParts(ctx context.Context, req limit.Request) (limit.Decision, []engine.Part, int64, error)
	TakeDescriptors(ctx context.Context, domain string, descriptors []engine.Descriptor, cost int64) (limit.Decision, []engine.Part, int64, error)
	Settle(ctx context.Context, parts []engine.Part, taken, now limit.Time, actual int64) error
}

// Book has the reservations of a store. It is safe for concurrent use; New makes it.
type Book struct {
	taker     Taker
	records   store.Records
	log       *slog.Logger
	now       func() time.Time
	estimator *estimate.Estimator // nil = every cost is given
}

// New returns the book of the reservations in records, which are where the counters are. now is the clock; nil =
// the system's.
func New(t Taker, records store.Records, log *slog.Logger, now func() time.Time) *Book {
	if now == nil {
		now = time.Now
	}
	return &Book{taker: t, records: records, log: log, now: now}
}

// Learn makes e estimate the cost of requests that have none, and learn from what is committed. Call it before the first
// request.
func (b *Book) Learn(e *estimate.Estimator) { b.estimator = e }

// Reservation is one as a caller sees it.
type Reservation struct {
	ID       string
	State    State
	Reserved int64 // at most what was asked for (see Clamped), or what was used if that is more (see Extended)
	Actual   int64 // if State is Committed
	Used     int64 // the most that a renewal has said was used so far
	// Extended says that more was used than was reserved, and that it was charged, whether it fitted or not.
	Extended bool
	// Clamped says that the estimate was above what the limits can ever admit, and that Reserved is that.
	Clamped bool
	// Late says that a renewal or the commit came when the time of the reservation was over and what was not used
	// had been released, and that what was used was charged all the same.
	Late bool
	Ends time.Time
	// Estimate is what Reserved was by; nil = its caller gave the cost.
	Estimate *Estimate
}

// record is a reservation as it is kept.
type record struct {
	State    State
	Parts    []engine.Part `json:",omitempty"`
	Taken    limit.Time
	Ends     limit.Time
	Due      limit.Time    // the time under which it is listed in byEnd; not after Ends
	TTL      time.Duration // of a renewal that names none
	Reserved int64
	Actual   int64 `json:",omitempty"`
	Used     int64 `json:",omitempty"`
	Told     bool  `json:",omitempty"` // a renewal has said what was used
	Extended bool  `json:",omitempty"`
	Clamped  bool  `json:",omitempty"`
	Late     bool  `json:",omitempty"`
	Charge   bool  `json:",omitempty"` // what is reserved stays charged when its time is over, if no renewal has said what was used
	// Of is what its cost teaches; nil = nothing.
	Of *estimate.Subject `json:",omitempty"`
	// Estimate is there if the cost was estimated.
	Estimate *Estimate `json:",omitempty"`
	Over     int64     `json:",omitempty"` // how much of it was charged above what was reserved
	Owes     []owed    `json:",omitempty"`
	// By is different for each attempt to change the record, so that one whose answer was lost can be recognised.
	By string
}

func (r *record) shown(id string) Reservation {
	return Reservation{
		ID: id, State: r.State, Reserved: r.Reserved, Actual: r.Actual, Used: r.Used,
		Extended: r.Extended, Clamped: r.Clamped, Late: r.Late, Ends: time.Unix(0, int64(r.Ends)), Estimate: r.Estimate,
	}
}

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

func checkTTL(ttl time.Duration) error {
	if ttl < MinTTL || ttl > MaxTTL {
		return fmt.Errorf("reserve: %w: ttl is %v, want %v to %v", ErrBad, ttl, MinTTL, MaxTTL)
	}
	return nil
}

// alone is ctx without its end: see answerWithin.
func alone(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), answerWithin)
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
