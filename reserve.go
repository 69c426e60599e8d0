package stint

import (
	"context"
	"log/slog"
	"time"

	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/internal/reserve"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// The errors of reservations that a caller can do something about; test with [errors.Is].
var (
	// ErrUnknown is the error of an ID that was never given out, or that ended more than an hour ago.
	ErrUnknown = reserve.ErrUnknown
	// ErrSettled is wrapped by the error of a call that contradicts an earlier one, such as another commit.
	ErrSettled = reserve.ErrSettled
)

// Reservation is a cost that was taken before it is known. It is a value; its ID names it to the calls that settle it.
type Reservation struct {
	ID       string
	Open     bool  // it is not settled, and its time is not over
	Reserved int64 // what it holds: the estimate, less where Clamped, more where Extended
	Used     int64 // the most that Renew has said
	Actual   int64 // what it was committed with; 0 before
	Clamped  bool  // the estimate was above what the limits can ever admit, and was reserved as that
	Extended bool  // more was used than was reserved, and it is charged, whether it fits or not
	Late     bool  // a renewal or the commit came after the end, and was charged all the same
	Ends     time.Time
}

func shown(r *reserve.Reservation) Reservation {
	return Reservation{
		ID: r.ID, Open: r.State == reserve.Open, Reserved: r.Reserved, Used: r.Used, Actual: r.Actual,
		Clamped: r.Clamped, Extended: r.Extended, Late: r.Late, Ends: r.Ends,
	}
}

// Reserve takes the cost of req, an estimate from 1, before it is known, for ttl: 1 s to 1 h, 0 = a minute. Commit it
// when it is known, or Release it. A refusal is a Decision, and takes nothing. When the ttl is over and nobody has said
// anything, all comes back; see [Limiter.Renew]. With Redis any process may settle it, and a process that ends loses none.
//
// The first Reserve starts a goroutine that ends what is over; Close ends it.
func (l *Limiter) Reserve(ctx context.Context, req limit.Request, ttl time.Duration) (Reservation, limit.Decision, error) {
	r, d, err := l.reservations().Reserve(ctx, req, ttl, false)
	if err != nil || !d.Allowed {
		return Reservation{}, d, err
	}
	return shown(&r), d, nil
}

// Renew says what was used of a reservation so far, from 0 to [limit.MaxCount], and has it live for another ttl (0 = as
// before). When the ttl ends, used stays charged and the rest comes back. A caller that renews before it uses more cannot
// overspend by a crash. A used above the reserved amount is charged at once, even above the limit; one below that of an
// earlier Renew changes nothing.
func (l *Limiter) Renew(ctx context.Context, id string, used int64, ttl time.Duration) (Reservation, error) {
	r, err := l.reservations().Renew(ctx, id, used, ttl)
	return shown(&r), err
}

// Commit says what a reservation has cost, from 0 to [limit.MaxCount]. What is over is charged even if it does not fit,
// what is under comes back at once. The same again changes nothing.
func (l *Limiter) Commit(ctx context.Context, id string, actual int64) (Reservation, error) {
	r, err := l.reservations().Commit(ctx, id, actual)
	return shown(&r), err
}

// Release gives all of a reservation back. Again, and after its end, it changes nothing.
func (l *Limiter) Release(ctx context.Context, id string) (Reservation, error) {
	r, err := l.reservations().Release(ctx, id)
	return shown(&r), err
}

// reservations are in the store, where others see them, or in this process.
func (l *Limiter) reservations() *reserve.Book {
	l.book.Lock()
	defer l.book.Unlock()
	if l.book.Book == nil {
		kept, ok := l.stores[0].(store.Records)
		if !ok {
			kept = records.New(nil, 0)
		}
		l.book.Book = reserve.New(l.engine, kept, slog.Default(), nil)
		if !l.book.closed {
			ctx, stop := context.WithCancel(context.Background())
			l.book.stop = stop
			l.book.running.Go(func() { l.book.Run(ctx) })
		}
	}
	return l.book.Book
}

// closeBook ends the goroutine of the reservations.
func (l *Limiter) closeBook() {
	l.book.Lock()
	l.book.closed = true
	if l.book.stop != nil {
		l.book.stop()
	}
	l.book.Unlock()
	l.book.running.Wait()
}
