package engine

import (
	"context"

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
}

// Explained is one limit that applies.
type Explained struct {
	// File and Line say where the limit is written.
	File string
	Line int
	// Condition is what the request had to fulfil; empty for nothing.
	Condition string
	// Policy is what applies, overrides considered.
	Policy limit.Policy
	// Override says which override applies; empty for none.
	Override string
	// Key has the attributes that select the bucket, with the values of the
	// request. It is empty when all requests share one bucket.
	Key []limit.Attribute
	// Used is how much of the quota is in use now; 0 when nobody knows, because
	// the store did not answer.
	Used int64
	// OnStoreFailure is how the limit answers then.
	OnStoreFailure rules.StoreFailure
}

// Explain answers how req would be decided now. It takes nothing and counts nothing.
func (e *Engine) Explain(ctx context.Context, req limit.Request) (Explanation, error) {
	q := e.queries.Get().(*Query)
	defer e.release(q)
	q.single(req)
	q.Peek = true
	if err := e.Decide(ctx, q); err != nil {
		return Explanation{}, err
	}
	x := Explanation{Decision: q.Decision}
	x.Decision.Results = append([]limit.Result(nil), q.Decision.Results...)
	matched := make(map[string]bool, len(q.Hits))
	for i := range q.parts {
		h, r := &q.Hits[q.parts[i].hit], &x.Decision.Results[i]
		l := h.Limit
		matched[l.Name] = true
		n := Explained{File: l.File, Line: l.Line, Condition: l.Condition, Policy: h.Policy(), Override: h.Variant.Detail, Used: max(r.Quota-r.Remaining, 0), OnStoreFailure: l.OnStoreFailure}
		for _, name := range l.Key {
			value, _ := req.Get(name)
			n.Key = append(n.Key, limit.Attribute{Name: name, Value: value})
		}
		if r.Reason == limit.ReasonMissing || r.StoreFailed {
			n.Used = 0 // there is no bucket, or nobody knows it
		}
		x.Limits = append(x.Limits, n)
	}
	for _, l := range e.Set().Limits() {
		if matched[l.Name] || l.Envoy {
			continue
		}
		if x.UnmatchedCount++; len(x.Unmatched) < maxUnmatched {
			x.Unmatched = append(x.Unmatched, l.Name)
		}
	}
	return x, nil
}
