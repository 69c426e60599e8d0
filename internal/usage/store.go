package usage

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Store is a store whose takes and refunds a [Meter] counts, for the limits that [Store.Watch] names. It is safe
// for concurrent use. Make it with [Watching].
type Store struct {
	store.BanKeeper
	meter *Meter
	of    atomic.Pointer[map[string]*Of]    // by the ID of the counters
	known atomic.Pointer[map[string]*Limit] // by name
}

// Limit is a limit that is counted.
type Limit struct {
	Name string
	// IDs are those of its counters: the [store.Spec] has them.
	IDs []string
	// Key has the attributes of its key, in their order.
	Key []string
	// Zone is that of its days; nil = UTC.
	Zone *time.Location
	// Subject returns the attributes of a key of its counters.
	Subject func(key []byte) []limit.Attribute
}

var _ store.BanKeeper = (*Store)(nil)

// Watching returns st, counted by m. No limit is counted yet.
func Watching(st store.BanKeeper, m *Meter) *Store {
	s := &Store{BanKeeper: st, meter: m}
	s.Watch(nil)
	return s
}

// Watch says which limits are counted from now on.
func (s *Store) Watch(limits []Limit) {
	of, known := make(map[string]*Of), make(map[string]*Limit)
	for i := range limits {
		l := &limits[i]
		known[l.Name] = l
		one := NewOf(l.Name, l.Zone, l.Subject)
		for _, id := range l.IDs {
			of[id] = one
		}
	}
	s.of.Store(&of)
	s.known.Store(&known)
}

// Counts says whether a limit of that name is counted.
func (s *Store) Counts(name string) bool { return (*s.known.Load())[name] != nil }

// Meter returns what counts.
func (s *Store) Meter() *Meter { return s.meter }

// History is [History] of all that reports to the same records, with what this process has counted up to now. Days
// and months are those of each limit's time zone, unless q says otherwise.
func (s *Store) History(ctx context.Context, q Query, yield func(*Row) error) error {
	if s.meter.opts.Records == nil {
		return errors.New("usage: this process keeps no records")
	}
	if err := s.meter.Report(ctx); err != nil {
		return err
	}
	known := *s.known.Load()
	if q.Zone == nil {
		q.Zone = func(name string) *time.Location {
			if l := known[name]; l != nil {
				return l.Zone
			}
			return nil
		}
	}
	q.Order = func(name string) []string {
		if l := known[name]; l != nil {
			return l.Key
		}
		return nil
	}
	return History(ctx, s.meter.opts.Records, q, yield)
}

// Take implements [store.Store]. It counts the costs of a request that is admitted, as far as they fitted, and
// those that are charged whatever comes of the request, for they were spent. What was decided without the
// counters is counted as well: it was admitted.
func (s *Store) Take(ctx context.Context, charges []store.Charge) (bool, error) {
	allowed, err := s.BanKeeper.Take(ctx, charges)
	if of := *s.of.Load(); err == nil && len(of) > 0 {
		for i := range charges {
			c := &charges[i]
			if c.Cost <= 0 || !(allowed && c.Verdict.Allowed) && !(c.CountRefused && !c.Failed) {
				continue
			}
			if l := of[c.Counters.Spec().ID]; l != nil {
				s.meter.Taken(l, c.Key, c.Cost)
			}
		}
	}
	return allowed, err
}

// Refund implements [store.Store].
func (s *Store) Refund(ctx context.Context, charges []store.Charge) error {
	err := s.BanKeeper.Refund(ctx, charges)
	if of := *s.of.Load(); err == nil && len(of) > 0 {
		for i := range charges {
			if l := of[charges[i].Counters.Spec().ID]; l != nil {
				s.meter.Returned(l, charges[i].Key, charges[i].Cost)
			}
		}
	}
	return err
}
