package crossings

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// The tables of the book: the state of each key, which keys have events to deliver, and who delivers them now.
const (
	stateTable  = "crossings"
	outboxTable = "crossingsout"
	claimTable  = "crossingsclaim"
)

const (
	// DefaultMaxWaiting is how many keys may have events that are not delivered. Not more: each takes a
	// kilobyte where the counters are. Not fewer: a receiver may be down for hours.
	DefaultMaxWaiting = 10_000
	// DefaultMaxAge is how long delivery is tried.
	DefaultMaxAge = 24 * time.Hour
	// youngest is the age up to which an entry of the outbox is left though it has no event: one may be on its
	// way. Not shorter: what a store needs to answer twice must fit.
	youngest = 10 * time.Second
	// swaps is how often a change of a record is tried again because another came first.
	swaps = 100
)

// Book keeps which events happened and which are not delivered yet, in records that servers share. It is safe for
// concurrent use, of all servers together. Make it with [NewBook].
type Book struct {
	records    store.Records
	now        func() limit.Time
	maxWaiting int64
	maxAge     time.Duration
	owner      string
	waiting    atomic.Int64 // keys in the outbox, as far as it is known
	nudge      chan struct{}
	stats      counts
}

// NewBook returns the book in records. owner names this process. now nil = the system's clock. maxWaiting and
// maxAge 0 = the defaults.
func NewBook(records store.Records, owner string, now func() limit.Time, maxWaiting int, maxAge time.Duration) *Book {
	if now == nil {
		now = func() limit.Time { return limit.At(time.Now()) }
	}
	if maxWaiting <= 0 {
		maxWaiting = DefaultMaxWaiting
	}
	if maxAge <= 0 {
		maxAge = DefaultMaxAge
	}
	return &Book{records: records, now: now, maxWaiting: int64(maxWaiting), maxAge: maxAge, owner: owner, nudge: make(chan struct{}, 1)}
}

// Nudged is sent to when an event waits for delivery that was noted by this process.
func (b *Book) Nudged() <-chan struct{} { return b.nudge }

// finding is one key, one window and what was seen of it.
type finding struct {
	record string // the key of the record
	name   string // of the limit
	key    []limit.Attribute
	end    limit.Time
	period time.Duration
	seen   []sight // in the order in which they happened
}

// sight is one kind, and how the key stood.
type sight struct {
	kind                 Kind
	at                   limit.Time
	used, quota, nominal int64
	shadow               bool
}

// note writes down what of f has not happened before, and returns it, and had, which is all that has happened in the
// window. deliver says that it goes to the outbox. An error means that it may not be noted: noting it again is
// harmless.
func (b *Book) note(ctx context.Context, f *finding, deliver bool) (noted []Event, had Kinds, err error) {
	raw, err := b.records.Get(ctx, stateTable, f.record)
	listed := limit.Time(0)
	for range swaps {
		if err != nil {
			return nil, 0, err
		}
		now := b.now()
		s, err := decode(raw)
		if err != nil {
			return nil, 0, err
		}
		s.forget(now)
		w := s.at(f.end, f.period)
		if w == nil {
			b.stats.dropped[DroppedLate].Add(uint64(len(f.seen)))
			return nil, All, nil
		}
		noted = w.add(&s, f)
		had = w.Had
		if len(noted) == 0 {
			return nil, had, nil
		}
		dropped := b.queue(&s, noted, deliver)
		if len(s.Pending) > 0 && (listed == 0 || now >= listed.Add(youngest/2)) {
			// First: an event that no list names would wait for ever.
			if err := b.list(ctx, f.record, now); err != nil {
				return nil, 0, err
			}
			listed = now
		}
		value, err := s.encode()
		if err != nil {
			return nil, 0, err
		}
		var swapped bool
		if swapped, raw, err = b.records.Swap(ctx, stateTable, f.record, raw, value, s.keep(now, b.maxAge)); err != nil {
			return nil, 0, err
		}
		if !swapped {
			continue
		}
		if listed != 0 && b.now() >= listed.Add(youngest/2) {
			// It took so long that its entry may be gone. What fails here is made good by the next event.
			_ = b.list(ctx, f.record, b.now())
		}
		b.stats.noted(noted)
		b.stats.dropped[DroppedFull].Add(uint64(dropped))
		if deliver && dropped < len(noted) {
			b.wake()
		}
		return noted, had, nil
	}
	return nil, 0, changing("a record of events")
}

// queue adds events to those of the key that are to be delivered, and returns how many of them are dropped because
// there is no room.
func (b *Book) queue(s *state, events []Event, deliver bool) (dropped int) {
	fits := 0
	if deliver && (b.waiting.Load() < b.maxWaiting || len(s.Pending) > 0) {
		fits = min(len(events), maxPending-len(s.Pending))
	}
	s.Pending = append(s.Pending, events[:fits]...)
	if !deliver {
		return 0
	}
	return len(events) - fits
}

func changing(what string) error {
	return fmt.Errorf("crossings: %s was changed by others %d times while it was read: %w", what, swaps, store.ErrUnavailable)
}

func (b *Book) wake() {
	select {
	case b.nudge <- struct{}{}:
	default:
	}
}

// add makes events of what has not happened in w before.
func (w *window) add(s *state, f *finding) (events []Event) {
	for i := range f.seen {
		at := &f.seen[i]
		if w.missing(at.kind) == 0 {
			continue
		}
		w.Had |= at.kind
		s.Seq++
		word, of := at.kind.word()
		events = append(events, Event{
			ID: eventID(f.record, w.End, at.kind), Kind: word, Under: of, Seq: s.Seq, Limit: f.name, Key: f.key,
			Time: time.Unix(0, int64(at.at)).UTC(), WindowEnd: windowEnd(w.End, f.period),
			Used: at.used, Quota: at.quota, Nominal: at.nominal, Shadow: at.shadow,
		})
	}
	return events
}

// windowEnd is the end of a window for people: the moment as this process knows it is a little off, by the time
// that the store took to answer.
func windowEnd(end limit.Time, period time.Duration) time.Time {
	t := time.Unix(0, int64(end)).UTC()
	if period >= time.Minute {
		return t.Round(time.Second)
	}
	return t
}

// list puts a key on the list of those that have events to deliver, or makes its entry a new one.
func (b *Book) list(ctx context.Context, record string, now limit.Time) error {
	value := fmt.Appendf(nil, "%d %s", int64(now), b.owner)
	was, err := b.records.Get(ctx, outboxTable, record)
	for range swaps {
		if err != nil {
			return err
		}
		var swapped bool
		fresh := was == nil
		if swapped, was, err = b.records.Swap(ctx, outboxTable, record, was, value, b.maxAge+pastAge); swapped {
			if fresh {
				b.waiting.Add(1)
			}
			return nil
		}
	}
	return changing("the outbox")
}

// Waiting returns the keys with events to deliver, at most most that come behind after: call it again with the
// last one until there are fewer. The value of a record is another one when the key has got another event.
func (b *Book) Waiting(ctx context.Context, after string, most int) ([]store.Record, error) {
	return b.records.Range(ctx, outboxTable, "", after, most)
}

// Counted says how many keys [Book.Waiting] has, as its caller has found.
func (b *Book) Counted(n int) { b.waiting.Store(int64(n)) }

// Claim makes this process the one that delivers the events of a key, for at most so long. false = another is.
func (b *Book) Claim(ctx context.Context, key string, long time.Duration) (bool, error) {
	mine := []byte(b.owner)
	claimed, is, err := b.records.Swap(ctx, claimTable, key, nil, mine, long)
	if err == nil && !claimed && string(is) == b.owner {
		claimed, _, err = b.records.Swap(ctx, claimTable, key, mine, mine, long) // it goes on
	}
	return claimed, err
}

// Release ends a claim.
func (b *Book) Release(ctx context.Context, key string) error {
	_, _, err := b.records.Swap(ctx, claimTable, key, []byte(b.owner), nil, 0)
	return err
}

// Next returns the event of a key that is delivered next. false = there is none, and the key is off the list.
// Events that are too old are dropped. The caller has claimed the key.
func (b *Book) Next(ctx context.Context, key string) (Event, bool, error) {
	entry, err := b.records.Get(ctx, outboxTable, key)
	if err != nil {
		return Event{}, false, err
	}
	for range swaps {
		raw, err := b.records.Get(ctx, stateTable, key)
		if err != nil {
			return Event{}, false, err
		}
		s, err := decode(raw)
		if err != nil {
			return Event{}, false, err
		}
		if len(s.Pending) == 0 {
			return Event{}, false, b.unlist(ctx, key, entry)
		}
		now := b.now()
		if now < limit.At(s.Pending[0].Time).Add(b.maxAge) {
			return s.Pending[0], true, nil
		}
		if err := b.remove(ctx, key, s.Pending[0].ID); err != nil {
			return Event{}, false, err
		}
		b.stats.dropped[DroppedOld].Add(1)
	}
	return Event{}, false, nil
}

// unlist takes a key without events off the list, unless its entry is so new that an event may be on its way.
func (b *Book) unlist(ctx context.Context, key string, entry []byte) error {
	since, _, _ := strings.Cut(string(entry), " ")
	var at int64
	if _, err := fmt.Sscan(since, &at); entry == nil || err == nil && b.now() < limit.Time(at).Add(youngest) {
		return nil
	}
	gone, _, err := b.records.Swap(ctx, outboxTable, key, entry, nil, 0)
	if gone {
		b.waiting.Add(-1)
	}
	return err
}

// Delivered takes an event off the outbox. Doing so again is harmless.
func (b *Book) Delivered(ctx context.Context, key, id string) error { return b.remove(ctx, key, id) }

func (b *Book) remove(ctx context.Context, key, id string) error {
	raw, err := b.records.Get(ctx, stateTable, key)
	for range swaps {
		if err != nil {
			return err
		}
		s, err := decode(raw)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(s.Pending, func(e Event) bool { return e.ID == id })
		if i < 0 {
			return nil
		}
		s.Pending = slices.Delete(s.Pending, i, i+1)
		now := b.now()
		s.forget(now)
		var value []byte // nil = nothing is worth to be kept
		if len(s.Pending) > 0 || len(s.Windows) > 0 {
			if value, err = s.encode(); err != nil {
				return err
			}
		}
		var swapped bool
		if swapped, raw, err = b.records.Swap(ctx, stateTable, key, raw, value, s.keep(now, b.maxAge)); err != nil {
			return err
		}
		if swapped {
			return nil
		}
	}
	return changing("a record of events")
}
