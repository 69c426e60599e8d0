package engine

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/override"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
)

// The HTTP status of a refusal: tooManyRequests by default, and unavailable where a limit
// refuses because its store did not answer, whatever status it asks for: that is no fault of the
// client.
const (
	tooManyRequests = 429
	unavailable     = 503
)

// permitWait bounds the RetryAfter of a concurrency limit. When a permit is given back is not
// known; the store only knows when the permits of callers that never finish expire, which may be
// in an hour.
const permitWait = time.Second

// Decide answers q. All descriptors are decided as one: a refusal by one limit
// charges none of the others, apart from those that count refused requests, as
// Envoy's rules do. An error means that nothing was decided and, unless it wraps
// [store.ErrUnavailable], nothing taken; it wraps [ErrBadRequest] when the query is
// at fault.
func (e *Engine) Decide(ctx context.Context, q *Query) error {
	if err := q.identify(); err != nil {
		return err
	}
	return e.decideByLive(ctx, q)
}

// decideByLive decides q, whose identity is set, by the configuration in force.
func (e *Engine) decideByLive(ctx context.Context, q *Query) error {
	for {
		s := e.live.Load()
		err := e.decide(ctx, s, q)
		// An unavailable store may have taken the cost: asking again could take it twice, and
		// would wait for the time-out again.
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
	if q.reserve {
		q.clamp()
	}
	allowed := true
	if len(q.charges) > 0 {
		var err error
		if allowed, err = e.charge(ctx, q, missing, n); err != nil {
			return err
		}
	}
	if q.Decision.Repeated && allowed {
		q.repeat()
	}
	q.conclude(allowed && !missing)
	if q.set = s.set; q.Decision.Allowed {
		q.findWithout()
	}
	if !q.Peek {
		for _, o := range e.deciding {
			o.Decided(q)
		}
	}
	return nil
}

// findWithout finds the limits without which q is admitted. A rule in Envoy's format without a rate_limit matches: it says
// that nothing is to be limited.
func (q *Query) findWithout() {
	add := func(l *rules.Limit, name string, why Unlimited, seen []limit.Attribute) {
		q.without = append(q.without, Without{Limit: l, Name: name, Why: why, Attributes: seen})
	}
	for i := range q.skipped {
		if sk := &q.skipped[i]; !q.otherwise(i) {
			add(sk.limit, sk.limit.Name, sk.reason(), q.Descriptors[sk.descriptor].Derived)
		}
	}
	for i := range q.parts {
		r, h := &q.Decision.Results[i], &q.Hits[q.parts[i].hit]
		if !r.StoreFailed {
			continue
		}
		why := StoreFailed
		if h.Limit != nil && h.Limit.Sharing != rules.SharingExact {
			why = NoCoordinator
		}
		add(h.Limit, r.Limit, why, nil)
	}
	switch {
	case len(q.Hits) > 0 || len(q.skipped) > 0 || len(q.Descriptors) == 0:
	case q.Domain != "" && !q.set.HasDomain(q.Domain):
		add(nil, "", UnknownDomain, nil)
	default:
		add(nil, "", NoMatch, nil)
	}
}

// otherwise reports whether the limit that was skipped for a descriptor applies to another one, or was skipped for one
// before: it is then not for want of this limit that the query is admitted, or the limit is counted already.
func (q *Query) otherwise(i int) bool {
	if len(q.Descriptors) == 1 {
		return false
	}
	of := func(l *rules.Limit) bool { return l == q.skipped[i].limit }
	return slices.ContainsFunc(q.skipped[:i], func(s skipped) bool { return of(s.limit) }) ||
		slices.ContainsFunc(q.Hits, func(h Hit) bool { return h.Result >= 0 && of(h.Limit) })
}

// Hole is a limit without which a request is admitted. Limit is empty when no limit matches.
type Hole struct {
	Limit string
	Why   Unlimited
}

// Holes returns the limits without which q, which was decided, is admitted. A refused query has none.
func (q *Query) Holes() (holes []Hole) {
	for i := range q.without {
		w := &q.without[i]
		if h := (Hole{w.Name, w.Why}); !slices.Contains(holes, h) {
			holes = append(holes, h)
		}
	}
	return holes
}

// Matching returns the limits that apply to a descriptor of Envoy's.
func (e *Engine) Matching(domain string, entries []limit.Attribute) []rules.Matched {
	s := e.live.Load()
	d := Descriptor{Attributes: entries, Described: true}
	all, _ := s.set.MatchAll(domain, s.derived.ofDescriptor(&d), entries, nil, nil)
	return slices.DeleteFunc(all, func(m rules.Matched) bool { return m.Skip != rules.SkipNone })
}

// match fills in the hits of every descriptor.
func (e *Engine) match(s *snapshot, q *Query) error {
	replaces, derived := false, q.derived == s
	q.derived = nil
	for i := range q.Descriptors {
		d := &q.Descriptors[i]
		if !derived {
			d.Derived = s.derived.ofDescriptor(d)
		}
		d.first = len(q.Hits)
		from := len(q.matched)
		q.matched, q.keys = s.set.MatchAll(q.Domain, d.Derived, d.Attributes, q.matched, q.keys)
		for j := from; j < len(q.matched); j++ {
			m := &q.matched[j]
			if m.Skip != rules.SkipNone {
				q.skipped = append(q.skipped, skipped{m.Limit, m.Skip, i})
				continue
			}
			if m.Limit.Envoy && d.HasOverride {
				continue
			}
			replaces = replaces || len(m.Limit.Replaces) > 0
			q.Hits = append(q.Hits, Hit{
				Limit: m.Limit, Variant: m.Variant,
				key: m.Key, shadow: m.Shadow, missing: m.Missing, lacks: m.Lacks, despite: m.ConditionFailed,
			})
		}
		if d.HasOverride && s.set.HasDomain(q.Domain) {
			o, err := e.overrides.Get(d.Override.Period, time.Now())
			if errors.Is(err, override.ErrTooMany) {
				return fmt.Errorf("engine: %w: %w", ErrBadRequest, err)
			}
			if err != nil {
				return err
			}
			from := len(q.keys)
			q.keys = override.AppendKey(q.keys, q.Domain, d.Attributes)
			q.Hits = append(q.Hits, Hit{Rate: d.Override, override: o, key: q.keys[from:len(q.keys):len(q.keys)]})
		}
		d.end = len(q.Hits)
	}
	if replaces {
		q.replace()
	}
	if len(q.Descriptors) > 1 {
		q.complete()
	}
	return nil
}

// complete drops what a limit does about a descriptor that lacks an attribute of its key, if another descriptor of the
// same request has all of them: a proxy sends several so that each rule finds what it matches, and the client has left
// nothing out.
func (q *Query) complete() {
	whole := func(l *rules.Limit) bool {
		return slices.ContainsFunc(q.Hits, func(h Hit) bool { return h.Limit == l && !h.lacks })
	}
	for i := range q.Hits {
		if h := &q.Hits[i]; h.lacks && whole(h.Limit) {
			h.Result = -1
		}
	}
	q.skipped = slices.DeleteFunc(q.skipped, func(s skipped) bool { return s.why == rules.SkipMissingKey && whole(s.limit) })
}

// replace removes the rules that another rule of the same request replaces. Unlimited rules, and
// rules that are replaced themselves, replace others as well.
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

// assess turns hits into results and charges. It reports whether an enforced
// limit misses its key, and which quota rules there are.
func (e *Engine) assess(s *snapshot, q *Query) (missing bool, n quotas) {
	for i := range q.Descriptors {
		d := &q.Descriptors[i]
		counted := !e.quota // the descriptor has a rule, or needs none
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
			p.hit, p.descriptor = j, i
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
	// A refusal of one of several must not refuse the request, so the store must not enforce
	// them.
	if n.together() {
		for i := range q.parts {
			if p := &q.parts[i]; p.quota && p.charge >= 0 {
				q.charges[p.charge].Shadow = true
			}
		}
	}
	return missing, n
}

// part makes the result of one hit and appends the charges behind it.
func (e *Engine) part(s *snapshot, q *Query, h *Hit, d *Descriptor) (part, limit.Result) {
	p := part{charge: -1, ban: -1, shadow: h.shadow, status: tooManyRequests}
	r := limit.Result{Algorithm: h.Policy().Algorithm, Cost: d.Cost, Shadow: h.shadow}
	var c, ban store.Counters
	if h.Variant == nil {
		c = h.override.Counters
		p.envoy, p.countAlways, p.quota = true, !e.overrides.CountAdmitted || q.CountRefused, e.quota
		r.Limit, r.Quota, r.Nominal, r.Window = OverrideName, h.Rate.Count, h.Rate.Count, h.override.Window
	} else {
		b := &s.bound[h.Variant.Index]
		c, ban = b.counters, b.ban
		p.envoy, p.soft, p.after = h.Limit.Envoy, h.Limit.SoftPercent, h.Limit.ChargeAfter
		p.quota = p.envoy && c != nil && (h.Limit.QuotaMode || e.quota)
		p.countAlways = h.Variant.Policy.CountRefused || q.CountRefused && h.Variant.Policy.Algorithm != limit.Concurrency
		if h.Limit.Status != 0 {
			p.status = h.Limit.Status
		}
		p.exceed, r.Purpose = &h.Limit.OnExceed, h.Limit.Purpose
		r.Limit, r.Quota, r.Nominal, r.Window, r.Detail = h.Limit.Name, b.quota, b.nominal, b.window, h.Variant.Detail
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
	if q.reserve {
		charge.OnFailure = store.FailTake // what is not counted cannot be given back
	}
	switch {
	case h.Variant == nil:
		charge.Quota, charge.HasQuota = h.Rate.Count, true
	case h.Variant.Pool != "":
		charge.Quota, r.Nominal = s.derived.own(h.Limit, h.Variant, d.Derived)
		charge.HasQuota, r.Quota = true, charge.Quota
	}
	if h.Variant != nil && h.Variant.Policy.Algorithm == limit.Concurrency && !q.Peek && d.Cost > 0 && !d.Refund {
		if q.Decision.Permit == 0 {
			q.Decision.Permit = q.permitOf()
		}
		charge.Permit = q.Decision.Permit
		if t := h.Variant.Policy.Timeout; q.Decision.PermitFor == 0 || t < q.Decision.PermitFor {
			q.Decision.PermitFor = t
		}
	}
	if d.Refund {
		if d.Cost > 0 && !q.Peek {
			q.refunds = append(q.refunds, charge)
		}
		charge.Cost = 0
		ban = nil
	}
	// What is let through with a tag is not refused; a ban of the same limit is.
	charge.Shadow = h.shadow || p.tag() != nil
	p.charge = len(q.charges)
	q.charges = append(q.charges, charge)
	if h.Variant != nil && s.bound[h.Variant.Index].shared != nil {
		q.gateFor(h.Limit, s.bound[h.Variant.Index].shared, d, len(q.parts), p.charge)
	}
	if ban != nil {
		// A ban counts requests, whatever each of them costs.
		charge.Counters, charge.Permit, charge.Cost, charge.Shadow = ban, 0, min(d.Cost, 1), h.shadow
		p.ban = len(q.charges)
		q.charges = append(q.charges, charge)
	}
	return p, r
}

// conclude fills in the results from the charges, and the decision from the results.
func (q *Query) conclude(allowed bool) {
	d := &q.Decision
	d.Allowed = allowed
	d.Tags = d.Tags[:0]
	places := false
	for i := range q.parts {
		p, r := &q.parts[i], &d.Results[i]
		if p.charge >= 0 {
			c := &q.charges[p.charge]
			r.Verdict, r.StoreFailed = c.Verdict, c.Failed
			if c.HasQuota && q.Hits[p.hit].Variant != nil {
				r.Quota = c.Quota // the plan's, and what the key was granted
			}
			places = places || c.Permit != 0 && c.Verdict.Allowed
			if r.Reason == limit.ReasonConcurrency {
				r.RetryAfter = min(r.RetryAfter, permitWait)
			}
		}
		tagged := p.charge >= 0 && !r.Allowed && !r.Shadow && p.tag() != nil
		if p.ban >= 0 {
			tagged = tagged && q.charges[p.ban].Verdict.Allowed
			foldBan(&r.Verdict, &q.charges[p.ban].Verdict)
			r.StoreFailed = r.StoreFailed || q.charges[p.ban].Failed
		}
		if tagged {
			r.Shadow, r.Tagged = true, true
			d.Tags = append(d.Tags, *p.tag())
		}
		switch {
		case !allowed:
			if !r.Allowed && !r.Shadow && d.Status == 0 {
				d.Status = p.status
				if r.Reason == limit.ReasonStoreFailure {
					d.Status = unavailable
				} else if p.exceed != nil {
					d.Action = p.exceed.Action
				}
			}
		case r.Allowed:
			// How full a limit is whose counters were not reached is unknown.
			left := r.Remaining
			if q.Peek {
				left -= r.Cost // as it would be after the request
			}
			r.Soft = p.soft > 0 && !r.StoreFailed && above(r.Quota, r.Nominal, max(left, 0), p.soft)
			if !r.Shadow {
				d.Delay = max(d.Delay, r.Delay)
			}
		}
	}
	if !allowed && d.Status == 0 {
		d.Status = tooManyRequests
	}
	if !allowed || !places {
		d.Permit, d.PermitFor = 0, 0
	}
	if !allowed {
		d.Tags = d.Tags[:0]
	}
}

// tag is the mark with which the limit lets a request through, or nil.
func (p *part) tag() *limit.Attribute {
	if p.exceed == nil {
		return nil
	}
	return p.exceed.Tag
}

// foldBan merges the verdict of the counter of attempts into the limit's. A key whose attempts
// cannot be read is not banned for that.
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

// above reports whether more than percent of nominal is used of quota.
func above(quota, nominal, remaining int64, percent int) bool {
	return !fixed.ProductAtMost(uint64(max(quota-remaining, 0)), 100, uint64(nominal), uint64(percent))
}
