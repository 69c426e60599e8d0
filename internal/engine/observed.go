package engine

import (
	"maps"
	"math"
	"sync/atomic"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// DecisionObserver is told of decisions. It is safe for concurrent use.
type DecisionObserver interface {
	// Follow is told of a configuration before it decides the first request. Requests that have begun are decided by the
	// one before.
	Follow(set *rules.Set)
	// Decided is told of a query that was decided, unless it only asks or its answer is an error. One that repeats an earlier
	// request by its idempotency key (q.Decision.Repeated) has taken nothing. Decided neither changes q nor keeps what q
	// points to; the request waits until it returns.
	Decided(q *Query)
}

// Set is the configuration that has decided q.
func (q *Query) Set() *rules.Set { return q.set }

// HitOf returns the hit behind result i: the first, where several descriptors met one bucket.
func (q *Query) HitOf(i int) *Hit { return &q.Hits[q.parts[i].hit] }

// DescriptorOf returns the descriptor of [Query.HitOf].
func (q *Query) DescriptorOf(i int) *Descriptor { return &q.Descriptors[q.parts[i].descriptor] }

// CostOf returns what the limit of result i was asked for, which is 0 where nothing is counted or the request gives back,
// and whether that was taken if it fits: the request is admitted, or the limit counts refused ones.
func (q *Query) CostOf(i int) (cost int64, taken bool) {
	p := &q.parts[i]
	if p.charge < 0 {
		return 0, false
	}
	return q.charges[p.charge].Cost, q.Decision.Allowed || p.countAlways
}

// DefaultNearLimit is the default of Envoy's own service.
const DefaultNearLimit = 0.8

// Near returns the part of the cost of result i, if it was admitted, that is above a share of the quota, as Envoy's own
// service rounds it; 0 = [DefaultNearLimit].
func (q *Query) Near(i int, share float64) int64 {
	r := &q.Decision.Results[i]
	if !r.Allowed || r.StoreFailed {
		return 0
	}
	if share == 0 {
		share = DefaultNearLimit
	}
	near := int64(math.Floor(float64(float32(r.Quota) * float32(share))))
	cost, _ := q.CostOf(i)
	return max(0, min(r.Quota-r.Remaining-near, cost))
}

// Without is a limit without which a request was admitted.
type Without struct {
	// Limit is nil for a limit that came with the request, and where no limit in particular is missing.
	Limit *rules.Limit
	// Name is that of the limit; "" = no limit in particular.
	Name string
	Why  Unlimited
	// Attributes are what the limit saw of the request, where it was skipped.
	Attributes []limit.Attribute
}

// Without returns the limits without which q is admitted. They belong to q.
func (q *Query) Without() []Without { return q.without }

// Limits keeps what an observer has of each limit of a configuration, by name: a limit that stays keeps it. It is safe
// for concurrent use, and takes no lock. The zero value has no limits.
type Limits[T any] struct{ live atomic.Pointer[limits[T]] }

type limits[T any] struct {
	at     []place[T] // by the Index of the limit's own variant
	byName map[string]*T
}

type place[T any] struct {
	limit *rules.Limit
	value *T
}

// Of returns the value of a limit. It is nil if the limit is of an earlier configuration and has no successor.
func (t *Limits[T]) Of(l *rules.Limit) *T {
	now := t.live.Load()
	if now == nil {
		return nil
	}
	if i := l.Base.Index; i < len(now.at) && now.at[i].limit == l {
		return now.at[i].value
	}
	return now.byName[l.Name] // the configuration is being replaced
}

// ByName returns all values. It is not to be changed.
func (t *Limits[T]) ByName() map[string]*T {
	if now := t.live.Load(); now != nil {
		return now.byName
	}
	return nil
}

// Follow makes the limits those of set. open makes the value of a limit whose name is new. It returns the values of those
// that are no more. One call at a time may follow.
func (t *Limits[T]) Follow(set *rules.Set, open func(l *rules.Limit) *T) (gone map[string]*T) {
	had := t.ByName()
	next := &limits[T]{at: make([]place[T], len(set.Variants())), byName: make(map[string]*T, len(had))}
	for _, l := range set.Limits() {
		v := next.byName[l.Name]
		if v == nil {
			if v = had[l.Name]; v == nil {
				v = open(l)
			}
			next.byName[l.Name] = v
		}
		next.at[l.Base.Index] = place[T]{l, v}
	}
	t.live.Store(next)
	gone = maps.Clone(had)
	maps.DeleteFunc(gone, func(name string, _ *T) bool { return next.byName[name] != nil })
	return gone
}
