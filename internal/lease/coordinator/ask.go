package coordinator

import (
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/pool"
	"github.com/stint-io/stint/limit"
)

// Asked is what servers ask for. Step puts the answers in it, one for each.
type Asked struct {
	Asks    []lease.Ask
	Answers []lease.Answer
	Must    uint64 // the number of the Level that replicas have to know before the answers are sent; 0 = none
}

func (*Asked) Event() {}

// answer answers all that is asked for at now.
func (c *Coordinator) answer(now limit.Time, e *Asked) {
	for i := range e.Asks {
		a, must := c.ask(now, &e.Asks[i])
		if e.Answers, e.Must = append(e.Answers, a), max(e.Must, must); a.Decided {
			c.stats.Asks++
		}
	}
}

// ask decides one. must is the number of the Level that replicas have to know first.
func (c *Coordinator) ask(now limit.Time, q *lease.Ask) (a lease.Answer, must uint64) {
	terms, status := c.resolve(q.Resource)
	if c.opts.Parent != nil || c.draining || c.resources[q.Resource] != nil || status != lease.StatusOK || !askable(&terms) {
		return a, 0
	}
	id := pool.IDOf(q.Resource)
	b, known := c.unlent.Get(id)
	if !known {
		if b, known = c.begun(now, q.Resource, &terms); !known || c.unlent.Len() >= maxUnlent {
			return a, 0
		}
	}
	changed := b.Adopt(now, terms.Rate, terms.Burst)
	before := b.Level(now)
	a.Decided, a.Admitted = true, before >= q.Cost
	if took := !q.Peek && q.Cost != 0 && b.Take(now, q.Cost); took || changed {
		c.tellUnlent(now, id, &b)
		c.unlent.Put(id, b)
		delete(c.used.of, id) // from here on this table says
		must = b.Must
	}
	a.Tokens = b.Level(now)
	a.ResetAfter = fixed.TimeFor(b.Burst-a.Tokens, b.Rate)
	switch {
	case a.Admitted:
	case q.Cost > b.Burst:
		a.RetryAfter = limit.Never
	default:
		a.RetryAfter = fixed.TimeFor(q.Cost-before, b.Rate)
	}
	return a, must
}
