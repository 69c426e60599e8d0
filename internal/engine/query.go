package engine

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/stint-io/stint/internal/override"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
)

// ErrBadRequest is wrapped by every error that the caller's request caused. All
// other errors are the store's, or the context's; [store.ErrUnavailable] is wrapped
// by those of a store that did not answer.
var ErrBadRequest = errors.New("bad request")

// Query is a request of several descriptors that are decided as one. Set the upper fields, call
// [Engine.Decide], read the lower ones. A Query may be reused, which saves its allocations, but
// by one goroutine at a time. The zero value has no descriptors and is allowed.
type Query struct {
	// Domain selects the rules in Envoy's format. Limits in stint's own format apply in every
	// domain.
	Domain string
	// Descriptors are matched one by one and decided together. A limit in stint's own format
	// that applies to several of them with the same key is charged once, with the largest of
	// their costs; a rule in Envoy's format is charged for each.
	Descriptors []Descriptor
	// Peek takes nothing and counts nothing. The Decision says whether the
	// descriptors would be admitted; what remains of each limit is what there is.
	Peek bool
	// CountRefused charges every limit even if one of them refuses: see
	// limit.Request.
	CountRefused bool
	// IdempotencyKey is that of limit.Request. No descriptor may give back.
	IdempotencyKey string

	// Decision is the answer. Its Results belong to the Query.
	Decision limit.Decision
	// Hits are the limits that apply to each descriptor; see [Query.HitsOf].
	Hits []Hit

	identity string // see identify
	reserve  bool   // the cost is an estimate: see TakeParts
	one      [1]Descriptor
	matched  []rules.Matched
	keys     []byte
	parts    []part
	charges  []store.Charge
	refunds  []store.Charge
	// standing are charges that took nothing after all, or whose cost was given back.
	standing []*store.Charge
	skipped  []skipped
	set      *rules.Set
	derived  *snapshot // the next match is given what is derived for it; nil = it derives
	without  []Without

	// Of limits that tenants share: what is asked, what is given back, and the names of the tenants.
	gates, returned []gate
	tenants         []byte

	// With many parts: the latest part of each variant, and how many parts are linked. See
	// link.
	latest map[*rules.Variant]int
	linked int
}

// Descriptor is one set of attributes.
type Descriptor struct {
	Attributes []limit.Attribute
	// Described says that they are the entries of a descriptor of Envoy's. Rules in its format match them as they came;
	// limits in stint's format see an address as ip, and a path as other transports give it.
	Described bool

	// Cost has no default: 0 takes nothing. At most limit.MaxCount.
	Cost int64

	// Refund gives Cost back instead of taking it.
	Refund bool

	// Override, when HasOverride is set, replaces every rule of Envoy's for
	// this descriptor by this many per period. It applies only where the
	// domain is configured.
	Override    limit.Rate
	HasOverride bool

	// Derived are the attributes that limits in stint's format see. Decide sets it.
	Derived []limit.Attribute

	first, end int // its part of Hits
}

// Hit is one limit that applies to one descriptor.
type Hit struct {
	// Limit and Variant are nil for an override that came with the request.
	Limit   *rules.Limit
	Variant *rules.Variant
	// Rate is the override's rate.
	Rate limit.Rate
	// Result is an index into Decision.Results, or -1 when the limit neither
	// counts nor refuses: a rule without a limit, or one that another replaced.
	Result int

	override *override.Table
	key      []byte
	despite  bool // the condition could not be evaluated
	shadow   bool
	missing  bool
	lacks    bool // the descriptor lacks an attribute of the key
}

// skipped is a limit that matched the request and does not apply.
type skipped struct {
	limit *rules.Limit
	why   rules.Skip
	// descriptor is the index of that for which it is skipped.
	descriptor int
}

// reason is that of an admitted request without the limit.
func (s *skipped) reason() Unlimited {
	if s.why == rules.SkipCondition {
		return ConditionFailed
	}
	return MissingKey
}

// part has the charges and options behind one Result.
type part struct {
	hit         int
	descriptor  int
	before      int  // the part of the same variant before this one; see link
	charge, ban int  // indices into charges; -1 = none
	soft        int  // percent; 0 = none
	after       bool // as rules.Limit.ChargeAfter
	status      int
	shadow      bool // refuses nothing
	quota       bool // refuses only together with all other quota parts
	envoy       bool
	countAlways bool
	exceed      *rules.OnExceed // nil for a limit that came with the request
}

// HitsOf returns the hits of descriptor i.
func (q *Query) HitsOf(i int) []Hit {
	d := &q.Descriptors[i]
	return q.Hits[d.first:d.end]
}

// ConditionFailed reports whether the condition of the limit could not be evaluated, so that it applies as its
// OnConditionError says.
func (h *Hit) ConditionFailed() bool { return h.despite }

// InQuota reports whether h refuses only together with all other quotas of the
// request.
func (q *Query) InQuota(h *Hit) bool { return h.Result >= 0 && q.parts[h.Result].quota }

// Small reports whether q's buffers are small enough to keep for the next request.
func (q *Query) Small() bool {
	const most = 1 << 10
	return cap(q.charges) <= most && cap(q.keys) <= most<<5 && cap(q.Descriptors) <= most
}

// single makes req the only descriptor of q. The idempotency key of req is an identity; see [Engine.identify].
func (q *Query) single(req limit.Request) {
	q.one[0] = Descriptor{Attributes: req.Attributes, Cost: cmp.Or(req.Cost, 1)}
	q.Descriptors = q.one[:]
	q.Domain, q.Peek, q.CountRefused, q.IdempotencyKey, q.identity = "", req.Peek, req.CountRefused, "", req.IdempotencyKey
	q.derived = nil
}

// derivedRequest is single for a request whose attributes were derived for s; nil = they are as they came.
func (q *Query) derivedRequest(req limit.Request, s *snapshot) {
	q.single(req)
	q.one[0].Derived, q.derived = req.Attributes, s
}

func (q *Query) reset() {
	q.Decision = limit.Decision{Results: q.Decision.Results[:0], Tags: q.Decision.Tags[:0]}
	q.Hits = q.Hits[:0]
	q.matched, q.keys = q.matched[:0], q.keys[:0]
	q.parts, q.charges, q.refunds = q.parts[:0], q.charges[:0], q.refunds[:0]
	q.skipped = q.skipped[:0]
	clear(q.without)
	q.without = q.without[:0]
	q.gates, q.returned, q.tenants = q.gates[:0], q.returned[:0], q.tenants[:0]
	clear(q.latest)
	q.linked = 0
}

func (q *Query) check() error {
	for i := range q.Descriptors {
		d := &q.Descriptors[i]
		if d.Cost < 0 || d.Cost > limit.MaxCount {
			return fmt.Errorf("engine: %w: the cost of descriptor %d is %d, want 0 to %d", ErrBadRequest, i, d.Cost, int64(limit.MaxCount))
		}
		if !d.HasOverride {
			continue
		}
		if err := d.Override.Validate(); err != nil {
			return fmt.Errorf("engine: %w: the limit override of descriptor %d: %w", ErrBadRequest, i, err)
		}
		if d.Override.Period <= 0 {
			return fmt.Errorf("engine: %w: the limit override of descriptor %d has no unit, set one from SECOND to YEAR", ErrBadRequest, i)
		}
	}
	return nil
}

// Policy returns the policy that the hit was decided by.
func (h *Hit) Policy() limit.Policy {
	if h.Variant == nil {
		return limit.Policy{Algorithm: limit.FixedWindow, Rate: h.Rate, CountRefused: true}
	}
	return h.Variant.Policy
}

// Key is the key of the limit's bucket that the hit selects; see [rules.Limit.KeyText]. It belongs to the
// Query and is valid until the next Decide.
func (h *Hit) Key() []byte { return h.key }

// onFailure says how the hit is decided where the store does not answer. For Envoy's rules, and
// for limits that come with a request, the proxy decides (failure_mode_deny): it gets an error.
func (h *Hit) onFailure() store.OnFailure {
	if h.Limit == nil || h.Limit.Envoy {
		return store.FailTake
	}
	switch h.Limit.OnStoreFailure {
	case rules.FailureReject:
		return store.FailReject
	case rules.FailureLocal:
		return store.FailLocal
	default:
		return store.FailAllow
	}
}

// clamp makes the cost of a reservation one that each limit can admit.
func (q *Query) clamp() {
	d := &q.Descriptors[0]
	most := d.Cost
	for i := range q.parts {
		p, r := &q.parts[i], &q.Decision.Results[i]
		if p.charge < 0 {
			continue
		}
		if c := &q.charges[p.charge]; r.Algorithm == limit.Concurrency {
			c.Cost = min(c.Cost, 1)
		} else if !r.Shadow && r.Quota > 0 {
			most = min(most, r.Quota)
		}
	}
	d.Cost = most
	for i := range q.parts {
		r := &q.Decision.Results[i]
		r.Cost = most
		if c := q.parts[i].charge; c >= 0 {
			q.charges[c].Cost = min(q.charges[c].Cost, most)
			r.Cost = q.charges[c].Cost
		}
	}
}
