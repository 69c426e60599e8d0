package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// queue is where requests over a limit with on_exceed: queue wait, first come first served for
// each key.
type queue struct {
	*limit.Queue
	key     []string
	length  int
	longest atomic.Int64 // a time.Duration
	counts  *queueTally
}

// queueTally counts the ends of waits. It survives a Swap.
type queueTally struct{ admitted, late, full, left atomic.Uint64 }

// QueueTally are the waits of the limit of that name.
type QueueTally struct {
	Limit string
	// Waiting are those that wait now.
	Waiting int
	// Admitted waits ended in time, Late ones would not have, or did not; Full counts requests
	// that found no place, and Left those whose caller gave up.
	Admitted, Late, Full, Left uint64
}

var (
	_ limit.PatientTaker = (*Engine)(nil)
	_ limit.Finisher     = tries{}
)

// tries asks the engine for waiters.
type tries struct{ e *Engine }

// refusal ends a wait that no time helps: by a limit without a queue, or by a ban.
type refusal struct{ d limit.Decision }

func (*refusal) Error() string { return "engine: refused by a limit for which nobody waits" }

func (t tries) Take(ctx context.Context, req limit.Request) (limit.Decision, error) {
	d, err := t.e.take(ctx, req)
	if err != nil || d.Allowed {
		return d, err
	}
	queues := t.e.live.Load().queues
	for i := range d.Results {
		r := &d.Results[i]
		if r.Shadow || r.Allowed {
			continue
		}
		switch r.Reason {
		case limit.ReasonRate, limit.ReasonConcurrency, limit.ReasonTableFull:
			if queues[r.Limit] != nil {
				continue
			}
		}
		return limit.Decision{}, &refusal{d}
	}
	return d, nil
}

func (t tries) Finish(ctx context.Context, req limit.Request, permit uint64) error {
	return t.e.finish(ctx, req, permit)
}

// bindQueues gives s the queues of its limits: those of before where nothing but the wait has
// changed.
func (e *Engine) bindQueues(s, old *snapshot) error {
	for _, l := range s.set.Limits() {
		o := &l.OnExceed
		if o.MaxWait <= 0 {
			continue
		}
		q := old.queues[l.Name]
		if q == nil || q.length != o.MaxWaiting || !slices.Equal(q.key, l.Key) {
			key := append([]string{}, l.Key...) // not nil: without a key all wait in one line
			line, err := limit.NewQueue(tries{e}, limit.QueueOptions{Attributes: key, MaxWaiting: o.MaxWaiting, MaxLines: o.MaxWaiting})
			if err != nil {
				return fmt.Errorf("engine: the queue of %q: %w", l.Name, err)
			}
			counts := new(queueTally)
			if q != nil {
				counts = q.counts
			}
			q = &queue{Queue: line, key: key, length: o.MaxWaiting, counts: counts}
		}
		q.longest.Store(int64(o.MaxWait))
		if s.queues == nil {
			s.queues = map[string]*queue{}
		}
		s.queues[l.Name] = q
	}
	return nil
}

// closeQueues ends the waits in queues that are no more in force: their requests are decided by
// what is.
func (s *snapshot) closeQueues(next *snapshot) {
	for name, q := range s.queues {
		if next.queues[name] != q {
			q.Close()
		}
	}
}

// queueOf returns the queue of the first limit of a request that has one, or nil.
func (e *Engine) queueOf(s *snapshot, req limit.Request) *queue {
	if len(s.queues) == 0 {
		return nil
	}
	q := e.queries.Get().(*Query)
	defer e.release(q)
	q.single(req)
	q.reset()
	q.matched, q.keys = s.set.Match("", req.Attributes, q.matched, q.keys)
	for i := range q.matched {
		if m := &q.matched[i]; m.Limit.OnExceed.MaxWait > 0 && !m.Shadow && m.Limit.Sharing == rules.SharingExact {
			return s.queues[m.Limit.Name]
		}
	}
	return nil
}

// TakeWithin is Take that lets the request wait for at most d where its limits have on_exceed:
// queue; with d of 0 it is refused at once. The wait ends with the permit, with a refusal as soon
// as it is known that the permit comes too late, and with ctx. A delay that a leaky bucket asks
// for is then part of the wait.
func (e *Engine) TakeWithin(ctx context.Context, req limit.Request, d time.Duration) (limit.Decision, error) {
	s := e.live.Load()
	req.Attributes = s.derived.of(req.Attributes)
	q := e.queueOf(s, req)
	if q == nil || req.Peek || d <= 0 || req.Cost < 0 {
		return e.take(ctx, req)
	}
	answer, err := q.WaitMax(ctx, req, min(d, time.Duration(q.longest.Load())))
	var refused *refusal
	switch {
	case err == nil:
		answer.Delay = 0
		q.counts.admitted.Add(1)
		return answer, nil
	case errors.As(err, &refused):
		return refused.d, nil
	case errors.Is(err, limit.ErrWaitTooLong), errors.Is(err, limit.ErrExceedsQuota):
		q.counts.late.Add(1)
		if len(answer.Results) > 0 {
			return answer, nil
		}
	case errors.Is(err, limit.ErrQueueFull):
		q.counts.full.Add(1)
	case errors.Is(err, limit.ErrQueueClosed):
		// The configuration has changed.
		return e.take(ctx, req)
	default:
		if ctx.Err() != nil {
			q.counts.left.Add(1)
		}
		return answer, err
	}
	// It was refused without having been tried. A Peek overtakes nobody.
	req.Peek = true
	if answer, err = e.take(ctx, req); err != nil || !answer.Allowed {
		return answer, err
	}
	req.Peek = false
	return e.take(ctx, req)
}

// QueueTallies returns those of all queues.
func (e *Engine) QueueTallies() []QueueTally {
	var list []QueueTally
	for name, q := range e.live.Load().queues {
		c := q.counts
		list = append(list, QueueTally{name, q.Waiting(), c.admitted.Load(), c.late.Load(), c.full.Load(), c.left.Load()})
	}
	return list
}
