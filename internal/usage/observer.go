package usage

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/lograte"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Store is a store whose takes and refunds a [Meter] counts, for the limits that [Store.Watch] names. It is safe
// for concurrent use. Make it with [Watching].
type Store struct {
	store.BanKeeper
	meter *Meter
	// Others returns the other processes that count for themselves; nil = there are none. Set it before use.
	Others func() []Member

	of    atomic.Pointer[map[string]*Of]    // by the ID of the counters
	known atomic.Pointer[map[string]*Limit] // by name

	incomplete atomic.Uint64
	logged     lograte.Minute
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

// History is [History] of this process, up to now, and of the others. Days and months are those of each limit's time
// zone, unless q says otherwise. missing names the others that did not answer, or not to the end.
func (s *Store) History(ctx context.Context, q Query, yield func(*Row) error) (missing []string, err error) {
	if err := s.report(ctx); err != nil {
		return nil, err
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
	q.Order = s.order
	var others []Member
	if s.Others != nil {
		others = s.Others()
	}
	failed, err := History(ctx, s.meter.opts.Records, others, q, yield)
	if missing = slices.Sorted(maps.Keys(failed)); len(missing) == 0 {
		return nil, err
	}
	s.incomplete.Add(1)
	if s.logged.Allow(time.Now()) {
		s.meter.opts.Logger.Warn("an answer about usage lacks what other members have counted, and names them: others in the next minute are counted only, in stint_usage_incomplete_total",
			"members", missing, "err", failed[missing[0]])
	}
	return missing, err
}

// Page returns a page of what this process has counted, for [Member.Page] of the others. The first one has all up to
// now.
func (s *Store) Page(ctx context.Context, q Query, after string) (p Page, err error) {
	if after == "" {
		if err := s.report(ctx); err != nil {
			return p, err
		}
	}
	q.Order = s.order
	p.Next = after
	for range pageReads {
		more, err := q.page(ctx, s.meter.opts.Records, p.Next)
		if err != nil {
			return Page{}, err
		}
		p.Marks, p.Next = append(p.Marks, more.Marks...), more.Next
		if p.Next == "" || len(p.Marks) >= pageSize {
			break
		}
	}
	return p, nil
}

// Incomplete is how many answers of History lacked a member.
func (s *Store) Incomplete() uint64 { return s.incomplete.Load() }

// report reports what was counted up to now.
func (s *Store) report(ctx context.Context) error {
	if s.meter.opts.Records == nil {
		return errors.New("usage: this process keeps no records")
	}
	return s.meter.Report(ctx)
}

func (s *Store) order(name string) []string {
	if l := (*s.known.Load())[name]; l != nil {
		return l.Key
	}
	return nil
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
