// Package explain says how a request would be decided and why: which limits apply, which do not, and for what reason.
// It takes nothing.
package explain

import (
	"cmp"
	"context"
	"strconv"
	"strings"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// maxUnmatched bounds the names in [Explanation.Unmatched].
const maxUnmatched = 100

// Explanation says how a request would be decided and why.
type Explanation struct {
	// Decision is what Take would answer.
	Decision limit.Decision
	// Limits explains Decision.Results one by one.
	Limits []Explained
	// Unmatched names limits that do not apply to the request, at most 100 of
	// them; UnmatchedCount is how many there are.
	Unmatched      []string
	UnmatchedCount int
	// WhyNot says for each of Unmatched why it does not apply to the first descriptor; empty
	// for a rule in Envoy's format, for which see Descriptors.
	WhyNot []string
	// Unlimited are the limits without which the request would be admitted; nil = it would be refused, or all apply
	// that match.
	Unlimited []engine.Hole
	// Descriptors says for each descriptor which rule in Envoy's format it matched; nil for a
	// request without a domain.
	Descriptors []Met
	// HasDomain says whether a file in Envoy's format has the request's domain.
	HasDomain bool
}

// Met is the rule of its domain that one descriptor matched.
type Met struct {
	Entries []limit.Attribute
	// Rule is the name of the rule; "" = none fits.
	Rule string
	// Applies says whether the rule counts; Why says in words why not.
	Applies bool
	Why     string
}

// Explained is one limit that applies.
type Explained struct {
	// File and Line say where the limit is written.
	File string
	Line int
	// Condition is the condition of the limit; empty for none.
	Condition string
	// ConditionFailed is set when the condition could not be evaluated, and the limit applies all the same.
	ConditionFailed bool
	// Policy is what applies, overrides considered.
	Policy limit.Policy
	// Override says which override applies; empty for none.
	Override string
	// Key has the attributes that select the bucket, with the values of the
	// request. It is empty when all requests share one bucket.
	Key []limit.Attribute
	// Used is how much of the quota is in use now; 0 when that is unknown, because the store
	// did not answer.
	Used int64
	// OnStoreFailure is how the limit is decided then.
	OnStoreFailure rules.StoreFailure
	// Lent says that a coordinator lends the limit, which then takes the place of the store.
	Lent bool
	// OnExceed says in words what becomes of a request over the limit, and Uncarried where it
	// means less.
	OnExceed  string
	Uncarried []string
	// Share says in words which share of the limit the request's tenant has; "" = the limit is not shared.
	Share string
	// Enforce is the percentage of keys for which the limit is enforced, where that is said and the limit
	// is no shadow for all of them; "" otherwise.
	Enforce string
}

// Request answers how req would be decided by e now. It takes nothing and counts nothing.
func Request(ctx context.Context, e *engine.Engine, req limit.Request) (Explanation, error) {
	return Query(ctx, e, &engine.Query{
		CountRefused: req.CountRefused,
		Descriptors:  []engine.Descriptor{{Attributes: req.Attributes, Cost: cmp.Or(req.Cost, 1)}},
	})
}

// Query is Request for a Query of [engine.Engine.Decide] without overrides. It makes q a Peek and decides it.
func Query(ctx context.Context, e *engine.Engine, q *engine.Query) (Explanation, error) {
	q.Peek = true
	if err := e.Decide(ctx, q); err != nil {
		return Explanation{}, err
	}
	x := Explanation{Decision: q.Decision, Unlimited: q.Holes()}
	x.Decision.Results = append([]limit.Result(nil), q.Decision.Results...)
	matched := make(map[string]bool, len(q.Hits))
	for i := range q.Descriptors {
		hits := q.HitsOf(i)
		for k := range hits {
			h := &hits[k]
			if h.Result != len(x.Limits) { // it counts nothing, or together with one before it
				continue
			}
			matched[h.Limit.Name] = true
			n := explainOne(h, &x.Decision.Results[h.Result], &q.Descriptors[i])
			n.Share = q.ShareText(h.Result)
			x.Limits = append(x.Limits, n)
		}
	}
	set := e.Set()
	x.HasDomain = q.Domain != "" && set.HasDomain(q.Domain)
	for i := range q.Descriptors {
		if q.Domain == "" {
			break
		}
		m := met(q, i)
		switch {
		case m.Rule != "":
			matched[m.Rule] = true
		case x.HasDomain:
			m.Why = "no rule of the domain has these entries, in this order and number"
		default:
			m.Why = "no file in Envoy's format has the domain"
		}
		x.Descriptors = append(x.Descriptors, m)
	}
	for _, l := range set.Limits() {
		if matched[l.Name] || l.Envoy && l.Domain != q.Domain {
			continue
		}
		if x.UnmatchedCount++; len(x.Unmatched) < maxUnmatched {
			x.Unmatched = append(x.Unmatched, l.Name)
			why := ""
			if !l.Envoy && len(q.Descriptors) > 0 {
				why = set.WhyNot(l, q.Domain, q.Descriptors[0].Derived)
				if why != "" && len(q.Descriptors) > 1 {
					why = "of the first descriptor: " + why
				}
			}
			x.WhyNot = append(x.WhyNot, why)
		}
	}
	return x, nil
}

func explainOne(h *engine.Hit, r *limit.Result, d *engine.Descriptor) Explained {
	l := h.Limit
	n := Explained{File: l.File, Line: l.Line, Condition: l.Condition, ConditionFailed: h.ConditionFailed(), Policy: h.Policy(), Override: h.Variant.Detail, Used: max(r.Quota-r.Remaining, 0), OnStoreFailure: l.OnStoreFailure, Lent: l.Sharing.Local()}
	if text := l.ExceedText(); !l.Envoy && text != "refuse with 429" {
		n.OnExceed, n.Uncarried = text, l.Uncarried()
	}
	if !l.Shadow && l.EnforcePermyriad < 10000 {
		n.Enforce = strconv.FormatFloat(float64(l.EnforcePermyriad)/100, 'f', -1, 64) + "%"
	}
	if r.Reason == limit.ReasonMissing || r.StoreFailed {
		n.Used = 0 // there is no bucket, or nobody knows it
	}
	if l.Envoy {
		// The key is the descriptor itself, in which a name may stand twice.
		for i, a := range d.Attributes {
			a.Value = cmp.Or(l.SharedValue(i), a.Value)
			n.Key = append(n.Key, a)
		}
		return n
	}
	for _, name := range l.Key {
		n.Key = append(n.Key, limit.Attribute{Name: name, Value: valueOf(d.Derived, name)})
	}
	return n
}

// valueOf is the value of an attribute of a key. Names of header fields are in any case.
func valueOf(attrs []limit.Attribute, name string) string {
	for _, a := range attrs {
		if a.Name == name || strings.HasPrefix(name, "header:") && strings.EqualFold(a.Name, name) {
			return a.Value
		}
	}
	return ""
}

// met says which rule in Envoy's format descriptor i matched.
func met(q *engine.Query, i int) Met {
	m := Met{Entries: q.Descriptors[i].Attributes}
	for _, h := range q.HitsOf(i) {
		if h.Limit == nil || !h.Limit.Envoy {
			continue
		}
		m.Rule = h.Limit.Name
		switch {
		case h.Limit.Whitelist:
			m.Why = "the rule has no rate_limit"
		case h.Result < 0:
			m.Why = "another rule of the request replaces it"
		default:
			m.Applies = true
		}
		return m
	}
	return m
}
