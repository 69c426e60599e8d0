package engine

import (
	"bytes"

	"github.com/stint-io/stint/rules"
)

// merge finds an earlier part with the same counter and raises its cost. Rules of
// Envoy's are never merged.
func (q *Query) merge(h *Hit, d *Descriptor) bool {
	if h.Variant == nil || h.Limit.Envoy || d.Refund {
		return false
	}
	k := q.earlier(h)
	if k < 0 {
		return false
	}
	h.Result = k
	if p, r := &q.parts[k], &q.Decision.Results[k]; d.Cost > r.Cost {
		r.Cost = d.Cost
		if p.charge >= 0 {
			q.charges[p.charge].Cost = d.Cost
		}
		if p.ban >= 0 {
			q.charges[p.ban].Cost = 1
		}
	}
	return true
}

// fewParts is up to how many parts are searched linearly. Not more: a hundred descriptors with
// hundreds of limits each would take seconds. Not fewer: an ordinary request has no more, and
// the search is faster than a map.
const fewParts = 32

// earlier returns the part that has the counter of h, or -1.
func (q *Query) earlier(h *Hit) int {
	if len(q.parts) <= fewParts {
		for k := range q.parts {
			if q.shares(k, h) {
				return k
			}
		}
		return -1
	}
	q.link()
	for n := q.latest[h.Variant]; n > 0; n = q.parts[n-1].before {
		if q.shares(n-1, h) {
			return n - 1
		}
	}
	return -1
}

// link chains the parts of each variant, the latest first. Parts are counted from
// 1 here, so that 0 ends a chain.
func (q *Query) link() {
	if q.latest == nil {
		q.latest = make(map[*rules.Variant]int)
	}
	for ; q.linked < len(q.parts); q.linked++ {
		p := &q.parts[q.linked]
		v := q.Hits[p.hit].Variant
		p.before = q.latest[v]
		q.latest[v] = q.linked + 1
	}
}

// shares reports whether part k has the same counter as h.
func (q *Query) shares(k int, h *Hit) bool {
	p := &q.parts[k]
	o := &q.Hits[p.hit]
	return o.Variant == h.Variant && o.missing == h.missing && bytes.Equal(o.key, h.key) &&
		(p.charge < 0 || !q.refunded(p.charge))
}

func (q *Query) refunded(charge int) bool {
	for i := range q.refunds {
		if q.refunds[i].Counters == q.charges[charge].Counters && bytes.Equal(q.refunds[i].Key, q.charges[charge].Key) {
			return true
		}
	}
	return false
}
