package usage

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/lograte"
	"github.com/stint-io/stint/internal/observe"
	"github.com/stint-io/stint/limit"
)

// Observer has a [Meter] count what an engine takes and gives back, for the limits that [Observer.Watch] names. It is
// safe for concurrent use. Make it with [NewObserver].
type Observer struct {
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

var _ observe.Observer = (*Observer)(nil)

// NewObserver returns an observer for m. No limit is counted yet.
func NewObserver(m *Meter) *Observer {
	o := &Observer{meter: m}
	o.Watch(nil)
	return o
}

// Watch says which limits are counted from now on.
func (o *Observer) Watch(limits []Limit) {
	of, known := make(map[string]*Of), make(map[string]*Limit)
	for i := range limits {
		l := &limits[i]
		known[l.Name] = l
		one := NewOf(l.Name, l.Zone, l.Subject)
		for _, id := range l.IDs {
			of[id] = one
		}
	}
	o.of.Store(&of)
	o.known.Store(&known)
}

// Counts says whether a limit of that name is counted.
func (o *Observer) Counts(name string) bool { return (*o.known.Load())[name] != nil }

// Meter returns what counts.
func (o *Observer) Meter() *Meter { return o.meter }

// History is [History] of this process, up to now, and of the others. Days and months are those of each limit's time
// zone, unless q says otherwise. missing names the others that did not answer, or not to the end.
func (o *Observer) History(ctx context.Context, q Query, yield func(*Row) error) (missing []string, err error) {
	if err := o.report(ctx); err != nil {
		return nil, err
	}
	known := *o.known.Load()
	if q.Zone == nil {
		q.Zone = func(name string) *time.Location {
			if l := known[name]; l != nil {
				return l.Zone
			}
			return nil
		}
	}
	q.Order = o.order
	var others []Member
	if o.Others != nil {
		others = o.Others()
	}
	failed, err := History(ctx, o.meter.opts.Records, others, q, yield)
	if missing = slices.Sorted(maps.Keys(failed)); len(missing) == 0 {
		return nil, err
	}
	o.incomplete.Add(1)
	if o.logged.Allow(time.Now()) {
		o.meter.opts.Logger.Warn("an answer about usage lacks what other members have counted, and names them: others in the next minute are counted only, in stint_usage_incomplete_total",
			"members", missing, "err", failed[missing[0]])
	}
	return missing, err
}

// Page returns a page of what this process has counted, for [Member.Page] of the others. The first one has all up to
// now.
func (o *Observer) Page(ctx context.Context, q Query, after string) (p Page, err error) {
	if after == "" {
		if err := o.report(ctx); err != nil {
			return p, err
		}
	}
	q.Order = o.order
	p.Next = after
	for range pageReads {
		more, err := q.page(ctx, o.meter.opts.Records, p.Next)
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
func (o *Observer) Incomplete() uint64 { return o.incomplete.Load() }

// report reports what was counted up to now.
func (o *Observer) report(ctx context.Context) error {
	if o.meter.opts.Records == nil {
		return errors.New("usage: this process keeps no records")
	}
	return o.meter.Report(ctx)
}

func (o *Observer) order(name string) []string {
	if l := (*o.known.Load())[name]; l != nil {
		return l.Key
	}
	return nil
}

// Observe implements [observe.Observer]. It counts the costs of a request that is admitted, as far as they fitted, and
// those that are charged whatever comes of the request, for they were spent. What was decided without the
// counters is counted as well: it was admitted.
func (o *Observer) Observe(e observe.Event) {
	of := *o.of.Load()
	if len(of) == 0 || e.Kind != observe.Taken && e.Kind != observe.Returned {
		return
	}
	for i := range e.Charges {
		c := &e.Charges[i]
		if e.Kind == observe.Taken && !e.Took(c) {
			continue
		}
		switch l := of[c.Counters.Spec().ID]; {
		case l == nil:
		case e.Kind == observe.Taken:
			o.meter.Taken(l, c.Key, c.Cost)
		default:
			o.meter.Returned(l, c.Key, c.Cost)
		}
	}
}
