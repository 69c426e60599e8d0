// Package reserve takes a cost before it is known, and settles it when it is: reserve an estimate, renew it with what
// was used so far, commit the actual cost, or release it. What is over becomes debt, what is under comes back at once,
// and a reservation that nobody settles is released when its time is over, but for what a renewal has said was used.
// Each is settled once, whichever process is asked, however often.
//
// It speaks no protocol, and knows no limit.
package reserve

import (
	"context"
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

// Estimate says by what a cost was reserved that its caller did not give.
type Estimate struct {
	Cost    int64         // what the request is expected to cost
	From    estimate.From // what it is learned from
	Settled int64         // how many requests that were
	// Declared is the most that the request said that it can cost; 0 = it did not say.
	Declared int64
	// Whole says that Declared was reserved: a budget was so near its end that it might not have done otherwise.
	Whole bool
}

// owed is what is yet to be charged.
type owed struct {
	By     string     // different for each
	At     limit.Time // since when; 0 = nobody is charging it
	Parts  []engine.Part
	Actual int64 // what each part is to be
}

// mostReturned is how far above what was reserved a renewal may be, all together, for that to come back. Counters stop at
// their greatest number: what they have not counted would come back of what others have used. Not larger: half a million
// such renewals stay below the least of these numbers, 2^51 in Redis. Not smaller: a request costs less.
const mostReturned = 1 << 32

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

// Reservations are listed in byEnd, each under a time that is not after its end. A renewal leaves it there, so that it
// costs one write; the sweep lists it anew. A reservation that has been listed twice counts where its record says.

func endKey(at limit.Time, id string) string { return fmt.Sprintf("%016x/%s", uint64(at), id) }

// list puts a reservation under its end. The record that says so is to be written afterwards: a key without one is
// passed over.
func (b *Book) list(ctx context.Context, id string, r *record) error {
	r.Due = r.Ends
	_, _, err := b.records.Swap(ctx, byEnd, endKey(r.Due, id), nil, []byte{1}, unswept)
	return err
}

// id is that of a key of byEnd.
func id(key string) string { return key[17:] }
