package coordinator

import (
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/ledger"
	"github.com/stint-io/stint/internal/lease/pool"
	"github.com/stint-io/stint/limit"
)

// supplied plans a round of each resource, since there is more or less to divide.
func (c *Coordinator) supplied(now limit.Time, changed []*ledger.Resource) {
	for _, changed := range changed {
		if r := c.resources[changed.ID]; r != nil && r.Resource == changed {
			c.scheduleRound(r, now)
		}
	}
}

// parentAnswers is how long an instance waits for what the parent says of a resource that it does not
// lend yet. Not longer: its callers wait as well. Not shorter: the parent may be a continent away.
const parentAnswers = 500 * time.Millisecond

// awaitsParent says whether nothing is sent of an account yet: that nothing is lent would be believed, and
// the parent, which is there, is about to say more.
func (c *Coordinator) awaitsParent(a *account, now limit.Time) bool {
	s := a.resource.Supply
	return s != nil && !s.Known && !s.Alone && a.Status == lease.StatusOK && now < a.since.Add(parentAnswers) && now < c.opts.Parent.Until()
}

// newResource makes the books of a resource.
func (c *Coordinator) newResource(now limit.Time, id lease.ResourceID, terms lease.Terms) *resource {
	if c.opts.Parent != nil && c.opts.Parent.Lends(&terms) {
		// It holds nothing yet. What a former coordinator of the site has lent is counted by the
		// parent, so there is nothing to recover here.
		r := &resource{Resource: ledger.NewSite(id, terms, now)}
		c.opts.Parent.Opened(now, r.Resource)
		return r
	}
	was, listed, known := c.takeUsed(id)
	_, unlent := c.unlent.Get(pool.IDOf(id))
	// Nobody has anything of a bucket that nobody had a lease of.
	frozen := c.recovering(now, id.Limit) && (was.leased || !known) && !unlent
	r := &resource{Resource: c.scratch.New(id, terms, now, frozen)}
	switch {
	case c.lendUnlent(now, r):
	case terms.PerInstance():
	case listed:
		r.Begin(was.tokens, c.fillsSince(&was, now), now)
		r.told.as = toldIdle
	case c.emptySince != 0 && !r.Recovering:
		r.Begin(0, c.othersEmptySince(now), now)
		r.told.as = toldIdle
	case c.full && r.Recovering:
		r.Begin(terms.Lendable().Burst, now, now) // nobody is known to have lent of it
	}
	return r
}

// sourceChanged says that terms change where the capacity of a resource comes from.
func (c *Coordinator) sourceChanged(r *resource, t *lease.Terms) bool {
	return c.opts.Parent != nil && c.opts.Parent.Lends(t) != (r.Supply != nil)
}

// length is how long the leases of a session last from its latest report on: a lease never
// outlives that of the parent. The instance's clock may run slow by one part in DriftMargin, and
// x - x/n seconds of it are less than x.
func (c *Coordinator) length(s *session) time.Duration {
	length := c.opts.Lease
	if c.opts.Parent == nil {
		return length
	}
	if until := c.opts.Parent.Until(); until != 0 {
		left := time.Duration(until - s.receivedAt)
		length = min(length, max(0, left-left/lease.DriftMargin))
	}
	return length
}

// path is what sites are told: this coordinator and those above it.
func (c *Coordinator) path(s *session) []string {
	if !s.site || c.opts.Name == "" {
		return nil
	}
	path := []string{c.opts.Name}
	if c.opts.Parent != nil {
		path = append(path, c.opts.Parent.Path()...)
	}
	return path
}
