package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

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
	// Algorithm is that by which it was taken; "" = it is not known.
	Algorithm string `json:",omitempty"`
	// Permit is what was taken of a counter of requests in flight. Its Cost is 0.
	Permit uint64 `json:",omitempty"`
	// Window is the time from when the caller noted that it takes to the middle of the window that was taken
	// from, where a window begins with the first request. That may be later than the caller's note, so the note
	// does not say in which window it is. The middle does, even if clocks differ by less than half a window.
	Window time.Duration `json:",omitempty"`
	// Left is what the key had left when it was taken. It is not kept.
	Left int64 `json:"-"`
	// Shadow says that the counter refuses nothing.
	Shadow bool `json:"-"`
	// Tenant is whose share it was taken of, in a limit that tenants share.
	Tenant []byte `json:",omitempty"`
}

// TakeParts decides as Take does, and returns what was taken of which counter, and the cost, for a caller that
// settles it later. A cost above what a limit can ever admit is clamped to that: it would be refused for ever, not
// only as long as others use the limit. Of a limit of requests in flight it takes one, whatever the cost.
func (e *Engine) TakeParts(ctx context.Context, req limit.Request) (limit.Decision, []Part, int64, error) {
	q := e.queries.Get().(*Query)
	defer e.release(q)
	req.IdempotencyKey = ""
	q.single(req)
	return e.takeParts(ctx, q)
}

// TakeDescriptors is TakeParts for several descriptors, which have one cost. A limit that came with one of them cannot
// be settled later, and no cost is given back: such a descriptor is an error that wraps [ErrBadRequest].
func (e *Engine) TakeDescriptors(ctx context.Context, domain string, descriptors []Descriptor, cost int64) (limit.Decision, []Part, int64, error) {
	q := new(Query)
	q.Domain, q.Descriptors = domain, slices.Clone(descriptors)
	for i := range q.Descriptors {
		d := &q.Descriptors[i]
		if d.HasOverride || d.Refund {
			return limit.Decision{}, nil, 0, fmt.Errorf("engine: %w: descriptor %d brings its own limit, or gives back: neither can be reserved", ErrBadRequest, i)
		}
		d.Cost = cost
	}
	if len(q.Descriptors) == 0 {
		return limit.Decision{}, nil, 0, fmt.Errorf("engine: %w: there is no descriptor", ErrBadRequest)
	}
	return e.takeParts(ctx, q)
}

func (e *Engine) takeParts(ctx context.Context, q *Query) (limit.Decision, []Part, int64, error) {
	q.reserve = true
	err := e.Decide(ctx, q)
	q.reserve = false
	if err != nil {
		return limit.Decision{}, nil, 0, err
	}
	d, cost := q.Decision, q.Descriptors[0].Cost
	d.Results = slices.Clone(d.Results)
	d.Tags = slices.Clone(d.Tags)
	if !d.Allowed {
		return d, nil, cost, e.uncount(ctx, q)
	}
	var parts []Part
	for i := range q.parts {
		p := &q.parts[i]
		if p.charge < 0 {
			continue
		}
		c := &q.charges[p.charge]
		if c.Cost == 0 || c.Failed || !c.Verdict.Allowed {
			continue
		}
		one := Part{ID: c.Counters.Spec().ID, Key: slices.Clone(c.Key), Cost: c.Cost, Quota: c.Quota - c.Granted, HasQuota: c.HasQuota, Permit: c.Permit}
		one.Algorithm = c.Counters.Spec().Policy.Algorithm.String()
		one.Left, one.Shadow = d.Results[i].Remaining, d.Results[i].Shadow
		if c.Permit != 0 {
			one.Cost = 0
		}
		if policy := c.Counters.Spec().Policy; policy.Algorithm == limit.FixedWindow && policy.Align == limit.AlignFirstHit {
			one.Window = c.Verdict.ResetAfter - policy.Rate.Period/2
		}
		one.Tenant = q.tenantOf(p.charge)
		parts = append(parts, one)
	}
	return d, parts, cost, nil
}

// uncount gives back what limits that count refused requests have counted: an estimate that is refused is no use.
func (e *Engine) uncount(ctx context.Context, q *Query) error {
	var back []store.Charge
	for i := range q.parts {
		p := &q.parts[i]
		if p.charge < 0 || !p.countAlways {
			continue
		}
		if c := q.charges[p.charge]; c.Cost > 0 && !c.Failed && c.Permit == 0 {
			back = append(back, store.Charge{Counters: c.Counters, Key: c.Key, Cost: c.Cost, Quota: c.Quota - c.Granted, HasQuota: c.HasQuota})
		}
	}
	if len(back) == 0 {
		return nil
	}
	return e.Refund(ctx, back)
}

// Settle makes what was taken of each counter, at a time by the wall clock, the actual cost. What is over is
// charged whether it fits or not; what is under comes back, as long as the counter still counts it (see returns).
// Counters that the configuration has no more are left out.
func (e *Engine) Settle(ctx context.Context, parts []Part, taken, now limit.Time, actual int64) error {
	s := e.live.Load()
	var over, back, ended []store.Charge
	var settled []Part
	for i := range parts {
		p := &parts[i]
		b := s.byID[p.ID]
		if b == nil {
			continue
		}
		c := store.Charge{Counters: b.counters, Key: p.Key, Quota: p.Quota, HasQuota: p.HasQuota}
		switch {
		case p.Permit != 0:
			c.Permit = p.Permit
			ended = append(ended, c)
		case actual > p.Cost:
			// A shadow, so that one that is over its limit does not leave the others uncharged.
			c.Cost, c.CountRefused, c.Shadow = actual-p.Cost, true, true
			over = append(over, c)
		case actual < p.Cost:
			if !p.returns(b.policy, taken, now) {
				continue
			}
			c.Cost, c.TakenAt = p.Cost-actual, taken.Add(p.Window)
			back = append(back, c)
		}
		settled = append(settled, *p)
	}
	var failed, uncharged, held error
	if len(back) > 0 {
		failed = e.Refund(ctx, back)
	}
	if len(over) > 0 {
		_, uncharged = e.takeCharges(ctx, over)
		for i := range over { // a shadow that is not reached fails nothing
			if over[i].Failed && uncharged == nil {
				uncharged = fmt.Errorf("engine: what is over was not charged: %w", store.ErrUnavailable)
			}
		}
	}
	if len(ended) > 0 {
		held = e.store.Finish(ctx, ended)
	}
	return errors.Join(failed, uncharged, held, e.settleShares(ctx, s, settled, actual))
}

// clockSkew is how far clocks of servers may differ. What was taken later than that from now was taken before the
// clock was put back, and nobody knows in which window.
const clockSkew = 30 * time.Second

// returns reports whether what was taken can come back. A counter that counts by another algorithm has begun anew and
// does not hold it. A bucket has refilled what was taken longer ago than it takes to fill it: giving that back as well
// would save it up, one burst for each time that the bucket is emptied by reservations. Of windows the store knows.
func (p *Part) returns(policy limit.Policy, taken, now limit.Time) bool {
	switch {
	case p.Algorithm != "" && p.Algorithm != policy.Algorithm.String():
		return false
	case taken > now.Add(clockSkew) && !sameWindow(policy, taken, now):
		return false
	case policy.Algorithm == limit.TokenBucket, policy.Algorithm == limit.LeakyBucket:
		return now < taken.Add(policy.Window()) || policy.Window() == 0
	default:
		return true
	}
}

// sameWindow reports whether two times are in one window, where that depends on nothing but the times.
func sameWindow(p limit.Policy, a, b limit.Time) bool {
	switch {
	case p.Unlimited:
		return true
	case p.Algorithm == limit.FixedWindow && p.Align != limit.AlignFirstHit:
		window := limit.NewFixedCounter(p)
		start, end := window.Window(b)
		return start <= a && a < end
	case p.Algorithm == limit.SlidingWindowCounter, p.Algorithm == limit.RisingWindow:
		return a/limit.Time(p.Rate.Period) == b/limit.Time(p.Rate.Period)
	default:
		return false
	}
}

// settleShares makes what was taken of shares the actual cost.
func (e *Engine) settleShares(ctx context.Context, s *snapshot, parts []Part, actual int64) error {
	var errs []error
	for i := range parts {
		p := &parts[i]
		of := s.shared[p.ID]
		if of == nil || p.Tenant == nil || actual == p.Cost {
			continue
		}
		a := store.Share{Terms: &of.terms, Key: p.Key, Tenant: p.Tenant, Cost: actual - p.Cost, CountRefused: true}
		settle := e.shares.TakeShare
		if a.Cost < 0 {
			a.Cost, settle = -a.Cost, e.shares.ReturnShare
		}
		if err := settle(ctx, &a); err != nil && !e.lost(err) { // a share that is lost is refilled by time
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// tenantOf returns whose share a charge was taken of, nil = of none.
func (q *Query) tenantOf(charge int) []byte {
	for i := range q.gates {
		if g := &q.gates[i]; g.charge == charge && g.held {
			return slices.Clone(g.Tenant)
		}
	}
	return nil
}
