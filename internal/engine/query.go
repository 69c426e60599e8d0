package engine

import (
	"fmt"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
)

// Query is one question of several descriptors that is decided as one. Fill in
// the upper part, call [Engine.Decide], read the lower part. A Query may be used
// again and again, which saves its allocations, but by one goroutine at a time.
// The zero value asks nothing and is allowed.
type Query struct {
	// Domain selects Envoy's files. Limits in stint's own format apply in
	// every domain.
	Domain string
	// Descriptors are matched one by one and decided together. A limit in
	// stint's own format that several of them meet with the same key is charged
	// once, with the largest of their costs; a rule of Envoy's is charged for each.
	Descriptors []Descriptor
	// Peek takes nothing and counts nothing. The Decision says whether the
	// descriptors would be admitted; what remains of each limit is what there is.
	Peek bool
	// CountRefused charges every limit even if one of them refuses: see
	// limit.Request.
	CountRefused bool

	// Decision is the answer. Its Results belong to the Query.
	Decision limit.Decision
	// Hits says for each descriptor which limits it met; see [Query.HitsOf].
	Hits []Hit

	one     [1]Descriptor
	matched []rules.Matched
	keys    []byte
	parts   []part
	charges []store.Charge
	refunds []store.Charge
	skipped []skipped

	// Where there are many parts: the latest of each variant, and how many are
	// in the chains behind them. See link.
	latest map[*rules.Variant]int
	linked int
}

// Descriptor is one set of attributes.
type Descriptor struct {
	Attributes []limit.Attribute

	// Cost is taken literally: 0 asks and takes nothing. At most limit.MaxCount.
	Cost int64

	// Refund gives Cost back instead of taking it.
	Refund bool

	// Override, when HasOverride is set, replaces every rule of Envoy's for
	// this descriptor by this many per period. It applies only where the
	// domain is configured.
	Override    limit.Rate
	HasOverride bool

	first, end int // its part of Hits
}

// Hit is one limit that one descriptor met.
type Hit struct {
	// Limit and Variant are nil for an override that came with the request.
	Limit   *rules.Limit
	Variant *rules.Variant
	// Rate is the override's rate.
	Rate limit.Rate
	// Result is an index into Decision.Results, or -1 when the limit neither
	// counts nor refuses: a rule without a limit, or one that another replaced.
	Result int

	override *override
	key      []byte
	shadow   bool
	missing  bool
}

// skipped is a limit that was meant for the request and does not apply.
type skipped struct {
	tally *tally
	why   rules.Skip
}

// part is what stands behind one Result.
type part struct {
	hit         int
	before      int // the part of the same variant before this one; see link
	charge, ban int // indices into charges; -1 = none
	soft        int // percent; 0 = none
	status      int
	near        int64 // of a rule in Envoy's format, what is used when it is near its limit; -1 = none
	shadow      bool  // refuses nothing
	quota       bool  // refuses only together with all other quota parts
	envoy       bool
	countAlways bool
	tally       *tally
}

// HitsOf returns the hits of descriptor i.
func (q *Query) HitsOf(i int) []Hit {
	d := &q.Descriptors[i]
	return q.Hits[d.first:d.end]
}

// InQuota reports whether h refuses only together with all other quotas of the
// request.
func (q *Query) InQuota(h *Hit) bool { return h.Result >= 0 && q.parts[h.Result].quota }

// Small reports whether q's buffers are of an ordinary size, worth keeping for
// the next request.
func (q *Query) Small() bool {
	const most = 1 << 10
	return cap(q.charges) <= most && cap(q.keys) <= most<<5 && cap(q.Descriptors) <= most
}

// single makes q ask what req asks.
func (q *Query) single(req limit.Request) {
	cost := req.Cost
	if cost == 0 {
		cost = 1
	}
	q.one[0] = Descriptor{Attributes: req.Attributes, Cost: cost}
	q.Descriptors = q.one[:]
	q.Domain, q.Peek, q.CountRefused = "", req.Peek, req.CountRefused
}

func (q *Query) reset() {
	q.Decision = limit.Decision{Results: q.Decision.Results[:0]}
	q.Hits = q.Hits[:0]
	q.matched, q.keys = q.matched[:0], q.keys[:0]
	q.parts, q.charges, q.refunds = q.parts[:0], q.charges[:0], q.refunds[:0]
	q.skipped = q.skipped[:0]
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
