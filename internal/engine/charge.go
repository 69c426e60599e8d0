package engine

import (
	"context"
	"errors"
	"fmt"

	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
)

// charge asks the store.
func (e *Engine) charge(ctx context.Context, q *Query, missing bool, n quotas) (bool, error) {
	// A request that misses a key is refused whatever the others say, so they
	// are only asked, unless they count refused requests.
	if q.Peek || missing && !q.CountRefused {
		allowed, err := e.store.Peek(ctx, q.charges)
		if err == nil {
			err = q.unknownQuota(n)
		}
		allowed = allowed && !q.quotasOver(n)
		if err == nil {
			err = e.stand(ctx, q)
		}
		return allowed, err
	}
	if len(q.refunds) > 0 {
		if err := e.store.Refund(ctx, q.refunds); err != nil && !(q.decidable() && e.lost(err)) {
			return false, err
		}
	}
	allowed, err := e.store.Take(ctx, q.charges)
	if err == nil {
		err = q.unknownQuota(n)
	}
	if err != nil || !allowed || !missing && !q.quotasOver(n) {
		return allowed, err
	}
	return false, e.giveBack(ctx, q)
}

// decidable reports whether every limit that is given something back has a way to
// decide without the store. Where one has not, a failure is an error.
func (q *Query) decidable() bool {
	for i := range q.refunds {
		if q.refunds[i].OnFailure == store.FailTake {
			return false
		}
	}
	return true
}

// giveBack undoes a Take whose request is refused after all, because every quota
// rule is over or a key is missing: what it took of limits that do not count refused requests is given
// back. The request is decided, so a store that does not answer is no error; what
// it keeps can only refuse others early.
func (e *Engine) giveBack(ctx context.Context, q *Query) error {
	back := q.refunds[:0]
	places := false
	for i := range q.parts {
		c := q.goesBack(i)
		if c == nil {
			continue
		}
		places = places || c.Permit != 0
		// What was admitted without the store took nothing from it, and must
		// not make its bucket fuller.
		if !c.Failed {
			back = append(back, *c)
		}
	}
	q.refunds = back
	if len(back) > 0 {
		if err := e.store.Refund(ctx, back); err != nil {
			// Not another wait for the same store: places end by themselves.
			return e.unlessLost(err)
		}
	}
	if places {
		// Of all charges, as to end a place that was never given is harmless.
		if err := e.store.Finish(ctx, q.charges); err != nil {
			return e.unlessLost(err)
		}
	}
	return e.standAgain(ctx, q)
}

// goesBack returns the charge of part i when it took something that a refused
// request does not keep; nil when it did not.
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

// standAgain makes the verdicts of what was given back say how they are without it.
func (e *Engine) standAgain(ctx context.Context, q *Query) error {
	now := q.refunds // as giveBack left it
	if len(now) == 0 {
		return nil
	}
	for i := range now {
		now[i].Cost = 0
	}
	_, err := e.store.Peek(ctx, now)
	failed := errors.Is(err, store.ErrUnavailable)
	if err != nil && !failed {
		return err
	}
	next := 0
	for i := range q.parts {
		if c := q.goesBack(i); c != nil && !c.Failed {
			now[next].Failed = now[next].Failed || failed
			standAs(c, &now[next])
			next++
		}
	}
	return nil
}

// lost counts err when it is the failure of a store to take something back.
func (e *Engine) lost(err error) bool {
	if !errors.Is(err, store.ErrUnavailable) {
		return false
	}
	e.notReturned.Add(1)
	return true
}

func (e *Engine) unlessLost(err error) error {
	if e.lost(err) {
		return nil
	}
	return err
}

// stand makes the verdicts of limits that the request would have fitted say how they
// are: a store's peek tells how they would be after the request, and nothing is taken.
// The request is decided by then: where the store does not answer any more, what the
// peek would have taken is added to what it left.
func (e *Engine) stand(ctx context.Context, q *Query) error {
	now := q.refunds[:0]
	for i := range q.charges {
		if c := &q.charges[i]; stands(c) {
			now = append(now, *c)
			now[len(now)-1].Cost = 0
		}
	}
	q.refunds = now[:0]
	if len(now) == 0 {
		return nil
	}
	_, err := e.store.Peek(ctx, now)
	failed := errors.Is(err, store.ErrUnavailable)
	if err != nil && !failed {
		return err
	}
	next := 0
	for i := range q.charges {
		c := &q.charges[i]
		if !stands(c) {
			continue
		}
		now[next].Failed = now[next].Failed || failed
		standAs(c, &now[next])
		next++
	}
	return nil
}

// standAs makes the verdict of c, which took nothing after all, say what a peek now
// says. Where that failed, what c would have taken is added to what it left.
func standAs(c, now *store.Charge) {
	if now.Failed {
		c.Verdict.Remaining += c.Cost
		return
	}
	c.Verdict.Remaining, c.Verdict.ResetAfter = now.Verdict.Remaining, now.Verdict.ResetAfter
}

// stands reports whether a peek found room for c in its counters.
func stands(c *store.Charge) bool { return c.Verdict.Allowed && c.Cost > 0 && !c.Failed }

// unknownQuota returns an error when an enforced quota rule could not be read. To
// the store several of them are shadows, whose failure fails nothing, but together
// they decide.
func (q *Query) unknownQuota(n quotas) error {
	if !n.together() {
		return nil
	}
	for i := range q.parts {
		p := &q.parts[i]
		if p.quota && !p.shadow && p.charge >= 0 && q.charges[p.charge].Failed {
			return fmt.Errorf("engine: the quota of %q: %w", q.Decision.Results[i].Limit, store.ErrUnavailable)
		}
	}
	return nil
}

// quotasOver reports whether every quota rule refused. With one or none the store's
// answer has it already.
func (q *Query) quotasOver(n quotas) bool {
	if n.room || !n.together() {
		return false
	}
	for i := range q.parts {
		p := &q.parts[i]
		if p.quota && !p.shadow && (p.charge < 0 || q.charges[p.charge].Verdict.Allowed) {
			return false
		}
	}
	return true
}

// onFailure says how the hit is decided where the store does not answer. For
// Envoy's rules, and for limits that came with a request, that is the proxy's
// choice (failure_mode_deny): it gets an error.
func (h *Hit) onFailure() store.OnFailure {
	if h.Limit == nil || h.Limit.Envoy {
		return store.FailTake
	}
	switch h.Limit.OnStoreFailure {
	case rules.FailureReject:
		return store.FailReject
	case rules.FailureLocal:
		return store.FailLocal
	default:
		return store.FailAllow
	}
}
