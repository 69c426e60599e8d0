// Package engine decides: it matches a request with the limits of the
// configuration, charges all of them as one at a store, and says how each stands.
//
// It speaks no protocol, keeps no counters and reads no file: those are the
// transports, the store and package rules. It never imports a metrics library;
// [Engine.Tallies] lets others read what it counted.
package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
)

// ErrBadRequest is wrapped by every error that the caller's request caused. All
// other errors are the store's, or the context's; [store.ErrUnavailable] is wrapped
// by those of a store that did not answer.
var ErrBadRequest = errors.New("bad request")

// Options are the choices of an Engine. The zero value is ready to use.
type Options struct {
	// MaxOverrides bounds how many different periods the limits that came with
	// requests and are live have; 0 = [DefaultMaxOverrides].
	MaxOverrides int

	// Quota makes every rule in Envoy's format, and every limit that comes with a
	// request, a quota: together they refuse only what all of them refuse. A
	// descriptor that meets no rule is a quota with room.
	Quota bool

	// NearLimit is the share of a rule in Envoy's format above which the hits that it
	// admits are counted as near the limit, from 0 to 1; 0 = [DefaultNearLimit].
	NearLimit float64
}

// DefaultNearLimit is the share that Envoy's own service begins with.
const DefaultNearLimit = 0.8

// Engine decides requests by a configuration that can be swapped while it runs.
// Make one with [New]. It is safe for concurrent use.
type Engine struct {
	store         store.Store
	live          atomic.Pointer[snapshot]
	overrides     overrides
	overrideTally tally
	quota         bool      // as in Options
	nearLimit     float32   // as in Options
	queries       sync.Pool // of *Query
	notReturned   atomic.Uint64

	swap struct {
		sync.Mutex // held by Swap, so that configurations replace each other one by one
	}
}

var (
	_ limit.Finisher        = (*Engine)(nil)
	_ limit.AttributeReader = (*Engine)(nil)
)

// snapshot is one configuration with its counters. It does not change once it is
// live, apart from the atomic numbers in its tallies.
type snapshot struct {
	set     *rules.Set
	bound   []bound             // by Variant.Index
	byID    map[string]*binding // every counter of the snapshot
	tallies map[string]*tally   // by limit name
}

// bound is what a variant needs at decision time.
type bound struct {
	counters store.Counters // nil when unlimited
	ban      store.Counters // nil without a ban
	quota    int64
	window   time.Duration
	near     int64 // see part
	tally    *tally
}

type binding struct {
	counters store.Counters
	policy   limit.Policy
}

// New returns an engine that keeps its counters in st and decides by set.
func New(st store.Store, set *rules.Set, opts Options) (*Engine, error) {
	if opts.MaxOverrides <= 0 {
		opts.MaxOverrides = DefaultMaxOverrides
	}
	if opts.NearLimit == 0 {
		opts.NearLimit = DefaultNearLimit
	}
	e := &Engine{store: st, quota: opts.Quota, nearLimit: float32(opts.NearLimit)}
	e.queries.New = func() any { return new(Query) }
	e.overrides.init(st, opts.MaxOverrides)
	e.overrides.countAdmitted = set.Options().CountAdmitted
	if err := e.Swap(set); err != nil {
		return nil, err
	}
	return e, nil
}

// Set returns the configuration that decides now.
func (e *Engine) Set() *rules.Set { return e.live.Load().set }

// Attributes returns the names of the attributes that some limit reads.
func (e *Engine) Attributes() []string { return e.Set().Attributes() }

// Swap makes set the configuration. Counters are kept wherever a variant of the
// same ID stays; those of variants that are gone are dropped. A request that has
// begun is decided by the configuration it began with. On an error the old
// configuration stays and every counter with it.
func (e *Engine) Swap(set *rules.Set) error {
	e.swap.Lock()
	defer e.swap.Unlock()
	old := e.live.Load()
	if old == nil {
		old = &snapshot{}
	}
	next, err := e.bind(set, old)
	if err != nil {
		return errors.Join(err, e.restore(old, next))
	}
	e.live.Store(next)
	return e.unbind(next, old)
}

// bind makes a snapshot of set. On an error the snapshot holds what was bound
// until then.
func (e *Engine) bind(set *rules.Set, old *snapshot) (*snapshot, error) {
	variants := set.Variants()
	s := &snapshot{
		set:     set,
		bound:   make([]bound, len(variants)),
		byID:    make(map[string]*binding, len(variants)),
		tallies: make(map[string]*tally, len(variants)),
	}
	for _, l := range set.Limits() {
		if b := &s.bound[l.Base.Index]; l.Envoy && !l.Base.Policy.Unlimited {
			b.near = e.near(l.Base.Policy.Quota())
		} else {
			b.near = -1
		}
		t := s.tallies[l.Name]
		if t == nil {
			if t = old.tallies[l.Name]; t == nil {
				t = new(tally)
			}
			s.tallies[l.Name] = t
		}
		s.bound[l.Base.Index].tally = t
		for i := range l.Overrides {
			b := &s.bound[l.Overrides[i].Variant.Index]
			b.tally, b.near = t, -1
		}
	}
	for _, v := range variants {
		b := &s.bound[v.Index]
		b.quota, b.window = v.Policy.Quota(), v.Policy.Window()
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

// near returns how much of a quota is used when it is near its limit.
func (e *Engine) near(quota int64) int64 {
	// As Envoy's own service rounds it.
	return int64(math.Floor(float64(float32(quota) * e.nearLimit)))
}

func (e *Engine) bindOne(s, old *snapshot, id string, p limit.Policy) (store.Counters, error) {
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

// restore undoes what a failed bind did: new counters go, changed policies
// become what they were.
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

// Take decides one request by all limits that match it. Its only allocation is
// the Decision's Results.
func (e *Engine) Take(ctx context.Context, req limit.Request) (limit.Decision, error) {
	q := e.queries.Get().(*Query)
	defer e.release(q)
	q.single(req)
	if err := e.Decide(ctx, q); err != nil {
		return limit.Decision{}, err
	}
	d := q.Decision
	d.Results = append([]limit.Result(nil), d.Results...)
	return d, nil
}

// Finish gives back the places in flight that permit names. The request must
// have the attributes it was taken with. An error that wraps
// [store.ErrUnavailable] means that the places may be held until the limits'
// time-outs: nothing is wrong with the request that held them, and asking again is
// harmless.
func (e *Engine) Finish(ctx context.Context, req limit.Request, permit uint64) error {
	q := e.queries.Get().(*Query)
	defer e.release(q)
	q.single(req)
	return e.FinishQuery(ctx, q, permit)
}

// FinishQuery is Finish for what [Engine.Decide] was asked.
func (e *Engine) FinishQuery(ctx context.Context, q *Query, permit uint64) error {
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
			Counters: s.bound[h.Variant.Index].counters, Key: h.key, Permit: permit, OnFailure: h.onFailure(),
		})
	}
	if len(q.charges) == 0 {
		return nil
	}
	err := e.store.Finish(ctx, q.charges)
	e.lost(err)
	return err
}

// NotReturned is how often the store did not answer when something was to be given
// back to it. A place in flight ends by itself then; any other amount stays taken
// until its limit has recovered.
func (e *Engine) NotReturned() uint64 { return e.notReturned.Load() }

// release puts a query back for the next request, unless one request made it so
// large that keeping it would waste memory.
func (e *Engine) release(q *Query) {
	if !q.Small() {
		return
	}
	q.one[0] = Descriptor{}
	q.Descriptors = nil
	e.queries.Put(q)
}

// newPermit returns the name of a place in flight: random, so that nobody can
// end another's; below 2^53, so that it survives every JSON parser; never 0.
func newPermit() uint64 {
	return rand.Uint64()>>11 | 1
}
