package outgoing

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// Result is how one attempt went.
type Result struct {
	Outcome  Outcome
	Standing Standing
	// Again says that the request may be sent again: it did not succeed, and to send it twice
	// does no harm.
	Again bool
}

// Do sends a request up to Retry.Attempts times, as the Policy says. try sends it, for the n-th
// time (from 1), and must not have kept anything of an earlier answer when it is called again. The
// error is that of [Guard.Begin] for the first attempt; an attempt that is held back later leaves
// what try had last. The last Attempt is to be released when its answer has been read; it is nil
// with an error.
func (g *Guard) Do(ctx context.Context, c Call, try func(n int) Result) (*Attempt, error) {
	a, err := g.begin(ctx, c, false)
	if err != nil {
		return nil, err
	}
	for n := 1; ; n++ {
		res := a.run(try, n)
		if !res.Again || n >= g.rules.Retry.Attempts || ctx.Err() != nil {
			return a, nil
		}
		next := g.again(ctx, a, c, n, res)
		if next == nil {
			return a, nil
		}
		a.Release()
		a = next
		g.counts.retries.Add(1)
	}
}

// run calls try once. What a try holds that panics, or ends its goroutine, is free again.
func (a *Attempt) run(try func(n int) Result, n int) Result {
	returned := false
	defer func() {
		if !returned {
			a.End(Dropped, Standing{})
			a.Release()
		}
	}()
	res := try(n)
	returned = true
	a.End(res.Outcome, res.Standing)
	return res
}

// again waits and begins the next attempt; nil = there is none.
func (g *Guard) again(ctx context.Context, a *Attempt, c Call, n int, res Result) *Attempt {
	wait := g.backoff(n, res.Standing)
	if wait > g.rules.Retry.Longest+g.rules.Retry.Base {
		return nil
	}
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= wait {
		return nil
	}
	if !g.budget(a, true) {
		g.counts.unpaid.Add(1)
		return nil
	}
	next, err := (*Attempt)(nil), sleep(ctx, wait)
	if err == nil {
		next, err = g.begin(ctx, c, true)
	}
	if err != nil {
		g.budget(a, false)
		return nil
	}
	return next
}

// backoff returns the wait before attempt n+1: what the server asked for and a little more, or a
// time drawn at random from one that doubles with each attempt.
func (g *Guard) backoff(n int, s Standing) time.Duration {
	r := g.rules.Retry
	if s.Wait {
		return min(s.RetryAfter, time.Hour) + time.Duration(rand.Float64()*float64(r.Base))
	}
	most := min(r.Base<<(n-1), r.Longest)
	return time.Duration(rand.Float64() * float64(most))
}

// budget takes a retry from the server's budget, or gives one back.
func (g *Guard) budget(a *Attempt, take bool) bool {
	if a.entry == nil {
		return false // nothing is remembered of the server, so nothing bounds the retries
	}
	h := a.entry.Value
	h.mu.Lock()
	defer h.mu.Unlock()
	if take {
		return h.budget.Retry()
	}
	h.budget.Return()
	return true
}

// counts are what a Guard has done, for [Guard.Stats].
type counts struct {
	sent, retries, unpaid, probes atomic.Int64
	outcomes                      [Unanswered + 1]atomic.Int64
	heldBack                      [causes]atomic.Int64
}

// Stats are what a [Guard] has done since it was made.
type Stats struct {
	Sent      int64 // attempts, retries included
	Accepted  int64 // of these, answered otherwise than by a refusal
	Refused   int64 // refused by the server, or not answered
	Dropped   int64 // never reached the server, or given up by the caller
	Retries   int64 // attempts after the first
	Probes    int64 // attempts that a closed throttle let pass to see whether the server is back
	Unpaid    int64 // retries that the budget did not allow
	Held      int64 // not sent: the server asked to wait
	Throttled int64 // not sent: the server refuses too much
	Limited   int64 // not sent: Limit refused
	Hosts     int64 // servers of which something is remembered
}

// Stats returns the counters, for metrics.
func (g *Guard) Stats() Stats {
	c := &g.counts
	return Stats{
		Sent: c.sent.Load(), Retries: c.retries.Load(), Unpaid: c.unpaid.Load(), Probes: c.probes.Load(),
		Accepted: c.outcomes[Accepted].Load(), Refused: c.outcomes[Refused].Load() + c.outcomes[Unanswered].Load(), Dropped: c.outcomes[Dropped].Load(),
		Held: c.heldBack[Held].Load(), Throttled: c.heldBack[Throttled].Load(), Limited: c.heldBack[Limited].Load(),
		Hosts: int64(g.hosts.Len()),
	}
}
