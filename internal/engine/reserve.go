package engine

import (
	"context"
	"slices"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Part is what a request has taken of one counter.
type Part struct {
	// ID and Key are those of the counter, as in [store.Spec] and [store.Charge].
	ID   string
	Key  []byte
	Cost int64
	// Quota is the count that the request brought along, if HasQuota.
	Quota    int64
	HasQuota bool `json:",omitempty"`
}

// TakeParts decides as Take does, and returns what was taken of which counter, for a caller that settles it
// later. Permits in flight are not among it: they end with [Engine.Finish].
func (e *Engine) TakeParts(ctx context.Context, req limit.Request) (limit.Decision, []Part, error) {
	q := e.queries.Get().(*Query)
	defer e.release(q)
	q.single(req)
	if err := e.Decide(ctx, q); err != nil {
		return limit.Decision{}, nil, err
	}
	d := q.Decision
	d.Results = slices.Clone(d.Results)
	d.Tags = slices.Clone(d.Tags)
	if !d.Allowed {
		return d, nil, nil
	}
	var parts []Part
	for i := range q.parts {
		p := &q.parts[i]
		if p.charge < 0 {
			continue
		}
		c := &q.charges[p.charge]
		spec := c.Counters.Spec()
		if c.Cost == 0 || c.Failed || !c.Verdict.Allowed || spec.Policy.Algorithm == limit.Concurrency {
			continue
		}
		parts = append(parts, Part{ID: spec.ID, Key: slices.Clone(c.Key), Cost: c.Cost, Quota: c.Quota, HasQuota: c.HasQuota})
	}
	return d, parts, nil
}

// Settle makes what was taken of each counter, at a time by the wall clock, the actual cost. What is over is
// charged whether it fits or not; what is under comes back, unless the window has ended from which it was taken.
// Counters that the configuration has no more are left out.
func (e *Engine) Settle(ctx context.Context, parts []Part, taken limit.Time, actual int64) error {
	s := e.live.Load()
	var over, back []store.Charge
	for i := range parts {
		p := &parts[i]
		b := s.byID[p.ID]
		if b == nil {
			continue
		}
		c := store.Charge{Counters: b.counters, Key: p.Key, Quota: p.Quota, HasQuota: p.HasQuota}
		switch {
		case actual > p.Cost:
			// A shadow, so that one that is over its limit does not leave the others uncharged.
			c.Cost, c.CountRefused, c.Shadow = actual-p.Cost, true, true
			over = append(over, c)
		case actual < p.Cost:
			c.Cost, c.TakenAt = p.Cost-actual, taken
			back = append(back, c)
		}
	}
	if len(back) > 0 {
		if err := e.store.Refund(ctx, back); err != nil {
			return err
		}
	}
	if len(over) > 0 {
		if _, err := e.store.Take(ctx, over); err != nil {
			return err
		}
	}
	return nil
}
