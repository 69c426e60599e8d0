package reserve

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/estimate"
	"github.com/stint-io/stint/limit"
)

// guess is what is known of the cost of a request.
type guess struct {
	of    *estimate.Subject
	by    estimate.Estimate
	shown *Estimate // nil = its caller gave the cost
}

// guess checks the cost of a request, and estimates one that it does not have.
func (b *Book) guess(req *limit.Request) (g guess, err error) {
	if b.estimator != nil {
		of, on, err := b.estimator.Subject(req.Attributes)
		if err != nil && req.Cost == 0 {
			return g, fmt.Errorf("reserve: %w: %w", ErrBad, err)
		}
		if on && err == nil {
			g.of = &of
		}
	}
	if req.Cost == 0 && g.of != nil {
		g.by = b.estimator.Estimate(*g.of)
		g.shown = newEstimate(&g.by)
		req.Cost = g.by.Cost
	}
	if req.Cost < 1 || req.Cost > limit.MaxCount {
		return g, fmt.Errorf("reserve: %w: cost is %d, want 1 to %d", ErrBad, req.Cost, int64(limit.MaxCount))
	}
	return g, nil
}

// Guess returns by what a request without a cost would be reserved while its budgets are far from their ends; nil =
// nothing is estimated, or the request has none of the attributes that it would be estimated by. An error wraps [ErrBad].
func (b *Book) Guess(attrs []limit.Attribute) (*Estimate, error) {
	if b.estimator == nil {
		return nil, nil
	}
	of, on, err := b.estimator.Subject(attrs)
	if err != nil {
		return nil, fmt.Errorf("reserve: %w: %w", ErrBad, err)
	}
	if !on || !slices.ContainsFunc(of.Values, func(v string) bool { return v != "" }) {
		return nil, nil
	}
	e := b.estimator.Estimate(of)
	return newEstimate(&e), nil
}

func newEstimate(e *estimate.Estimate) *Estimate {
	return &Estimate{Cost: e.Cost, From: e.From, Settled: e.Settled, Declared: e.Subject.Declared}
}

// take takes the cost of a request; where that is an estimate which might not do, what the request declares. An estimate
// is taken and looked at, not asked for beforehand: it does as a rule, and one call of the store is enough.
func (b *Book) take(ctx context.Context, id string, req *limit.Request, g guess, now limit.Time, ttl time.Duration) (limit.Decision, []engine.Part, int64, error) {
	d, parts, cost, err := b.taker.TakeParts(ctx, *req)
	if err != nil || !d.Allowed || g.shown == nil {
		return d, parts, cost, err
	}
	if !b.estimator.Open(id, &g.by, holds(parts), ttl) {
		if err := b.taker.Settle(ctx, parts, now, now, 0); err != nil {
			return limit.Decision{}, nil, 0, err // it stays charged: too much, and never too little
		}
		g.shown.Whole = true
		req.Cost = g.of.Declared
		if d, parts, cost, err = b.taker.TakeParts(ctx, *req); err != nil || !d.Allowed {
			return d, parts, cost, err
		}
	}
	b.estimator.Reserved(&g.by, g.shown.Whole)
	return d, parts, cost, nil
}

// holds are the keys whose budget an estimate may overspend.
func holds(parts []engine.Part) (list []estimate.Hold) {
	for i := range parts {
		if p := &parts[i]; p.Permit == 0 && !p.Shadow {
			list = append(list, estimate.Hold{Key: p.ID + "\x00" + string(p.Key), Left: p.Left})
		}
	}
	return list
}

// changed is called once for each change of a reservation, by whoever made it.
func (b *Book) changed(id string, was, r *record) {
	if b.estimator == nil {
		return
	}
	if r.State == Open {
		b.estimator.Extend(id, min(time.Duration(r.Ends-limit.At(b.now())), MaxTTL)) // the clock may jump
		return
	}
	b.estimator.Close(id)
	if r.State == Committed && was.State != Committed && was.Of != nil {
		estimated := int64(0)
		if r.Estimate != nil {
			estimated = r.Estimate.Cost
		}
		b.estimator.Settle(*was.Of, estimated, r.Actual)
	}
}

// forget takes back that a reservation is open.
func (b *Book) forget(id string) {
	if b.estimator != nil {
		b.estimator.Close(id)
	}
}
