// Package engine makes decisions: it matches a request with the limits of the configuration,
// charges all of them as one at a store, and says how each stands.
//
// It speaks no protocol, keeps no counters and reads no file: those are the
// transports, the store and package rules. It counts nothing: observers do.
package engine

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/observe"
	"github.com/stint-io/stint/internal/override"
	"github.com/stint-io/stint/internal/tenants"
	"github.com/stint-io/stint/internal/waitqueue"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
)

// Options are the choices of an Engine. The zero value is ready to use.
type Options struct {
	// MaxOverrides bounds the number of different periods of limits that come with requests; 0
	// = [DefaultMaxOverrides].
	MaxOverrides int

	// Quota makes every rule in Envoy's format, and every limit that comes with a request, a
	// quota: together they refuse only what all of them refuse. A descriptor without a rule is
	// a quota that never refuses.
	Quota bool

	// Derive returns what finds attributes from others for the limits of a set; nil = none is. One that is a
	// [Counter] as well knows other counts of budgets.
	Derive func(*rules.Set) Deriver

	// Shares keeps what tenants have taken of limits that they share. nil = the store does if it is a
	// [store.Shares], and otherwise this process.
	Shares store.Shares

	// Raise gives charges the larger quota that their keys have for now, before the store is asked about them; nil = none
	// has. Charges may have been raised before.
	Raise func(charges []store.Charge)

	// Observers are told of each change of the counters, in this order.
	Observers []observe.Observer

	// Decisions are told of each decision, in this order.
	Decisions []DecisionObserver

	// Trace is called before the store is asked to take, and what it returns is called with the answer, also if that is
	// an error. Either may be nil.
	Trace func(ctx context.Context) (answered func(charges []store.Charge, allowed bool, err error))
}

// OverrideName is the name of limits that come with requests, in decisions and metrics.
const OverrideName = override.Name

// DefaultMaxOverrides is the default of [Options.MaxOverrides].
const DefaultMaxOverrides = override.DefaultMax

// Engine decides requests by a configuration that can be swapped while it runs.
// Make one with [New]. It is safe for concurrent use.
type Engine struct {
	store       store.Store // changed by the methods of change.go alone
	observers   []observe.Observer
	deciding    []DecisionObserver
	trace       func(context.Context) func([]store.Charge, bool, error) // as in Options
	raise       func([]store.Charge)                                    // as in Options
	shares      store.Shares
	live        atomic.Pointer[snapshot]
	once        once
	overrides   *override.Tables
	quota       bool                     // as in Options
	deriver     func(*rules.Set) Deriver // as in Options
	queries     sync.Pool                // of *Query
	notReturned atomic.Uint64
	lines       *lines

	swap sync.Mutex // held by Swap, so that configurations replace each other one by one
}

var (
	_ limit.PatientTaker    = (*Engine)(nil)
	_ limit.Keeper          = (*Engine)(nil)
	_ limit.AttributeReader = (*Engine)(nil)
)

// snapshot is one configuration with its counters. It does not change once it is live.
type snapshot struct {
	set    *rules.Set
	bound  []bound             // by Variant.Index
	byID   map[string]*binding // every counter of the snapshot
	shared map[string]*shared  // by the ID of counters

	attributes []string // as Engine.Attributes returns them
	derived    derivation
	queues     waitqueue.Queues // by limit name, of limits that let requests wait
}

// bound is what is needed of a variant to make a decision.
type bound struct {
	counters store.Counters // nil when unlimited
	ban      store.Counters // nil without a ban
	quota    int64
	nominal  int64
	window   time.Duration
	shared   *shared // nil where tenants do not share it
}

type binding struct {
	counters store.Counters
	policy   limit.Policy
}

// New returns an engine that keeps its counters in st and decides by the limits of set.
func New(st store.Store, set *rules.Set, opts Options) (*Engine, error) {
	if opts.MaxOverrides <= 0 {
		opts.MaxOverrides = DefaultMaxOverrides
	}
	e := &Engine{
		store: st, observers: slices.Clone(opts.Observers), deciding: slices.Clone(opts.Decisions), trace: opts.Trace, raise: opts.Raise, shares: sharesOf(st, opts.Shares), quota: opts.Quota,
		deriver: opts.Derive,
	}
	e.queries.New = func() any { return new(Query) }
	e.overrides = override.New(st, opts.MaxOverrides, set.Options().CountAdmitted)
	var err error
	if e.lines, err = newLines(e); err != nil {
		return nil, err
	}
	if err := e.Swap(set); err != nil {
		return nil, err
	}
	return e, nil
}

// Set returns the configuration that decides now.
func (e *Engine) Set() *rules.Set { return e.live.Load().set }

// Attributes returns the names of the attributes that some limit reads, and of those from which others
// are derived.
func (e *Engine) Attributes() []string { return e.live.Load().attributes }

// Swap puts set in force. Counters are kept for variants whose ID stays the same, and dropped
// for others. A request that has begun is decided by the configuration it began with. On an
// error the old configuration stays in force with all its counters.
func (e *Engine) Swap(set *rules.Set) error {
	e.swap.Lock()
	defer e.swap.Unlock()
	old := e.live.Load()
	if old == nil {
		old = &snapshot{}
	}
	next, err := e.bind(set, old)
	if err == nil {
		next.queues, err = waitqueue.Bind(set, old.queues, atOnce{e}, func() waitqueue.Queues { return e.live.Load().queues })
	}
	if err != nil {
		return errors.Join(err, e.restore(old, next))
	}
	for _, o := range e.deciding {
		o.Follow(set)
	}
	e.live.Store(next)
	if t, ok := e.shares.(*tenants.Table); ok {
		t.Keep(func(id string) bool { return next.shared[id] != nil })
	}
	old.queues.CloseUnless(next.queues)
	return e.unbind(next, old)
}

// bind makes a snapshot of set. On an error the snapshot has what was bound before it.
func (e *Engine) bind(set *rules.Set, old *snapshot) (*snapshot, error) {
	variants := set.Variants()
	s := &snapshot{
		set:   set,
		bound: make([]bound, len(variants)),
		byID:  make(map[string]*binding, len(variants)),
	}
	s.attributes = set.Attributes()
	if e.deriver != nil {
		s.derived, s.attributes = derivationOf(e.deriver(set), set.Attributes())
	}
	for _, l := range set.Limits() {
		b := &s.bound[l.Base.Index]
		b.shared = sharedOf(l, old.shared[l.Base.ID])
		if b.shared != nil {
			if s.shared == nil {
				s.shared = map[string]*shared{}
			}
			s.shared[l.Base.ID] = b.shared
		}
	}
	for _, v := range variants {
		b := &s.bound[v.Index]
		b.quota, b.window = v.Policy.Quota(), v.Policy.Window()
		b.nominal = b.quota
		if v.Nominal > 0 {
			b.nominal = v.Nominal
		}
		var err error
		if !v.Policy.Unlimited {
			if b.counters, err = e.bindOne(s, old, v.ID, v.Policy); err != nil {
				return s, err
			}
		}
		if v.BanID != "" {
			if b.ban, err = e.bindOne(s, old, v.BanID, v.BanPolicy); err != nil {
				return s, err
			}
		}
	}
	return s, nil
}

func (e *Engine) bindOne(s, old *snapshot, id string, p limit.Policy) (store.Counters, error) {
	if b := s.byID[id]; b != nil { // budgets of plans that share a counter
		return b.counters, nil
	}
	if b := old.byID[id]; b != nil && b.policy == p {
		s.byID[id] = b
		return b.counters, nil
	}
	c, err := e.store.Bind(store.Spec{ID: id, Policy: p})
	if err != nil {
		return nil, fmt.Errorf("engine: cannot bind the counters of %q: %w", id, err)
	}
	s.byID[id] = &binding{counters: c, policy: p}
	return c, nil
}

// restore undoes a failed bind: it drops new counters and restores changed policies.
func (e *Engine) restore(old, failed *snapshot) error {
	var errs []error
	for id, b := range failed.byID {
		was := old.byID[id]
		switch {
		case was == nil:
			errs = append(errs, e.store.Unbind(b.counters))
		case was != b:
			_, err := e.store.Bind(store.Spec{ID: id, Policy: was.policy})
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

func (e *Engine) unbind(next, old *snapshot) error {
	var errs []error
	for id, b := range old.byID {
		if next.byID[id] == nil {
			errs = append(errs, e.store.Unbind(b.counters))
		}
	}
	return errors.Join(errs...)
}

// Take decides one request by all limits that match it. Where one of them has on_exceed: queue the
// request waits for as long as it allows; see [Engine.TakeWithin]. The only allocation is the
// Decision's Results.
func (e *Engine) Take(ctx context.Context, req limit.Request) (limit.Decision, error) {
	if len(e.live.Load().queues) > 0 {
		return e.TakeWithin(ctx, req, limit.Never)
	}
	if _, err := e.identify(ctx, &req, false); err != nil {
		return limit.Decision{}, err
	}
	return e.take(ctx, req, nil)
}

// take decides at once. The attributes were derived for the snapshot derived; nil = they are as they came.
func (e *Engine) take(ctx context.Context, req limit.Request, derived *snapshot) (limit.Decision, error) {
	q := e.queries.Get().(*Query)
	defer e.release(q)
	q.derivedRequest(req, derived)
	if err := e.decideByLive(ctx, q); err != nil {
		return limit.Decision{}, err
	}
	d := q.Decision
	d.Results = append([]limit.Result(nil), d.Results...)
	d.Tags = slices.Clone(d.Tags)
	return d, nil
}

// Finish gives back the permits in flight that permit names. The request must have the
// attributes it was taken with. An error that wraps [store.ErrUnavailable] means that they may
// stay taken until the limits' time-outs; calling Finish again is harmless.
func (e *Engine) Finish(ctx context.Context, req limit.Request, permit uint64) error {
	s := e.live.Load()
	req.Attributes = s.derived.of(req.Attributes)
	defer e.lines.finished(ctx, req)
	if q := e.queueOf(s, req); q != nil {
		return q.Finish(ctx, req, permit) // and lets the first who waits ask
	}
	return e.finish(ctx, req, permit, s)
}

// Keep implements [limit.Keeper].
func (e *Engine) Keep(ctx context.Context, req limit.Request, permit uint64) error {
	q := e.queries.Get().(*Query)
	defer e.release(q)
	q.single(req)
	return e.finishQuery(ctx, q, permit, true)
}

// KeepQuery is Keep for a Query of [Engine.Decide].
func (e *Engine) KeepQuery(ctx context.Context, q *Query, permit uint64) error {
	return e.finishQuery(ctx, q, permit, true)
}

// finish is take for a permit that is given back.
func (e *Engine) finish(ctx context.Context, req limit.Request, permit uint64, derived *snapshot) error {
	q := e.queries.Get().(*Query)
	defer e.release(q)
	q.derivedRequest(req, derived)
	return e.FinishQuery(ctx, q, permit)
}

// FinishQuery is Finish for a Query of [Engine.Decide].
func (e *Engine) FinishQuery(ctx context.Context, q *Query, permit uint64) error {
	return e.finishQuery(ctx, q, permit, false)
}

func (e *Engine) finishQuery(ctx context.Context, q *Query, permit uint64, keep bool) error {
	if permit == 0 {
		return nil
	}
	s := e.live.Load()
	q.reset()
	if err := q.check(); err != nil {
		return err
	}
	if err := e.match(s, q); err != nil {
		return err
	}
	for i := range q.Hits {
		h := &q.Hits[i]
		if h.Variant == nil || h.missing || h.Variant.Policy.Algorithm != limit.Concurrency || h.Variant.Policy.Unlimited {
			continue
		}
		q.charges = append(q.charges, store.Charge{
			Counters: s.bound[h.Variant.Index].counters, Key: h.key, Permit: permit, Keep: keep, OnFailure: h.onFailure(),
		})
	}
	if len(q.charges) == 0 {
		return nil
	}
	err := e.store.Finish(ctx, q.charges)
	e.lost(err)
	return err
}

// NotReturned counts refunds and Finishes that the store did not answer. A permit in flight
// expires by itself then; any other cost stays taken until refill has replaced it.
func (e *Engine) NotReturned() uint64 { return e.notReturned.Load() }

// release puts a query back for the next request, unless one request made it so
// large that keeping it would waste memory.
func (e *Engine) release(q *Query) {
	if !q.Small() {
		return
	}
	q.one[0] = Descriptor{}
	q.Descriptors = nil
	clear(q.without)
	e.queries.Put(q)
}

// newPermit returns the number of a permit in flight: random, so that no client can guess
// another's; below 2^53, so that every JSON parser keeps it exactly; never 0.
func newPermit() uint64 {
	return rand.Uint64()>>11 | 1
}

// lost counts err if it says that the store did not answer, and reports whether it does.
func (e *Engine) lost(err error) bool {
	if !errors.Is(err, store.ErrUnavailable) {
		return false
	}
	e.notReturned.Add(1)
	return true
}

func (e *Engine) unlessLost(err error) error {
	if e.lost(err) {
		return nil
	}
	return err
}

// atOnce decides without a wait. What a request waits for is decided by the configuration of then, so attributes are
// derived anew.
type atOnce struct{ e *Engine }

func (a atOnce) Take(ctx context.Context, req limit.Request) (limit.Decision, error) {
	return a.e.take(ctx, req, nil)
}

func (a atOnce) Finish(ctx context.Context, req limit.Request, permit uint64) error {
	return a.e.finish(ctx, req, permit, nil)
}

// queueOf returns the queue of the first limit of a request that has one, or nil.
func (e *Engine) queueOf(s *snapshot, req limit.Request) *waitqueue.Queue {
	if len(s.queues) == 0 {
		return nil
	}
	q := e.queries.Get().(*Query)
	defer e.release(q)
	q.single(req)
	q.reset()
	q.matched, q.keys = s.set.Match("", req.Attributes, q.matched, q.keys)
	for i := range q.matched {
		if m := &q.matched[i]; m.Limit.OnExceed.MaxWait > 0 && !m.Shadow && m.Limit.Sharing == rules.SharingExact {
			return s.queues[m.Limit.Name]
		}
	}
	return nil
}

// TakeWithin is Take that lets the request wait for at most d where its limits have on_exceed:
// queue; with d of 0 it is refused at once. See [waitqueue.Queue.TakeWithin]. A delay that a leaky bucket asks
// for is then part of the wait.
func (e *Engine) TakeWithin(ctx context.Context, req limit.Request, d time.Duration) (limit.Decision, error) {
	repeated, err := e.identify(ctx, &req, d > 0 && len(e.live.Load().queues) > 0)
	if err != nil {
		return limit.Decision{}, err
	}
	if repeated {
		return e.take(ctx, req, nil)
	}
	return e.takeWithin(ctx, req, d, nil)
}

// takeWithin is TakeWithin for a request that is identified, whose attributes were derived for the snapshot derived.
func (e *Engine) takeWithin(ctx context.Context, req limit.Request, d time.Duration, derived *snapshot) (limit.Decision, error) {
	s := e.live.Load()
	if len(s.queues) == 0 || req.Peek || d <= 0 || req.Cost < 0 {
		return e.take(ctx, req, derived)
	}
	if derived != s {
		req.Attributes = s.derived.of(req.Attributes)
	}
	if q := e.queueOf(s, req); q != nil {
		return q.TakeWithin(ctx, req, d)
	}
	return e.take(ctx, req, s)
}

// QueueTallies returns those of all queues.
func (e *Engine) QueueTallies() []waitqueue.Tally { return e.live.Load().queues.Tallies() }
