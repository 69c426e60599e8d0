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
	results []Result // of the Holders
	last    int64    // cost of the last scope
	asked   bool     // the last scope has decided

	// What the Holders are asked for, and have given. The few are in here, so that
	// they stay on the stack.
	few  [usualScopes]claim
	many []claim // the rest
}

// usualScopes are decided without memory from the heap.
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

// count asks what the request costs each scope.
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

// What is waited for with nothing held may be gone again when the others have been asked,
// where many want it at once. It is then waited for again.
const (
	// maxWaits is how often. Not more: each wait that ends well shows that there is
	// something, so this is for what nobody foresees. Not fewer: a dozen scopes may be
	// cold.
	maxWaits = 32
	// longestWaits is after how long no other wait begins. Not longer: a request that is
	// refused should be so soon. Not shorter: it is what one lease waits for its first
	// answer.
	longestWaits = 500 * time.Millisecond
)

// decide asks the scopes until all have admitted, or one refuses for good. One that
// refuses, but may have more after a while, is waited for with nothing held, and then
// held first.
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

// prepared holds of the i-th Preparer what it is asked for, unless it is held already.
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

// rollback gives back all that is held, the latest first: where two scopes have one Preparer,
// each finds it as it left it.
func (t *trial) rollback() {
	for i := range slices.Backward(t.scopes.holders) {
		if c := t.claim(i); c.held {
			t.scopes.holders[i].holder.Rollback(c.prepared)
			c.held, c.prepared = false, Prepared{}
		}
	}
}

// admit asks the last scope, and makes final what is held.
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
	var places []scopePlace
	if d.Permit != 0 {
		if f, ok := s.last.Taker.(Finisher); ok {
			places = append(places, scopePlace{f, d.Permit})
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
				places = append(places, scopePlace{f, c.prepared.Permit})
			}
		}
	}
	d.Permit = s.permit(places)
	d.Results = t.applied()
	return d, nil
}

// countRefused charges a request that was refused to every scope that has not counted it
// yet. A place in flight that one gives for it is given back.
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

// permit returns one permit for all places.
func (s *Scopes) permit(places []scopePlace) uint64 {
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

// observe asks how the Holders stand but the one that refused. Those before it had admitted,
// and do not count as refusing if somebody else has taken what they had meanwhile.
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
