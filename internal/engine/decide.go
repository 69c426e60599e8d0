package engine

import (
	"bytes"
	"context"
	"errors"
	"math"
	"math/bits"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
)

// The HTTP status of a refusal: tooManyRequests where the limit does not ask for
// another, unavailable where a limit refuses because its store did not answer,
// whatever it asks for, as that is no fault of the client.
const (
	tooManyRequests = 429
	unavailable     = 503
)

// placeWait is when to ask again for a place in flight. Nobody knows when one comes
// free; the store only knows when it is taken away from a caller that never
// finishes, and to wait for that long, an hour perhaps, is no advice.
const placeWait = time.Second

// Decide answers q. All descriptors are decided as one: a refusal by one limit
// charges none of the others, apart from those that count refused requests, as
// Envoy's rules do. An error means that nothing was decided and, unless it wraps
// [store.ErrUnavailable], nothing taken; it wraps [ErrBadRequest] when the query is
// at fault.
func (e *Engine) Decide(ctx context.Context, q *Query) error {
	for {
		s := e.live.Load()
		err := e.decide(ctx, s, q)
		// What an unavailable store was asked for may have been taken: asking
		// again could take it twice, and would wait as long again.
		if err == nil || errors.Is(err, ErrBadRequest) || errors.Is(err, store.ErrUnavailable) || ctx.Err() != nil {
			return err
		}
		// The configuration may have been swapped, and its counters dropped,
		// between the load and the store's answer. Ask again by the new one,
		// unless something was given back already.
		if e.live.Load() == s || len(q.refunds) > 0 {
			return err
		}
	}
}

func (e *Engine) decide(ctx context.Context, s *snapshot, q *Query) error {
	q.reset()
	if err := q.check(); err != nil {
		return err
	}
	if err := e.match(s, q); err != nil {
		return err
	}
	missing, n := e.assess(s, q)
	allowed := true
	if len(q.charges) > 0 {
		var err error
		if allowed, err = e.charge(ctx, q, missing, n); err != nil {
			return err
		}
	}
	q.conclude(allowed && !missing)
	if !q.Peek {
		for i := range q.skipped {
			q.skipped[i].tally.skipped[q.skipped[i].why].Add(1)
		}
		for i := range q.parts {
			p, r := &q.parts[i], &q.Decision.Results[i]
			p.tally.count(r)
			if p.near >= 0 && (q.Decision.Allowed || p.countAlways) {
				p.tally.countNear(r, q.charges[p.charge].Cost, p.near)
			}
		}
	}
	return nil
}

// match fills in the hits of every descriptor.
func (e *Engine) match(s *snapshot, q *Query) error {
	replaces := false
	for i := range q.Descriptors {
		d := &q.Descriptors[i]
		d.first = len(q.Hits)
		from := len(q.matched)
		q.matched, q.keys = s.set.MatchAll(q.Domain, d.Attributes, q.matched, q.keys)
		for j := from; j < len(q.matched); j++ {
			m := &q.matched[j]
			if m.Skip != rules.SkipNone {
				q.skipped = append(q.skipped, skipped{s.bound[m.Limit.Base.Index].tally, m.Skip})
				continue
			}
			if m.Limit.Envoy && d.HasOverride {
				continue
			}
			replaces = replaces || len(m.Limit.Replaces) > 0
			q.Hits = append(q.Hits, Hit{
				Limit: m.Limit, Variant: m.Variant,
				key: m.Key, shadow: m.Shadow, missing: m.Missing,
			})
		}
		if d.HasOverride && s.set.HasDomain(q.Domain) {
			o, err := e.overrides.get(d.Override.Period, time.Now())
			if err != nil {
				return err
			}
			from := len(q.keys)
			q.keys = appendOverrideKey(q.keys, q.Domain, d.Attributes)
			q.Hits = append(q.Hits, Hit{Rate: d.Override, override: o, key: q.keys[from:len(q.keys):len(q.keys)]})
		}
		d.end = len(q.Hits)
	}
	if replaces {
		q.replace()
	}
	return nil
}

// replace takes out the rules that another rule of the same request replaces.
// Rules that are unlimited, or themselves replaced, replace as well.
func (q *Query) replace() {
	for i := range q.Hits {
		l := q.Hits[i].Limit
		if l == nil {
			continue
		}
		for _, name := range l.Replaces {
			for j := range q.Hits {
				h := &q.Hits[j]
				if h.Limit != nil && h.Limit.Envoy && h.Limit.Alias == name && !h.Variant.Policy.Unlimited {
					h.Result = -1
				}
			}
		}
	}
}

// quotas are the quota rules that a request meets. They refuse it only if all of
// them refuse.
type quotas struct {
	enforced int
	// room says that one of them never refuses: it is a shadow, or stands for a
	// descriptor that meets no rule where every descriptor is a quota.
	room bool
}

// together reports whether the quotas have to be decided from all their answers. A
// single one is like any other rule, and the store decides it.
func (n quotas) together() bool { return n.enforced > 1 || n.enforced == 1 && n.room }

// assess turns hits into results and charges. It reports whether an enforced
// limit misses its key, and which quota rules there are.
func (e *Engine) assess(s *snapshot, q *Query) (missing bool, n quotas) {
	for i := range q.Descriptors {
		d := &q.Descriptors[i]
		counted := !e.quota // whether the descriptor's part in the quotas is known
		for j := d.first; j < d.end; j++ {
			h := &q.Hits[j]
			if h.Result < 0 || h.Limit != nil && h.Limit.Whitelist {
				h.Result = -1
				continue
			}
			if i > 0 && q.merge(h, d) {
				continue
			}
			h.Result = len(q.parts)
			p, r := e.part(s, q, h, d)
			p.hit = j
			q.parts = append(q.parts, p)
			q.Decision.Results = append(q.Decision.Results, r)
			switch {
			case p.quota && p.shadow:
				n.room = true
			case p.quota:
				n.enforced++
			}
			counted = counted || p.envoy
			missing = missing || h.missing && !p.shadow
		}
		n.room = n.room || !counted
	}
	// None of several may stop the others, so the store must not enforce them.
	if n.together() {
		for i := range q.parts {
			if p := &q.parts[i]; p.quota && p.charge >= 0 {
				q.charges[p.charge].Shadow = true
			}
		}
	}
	return missing, n
}

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

// fewParts is how many parts are looked through one by one. Not more: a hundred
// descriptors that each meet hundreds of limits would take seconds. Not fewer: an
// ordinary request has no more of them, and looking is faster than a map.
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

// shares reports whether part k has the counter of h.
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

// part makes the result of one hit and appends the charges behind it.
func (e *Engine) part(s *snapshot, q *Query, h *Hit, d *Descriptor) (part, limit.Result) {
	p := part{charge: -1, ban: -1, shadow: h.shadow, status: tooManyRequests}
	r := limit.Result{Algorithm: h.Policy().Algorithm, Cost: d.Cost, Shadow: h.shadow}
	var c, ban store.Counters
	if h.Variant == nil {
		c = h.override.counters
		p.envoy, p.countAlways, p.tally = true, !e.overrides.countAdmitted || q.CountRefused, &e.overrideTally
		p.quota, p.near = e.quota, e.near(h.Rate.Count)
		r.Limit, r.Quota, r.Window = OverrideName, h.Rate.Count, h.override.window
	} else {
		b := &s.bound[h.Variant.Index]
		c, ban = b.counters, b.ban
		p.envoy, p.soft, p.tally = h.Limit.Envoy, h.Limit.SoftPercent, b.tally
		p.quota = p.envoy && c != nil && (h.Limit.QuotaMode || e.quota)
		p.near = b.near
		p.countAlways = h.Variant.Policy.CountRefused || q.CountRefused && h.Variant.Policy.Algorithm != limit.Concurrency
		if h.Limit.Status != 0 {
			p.status = h.Limit.Status
		}
		r.Limit, r.Quota, r.Window, r.Detail = h.Limit.Name, b.quota, b.window, h.Variant.Detail
	}
	switch {
	case h.missing:
		r.Verdict = limit.Verdict{Reason: limit.ReasonMissing, RetryAfter: limit.Never}
		return p, r
	case c == nil:
		r.Verdict = limit.Verdict{Allowed: true, Remaining: math.MaxInt64}
		return p, r
	}
	charge := store.Charge{
		Counters: c, Key: h.key, Cost: d.Cost, Shadow: h.shadow, OnFailure: h.onFailure(), CountRefused: q.CountRefused,
	}
	if h.Variant == nil {
		charge.Quota, charge.HasQuota = h.Rate.Count, true
	}
	if h.Variant != nil && h.Variant.Policy.Algorithm == limit.Concurrency && !q.Peek && d.Cost > 0 && !d.Refund {
		if q.Decision.Permit == 0 {
			q.Decision.Permit = newPermit()
		}
		charge.Permit = q.Decision.Permit
	}
	if d.Refund {
		if d.Cost > 0 && !q.Peek {
			q.refunds = append(q.refunds, charge)
		}
		charge.Cost = 0
		ban = nil
	}
	p.charge = len(q.charges)
	q.charges = append(q.charges, charge)
	if ban != nil {
		// A ban is for those who ask too often, whatever each request costs.
		charge.Counters, charge.Permit, charge.Cost = ban, 0, min(d.Cost, 1)
		p.ban = len(q.charges)
		q.charges = append(q.charges, charge)
	}
	return p, r
}

// conclude fills in the results from the charges, and the decision from the results.
func (q *Query) conclude(allowed bool) {
	d := &q.Decision
	d.Allowed = allowed
	places := false
	for i := range q.parts {
		p, r := &q.parts[i], &d.Results[i]
		if p.charge >= 0 {
			c := &q.charges[p.charge]
			r.Verdict, r.StoreFailed = c.Verdict, c.Failed
			places = places || c.Permit != 0 && c.Verdict.Allowed
			if r.Reason == limit.ReasonConcurrency {
				r.RetryAfter = min(r.RetryAfter, placeWait)
			}
		}
		if p.ban >= 0 {
			foldBan(&r.Verdict, &q.charges[p.ban].Verdict)
			r.StoreFailed = r.StoreFailed || q.charges[p.ban].Failed
		}
		switch {
		case !allowed:
			if !r.Allowed && !r.Shadow && d.Status == 0 {
				d.Status = p.status
				if r.Reason == limit.ReasonStoreFailure {
					d.Status = unavailable
				}
			}
		case r.Allowed:
			// Nobody knows how full a limit is whose counters were not reached.
			left := r.Remaining
			if q.Peek {
				left -= r.Cost // as it would be after the request
			}
			r.Soft = p.soft > 0 && !r.StoreFailed && above(r.Quota, max(left, 0), p.soft)
			if !r.Shadow {
				d.Delay = max(d.Delay, r.Delay)
			}
		}
	}
	if !allowed && d.Status == 0 {
		d.Status = tooManyRequests
	}
	if !allowed || !places {
		d.Permit = 0
	}
}

// foldBan makes a refusal by the attempts counter the limit's own. A key whose
// attempts cannot be read is not banned for that.
func foldBan(v, ban *limit.Verdict) {
	if ban.Allowed {
		return
	}
	reason := limit.ReasonBanned
	if ban.Reason == limit.ReasonStoreFailure {
		reason = ban.Reason
		if !v.Allowed {
			reason = v.Reason
		}
	}
	v.Allowed, v.Reason, v.Remaining, v.Delay = false, reason, 0, 0
	v.RetryAfter = max(v.RetryAfter, ban.RetryAfter)
	v.ResetAfter = max(v.ResetAfter, ban.ResetAfter)
}

// above reports whether more than percent of quota is used.
func above(quota, remaining int64, percent int) bool {
	uHi, uLo := bits.Mul64(uint64(max(quota-remaining, 0)), 100)
	tHi, tLo := bits.Mul64(uint64(quota), uint64(percent))
	return uHi > tHi || uHi == tHi && uLo > tLo
}

// Policy returns the policy that the hit was decided by.
func (h *Hit) Policy() limit.Policy {
	if h.Variant == nil {
		return limit.Policy{Algorithm: limit.FixedWindow, Rate: h.Rate, CountRefused: true}
	}
	return h.Variant.Policy
}
