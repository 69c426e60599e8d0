package usage

import (
	"context"
	"sync/atomic"

	"github.com/stint-io/stint/store"
)

// Store is a store whose takes and refunds a [Meter] counts, for the limits that [Store.Watch] names. It is safe
// for concurrent use. Make it with [Watching].
type Store struct {
	store.BanKeeper
	meter *Meter
	of    atomic.Pointer[map[string]*Of] // by the ID of the counters
}

var _ store.BanKeeper = (*Store)(nil)

// Watching returns st, counted by m. No limit is counted yet.
func Watching(st store.BanKeeper, m *Meter) *Store {
	s := &Store{BanKeeper: st, meter: m}
	s.Watch(nil)
	return s
}

// Watch says which counters are counted from now on, by the ID of their [store.Spec].
func (s *Store) Watch(of map[string]*Of) { s.of.Store(&of) }

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
