package engine

import (
	"context"
	"errors"

	"github.com/stint-io/stint/store"
)

// chargeStore takes or peeks at the store.
func (e *Engine) chargeStore(ctx context.Context, q *Query, missing bool, n quotas) (bool, error) {
	// A request that misses a key is refused whatever the other limits say, so they are only
	// peeked at, unless they count refused requests.
	if q.Peek || missing && !q.CountRefused {
		allowed, err := e.Peek(ctx, q.charges)
		if err == nil {
			err = q.unknownQuota(n)
		}
		allowed = allowed && !q.quotasOver(n)
		if err == nil {
			q.standing = q.standing[:0]
			for i := range q.charges {
				if c := &q.charges[i]; c.Verdict.Allowed && c.Cost > 0 && !c.Failed {
					q.standing = append(q.standing, c)
				}
			}
			err = e.restate(ctx, q)
		}
		return allowed, err
	}
	if len(q.refunds) > 0 {
		if err := e.Refund(ctx, q.refunds); err != nil && !(q.decidable() && e.lost(err)) {
			return false, err
		}
	}
	allowed, err := e.takeQuery(ctx, q)
	if q.Decision.Repeated {
		return allowed, err
	}
	if err == nil {
		err = q.unknownQuota(n)
	}
	over := false
	if err == nil && allowed {
		over, err = e.nothingLeft(ctx, q)
	}
	if err != nil || !allowed || !missing && !over && !q.quotasOver(n) {
		return allowed, err
	}
	return false, e.giveBack(ctx, q)
}

// nothingLeft refuses requests of cost 0 by limits that are charged afterwards and have nothing left, and reports
// whether there are any that count. To others such a request costs nothing, and fits.
func (e *Engine) nothingLeft(ctx context.Context, q *Query) (over bool, err error) {
	var probes []store.Charge
	var parts []int
	for i := range q.parts {
		p := &q.parts[i]
		if p.after && p.charge >= 0 && q.charges[p.charge].Cost == 0 && q.charges[p.charge].Verdict.Allowed {
			c := q.charges[p.charge]
			c.Cost, c.Shadow = 1, true
			probes, parts = append(probes, c), append(parts, i)
		}
	}
	if len(probes) == 0 {
		return false, nil
	}
	if _, err := e.Peek(ctx, probes); err != nil {
		return false, err
	}
	for i := range probes {
		if v := &probes[i].Verdict; !v.Allowed {
			p := &q.parts[parts[i]]
			q.charges[p.charge].Verdict = *v
			over = over || !p.shadow
		}
	}
	return over, nil
}

// decidable reports whether every limit with a refund can be decided without the store. If not,
// a failure of the refund is an error.
func (q *Query) decidable() bool {
	for i := range q.refunds {
		if q.refunds[i].OnFailure == store.FailTake {
			return false
		}
	}
	return true
}

// giveBack undoes a Take whose request is refused after all, because every quota rule is over or
// a key is missing: the costs of limits that do not count refused requests are given back. The
// request is decided, so a store that does not answer is no error: a cost that it keeps can only
// refuse other requests early.
func (e *Engine) giveBack(ctx context.Context, q *Query) error {
	back := q.refunds[:0]
	q.standing = q.standing[:0]
	places := false
	for i := range q.parts {
		c := q.goesBack(i)
		if c == nil {
			continue
		}
		places = places || c.Permit != 0
		// A charge that was decided without the store took nothing from it, and must not
		// refill its bucket.
		if !c.Failed {
			back = append(back, *c)
			q.standing = append(q.standing, c)
		}
	}
	back = q.forget(back)
	q.refunds = back
	if len(back) > 0 {
		if err := e.Refund(ctx, back); err != nil {
			// Do not wait for the same store again: permits expire by themselves.
			return e.unlessLost(err)
		}
	}
	if places {
		// Of all charges: to finish a permit that was never granted is harmless.
		if err := e.store.Finish(ctx, q.charges); err != nil {
			return e.unlessLost(err)
		}
	}
	return e.restate(ctx, q)
}

// goesBack returns the charge of part i if its cost has to be given back when the request is
// refused; otherwise nil.
func (q *Query) goesBack(i int) *store.Charge {
	p := &q.parts[i]
	if p.charge < 0 || p.countAlways {
		return nil
	}
	c := &q.charges[p.charge]
	if !c.Verdict.Allowed || c.Cost == 0 {
		return nil
	}
	return c
}

// restate corrects the verdicts of q.standing, which include the cost of the request, to show
// the limits without it. If the store does not answer any more, the cost is added to Remaining
// instead: the request is decided already.
func (e *Engine) restate(ctx context.Context, q *Query) error {
	now := q.refunds[:0]
	for _, c := range q.standing {
		now = append(now, *c)
		now[len(now)-1].Cost = 0
	}
	q.refunds = now[:0]
	if len(now) == 0 {
		return nil
	}
	_, err := e.Peek(ctx, now)
	failed := errors.Is(err, store.ErrUnavailable)
	if err != nil && !failed {
		return err
	}
	for i, c := range q.standing {
		if failed || now[i].Failed {
			c.Verdict.Remaining += c.Cost
		} else {
			c.Verdict.Remaining, c.Verdict.ResetAfter = now[i].Verdict.Remaining, now[i].Verdict.ResetAfter
		}
	}
	return nil
}
