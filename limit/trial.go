package limit

import (
	"context"
	"slices"
	"time"
)

// trial is one decision of [Scopes].
type trial struct {
	scopes  *Scopes
	req     Request
	results []Result // of the Preparers
	last    int64    // cost of the last scope
	asked   bool     // the last scope has decided

	// What each Preparer is asked for and has given. The first are in an array, so that they
	// stay on the stack.
	few  [usualScopes]claim
	many []claim // the rest
}

// usualScopes is up to how many scopes are decided without memory from the heap.
const usualScopes = 8

func (t *trial) claim(i int) *claim {
	if i < usualScopes {
		return &t.few[i]
	}
	return &t.many[i-usualScopes]
}

// claim is what one Preparer is asked for, and what it has given.
type claim struct {
	cost     int64
	held     bool
	prepared Prepared
}

// count computes the cost of the request in each scope.
func (t *trial) count() error {
	s := t.scopes
	if n := len(s.holders) - usualScopes; n > 0 {
		t.many = make([]claim, n)
	}
	for i := range s.holders {
		cost, err := t.cost(&s.holders[i])
		if err != nil {
			return err
		}
		t.claim(i).cost = cost
	}
	if s.last.Taker == nil {
		return nil
	}
	cost, err := t.cost(&s.last)
	t.last = cost
	return err
}

func (t *trial) cost(sc *scope) (int64, error) {
	if sc.Cost == nil {
		return max(1, t.req.Cost), nil
	}
	cost, err := sc.Cost(t.req)
	if err == nil && (cost < 0 || cost > MaxCount) {
		err = costError(cost)
	}
	if err != nil {
		return 0, sc.wrap(err)
	}
	return cost, nil
}

// A scope is waited for with nothing prepared in the others, so under contention its tokens may
// be gone when the others have admitted. It is then waited for again.
const (
	// maxWaits is how often. Not more: it only guards against a loop, since longestWaits ends
	// the waits before. Not fewer: a dozen scopes may have no lease yet.
	maxWaits = 32
	// longestWaits is after how long no other wait begins. Not longer: a refusal should come
	// soon. Not shorter: a lease waits that long for its first answer.
	longestWaits = 500 * time.Millisecond
)

// decide asks the scopes until all have admitted, or one refuses for good. A scope that refuses,
// but may have more after a wait, is waited for with nothing prepared in the others, and is then
// prepared first.
func (t *trial) decide(ctx context.Context) (Decision, error) {
	refuser, more, err := t.holdAll(ctx)
	var begin time.Time
	for waits := 0; more && err == nil && waits < maxWaits; waits++ {
		if waits == 0 {
			begin = time.Now()
		} else if time.Since(begin) >= longestWaits {
			break
		}
		t.rollback()
		var admitted bool
		if admitted, _, err = t.prepare(ctx, refuser, true); err != nil || !admitted {
			break
		}
		refuser, more, err = t.holdAll(ctx)
	}
	if err != nil {
		t.rollback()
		return Decision{}, err
	}
	if refuser < len(t.scopes.holders) {
		return t.refuse(ctx, refuser)
	}
	return t.admit(ctx)
}

// holdAll holds what is not held yet. It returns the first scope that refuses, and
// whether it is worth waiting for; the number of Holders if none does.
func (t *trial) holdAll(ctx context.Context) (refuser int, more bool, err error) {
	for i := range t.scopes.holders {
		admitted, more, err := t.prepare(ctx, i, false)
		if err != nil || !admitted {
			return i, more, err
		}
	}
	return len(t.scopes.holders), false, nil
}

// prepare prepares the cost of the i-th Preparer, unless that is done already.
func (t *trial) prepare(ctx context.Context, i int, wait bool) (admitted, more bool, err error) {
	c, sc := t.claim(i), &t.scopes.holders[i]
	if c.held || c.cost == 0 {
		return true, false, nil
	}
	req := t.req
	req.Cost = c.cost
	r := &t.results[i]
	*r = Result{}
	if c.prepared, err = sc.holder.Prepare(ctx, req, wait, r); err != nil {
		return false, false, sc.wrap(err)
	}
	sc.name(r)
	c.held = r.Allowed || r.Shadow || r.Limit == ""
	return c.held, c.prepared.More, nil
}

// name puts the scope's name into a Result of it.
func (s *Scope) name(r *Result) {
	if s.Name != "" && r.Limit != "" {
		r.Limit = s.Name
	}
}

// rollback gives back all that is prepared, the latest first: where two scopes share one
// Preparer, it finds the state that it left.
func (t *trial) rollback() {
	for i := range slices.Backward(t.scopes.holders) {
		if c := t.claim(i); c.held {
			t.scopes.holders[i].holder.Rollback(c.prepared)
			c.held, c.prepared = false, Prepared{}
		}
	}
}

// admit asks the last scope, and commits what is prepared.
func (t *trial) admit(ctx context.Context) (Decision, error) {
	d := Decision{Allowed: true}
	s := t.scopes
	if t.last > 0 {
		req := t.req
		req.Cost = t.last
		asked, err := s.last.Taker.Take(ctx, req)
		t.asked = err == nil
		if err != nil {
			t.rollback()
			return Decision{}, s.last.wrap(err)
		}
		for i := range asked.Results {
			r := asked.Results[i]
			s.last.name(&r)
			t.results = append(t.results, r)
		}
		if d = asked; !d.Allowed {
			t.rollback()
			t.observe(ctx, len(t.scopes.holders))
			d.Results = t.applied()
			return d, nil
		}
	}
	var places []scopePermit
	if d.Permit != 0 {
		if f, ok := s.last.Taker.(Finisher); ok {
			places = append(places, scopePermit{f, d.Permit})
		}
	}
	for i := range t.scopes.holders {
		c := t.claim(i)
		if !c.held || c.cost == 0 {
			continue
		}
		s.holders[i].holder.Commit(c.prepared)
		d.Delay = max(d.Delay, t.results[i].Delay)
		if c.prepared.Permit != 0 {
			if f, ok := s.holders[i].Taker.(Finisher); ok {
				places = append(places, scopePermit{f, c.prepared.Permit})
			}
		}
	}
	d.Permit = s.permit(places)
	d.Results = t.applied()
	return d, nil
}

// countRefused charges a refused request to every scope that has not counted it yet. A permit
// that is granted for it is given back.
func (t *trial) countRefused(ctx context.Context) error {
	count := func(sc *scope, cost int64) error {
		req := t.req
		req.Cost = cost
		d, err := sc.Taker.Take(ctx, req)
		if f, ok := sc.Taker.(Finisher); err == nil && ok && d.Permit != 0 {
			err = f.Finish(ctx, req, d.Permit)
		}
		if err != nil {
			return sc.wrap(err)
		}
		return nil
	}
	for i := range t.scopes.holders {
		if c := t.claim(i); c.cost > 0 {
			if err := count(&t.scopes.holders[i], c.cost); err != nil {
				return err
			}
		}
	}
	if t.last > 0 && !t.asked {
		return count(&t.scopes.last, t.last)
	}
	return nil
}

// permit returns one permit for the permits of all scopes.
func (s *Scopes) permit(places []scopePermit) uint64 {
	if len(places) == 0 {
		return 0
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.serial++
	s.permits[s.serial] = places
	return s.serial
}

// refuse is the Decision when a Preparer has refused.
func (t *trial) refuse(ctx context.Context, refuser int) (Decision, error) {
	t.rollback()
	t.observe(ctx, refuser)
	return Decision{Status: statusTooManyRequests, Results: t.applied()}, nil
}

// observe asks the Preparers, except the one that refused, how they stand. Those before it had
// admitted, and are not shown as refusing if others have taken their tokens since.
func (t *trial) observe(ctx context.Context, refuser int) {
	for i := range t.scopes.holders {
		if i == refuser || t.claim(i).cost == 0 {
			continue
		}
		sc, r := &t.scopes.holders[i], &t.results[i]
		req := t.req
		req.Cost, req.Peek = t.claim(i).cost, true
		*r = Result{}
		if _, err := sc.holder.Prepare(ctx, req, false, r); err != nil {
			*r = Result{} // it would not have decided
			continue
		}
		if sc.name(r); i < refuser && !r.Allowed {
			r.Allowed, r.Reason, r.RetryAfter = true, ReasonNone, 0
		}
	}
}

// applied are the Results of the limits that applied.
func (t *trial) applied() []Result {
	n := 0
	for i := range t.results {
		if t.results[i].Limit != "" {
			if n != i {
				t.results[n] = t.results[i]
			}
			n++
		}
	}
	clear(t.results[n:])
	return t.results[:n]
}
