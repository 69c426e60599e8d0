// Package waitqueue keeps the lines in which requests over a limit with on_exceed: queue wait, first come first served for
// each key. It decides nothing: each time that a waiter may have a permit, it asks whoever does.
package waitqueue

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

// Queue has the waiters of one limit. It is safe for concurrent use; make it with [Bind].
type Queue struct {
	*limit.Queue
	asker   limit.Finisher
	key     []string
	length  int
	longest atomic.Int64 // a time.Duration
	counts  *counts
}

// counts are the ends of waits. They survive a change of the configuration.
type counts struct{ admitted, late, full, left atomic.Uint64 }

// Tally are the waits of the limit of that name.
type Tally struct {
	Limit string
	// Waiting are those that wait now.
	Waiting int
	// Admitted waits ended in time, Late ones would not have, or did not; Full counts requests
	// that found no place, and Left those whose caller gave up.
	Admitted, Late, Full, Left uint64
}

// Queues are those of one configuration, by the name of the limit. nil = no limit has one.
type Queues map[string]*Queue

// Bind returns the queues of a set: those of before where nothing but the wait has changed. asker decides a request at once,
// by the configuration in force, whose queues now returns.
func Bind(set *rules.Set, before Queues, asker limit.Finisher, now func() Queues) (Queues, error) {
	var queues Queues
	for _, l := range set.Limits() {
		o := &l.OnExceed
		if o.MaxWait <= 0 {
			continue
		}
		q := before[l.Name]
		if q == nil || q.length != o.MaxWaiting || !slices.Equal(q.key, l.Key) {
			key := append([]string{}, l.Key...) // not nil: without a key all wait in one line
			line, err := limit.NewQueue(tries{asker, now}, limit.QueueOptions{Attributes: key, MaxWaiting: o.MaxWaiting, MaxLines: o.MaxWaiting})
			if err != nil {
				return nil, fmt.Errorf("waitqueue: the queue of %q: %w", l.Name, err)
			}
			ends := new(counts)
			if q != nil {
				ends = q.counts
			}
			q = &Queue{Queue: line, asker: asker, key: key, length: o.MaxWaiting, counts: ends}
		}
		q.longest.Store(int64(o.MaxWait))
		if queues == nil {
			queues = Queues{}
		}
		queues[l.Name] = q
	}
	return queues, nil
}

// CloseUnless ends the waits in queues that next has not: their requests are decided by what is in force.
func (q Queues) CloseUnless(next Queues) {
	for name, one := range q {
		if next[name] != one {
			one.Close()
		}
	}
}

// Tallies returns those of all queues, in no order.
func (q Queues) Tallies() []Tally {
	var list []Tally
	for name, one := range q {
		c := one.counts
		list = append(list, Tally{name, one.Waiting(), c.admitted.Load(), c.late.Load(), c.full.Load(), c.left.Load()})
	}
	return list
}

// tries asks for waiters.
type tries struct {
	limit.Finisher
	now func() Queues
}

// refusal ends a wait that no time helps: by a limit without a queue, or by a ban.
type refusal struct{ d limit.Decision }

func (*refusal) Error() string { return "waitqueue: refused by a limit for which nobody waits" }

func (t tries) Take(ctx context.Context, req limit.Request) (limit.Decision, error) {
	d, err := t.Finisher.Take(ctx, req)
	if err != nil || d.Allowed {
		return d, err
	}
	queues := t.now()
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

// TakeWithin decides req, which waits for at most d, and no longer than the limit says. The wait ends with the permit, with
// a refusal as soon as it is known that the permit comes too late, and with ctx.
func (q *Queue) TakeWithin(ctx context.Context, req limit.Request, d time.Duration) (limit.Decision, error) {
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
		return q.asker.Take(ctx, req)
	default:
		if ctx.Err() != nil {
			q.counts.left.Add(1)
		}
		return answer, err
	}
	// It was refused without having been tried. A Peek overtakes nobody.
	req.Peek = true
	if answer, err = q.asker.Take(ctx, req); err != nil || !answer.Allowed {
		return answer, err
	}
	req.Peek = false
	return q.asker.Take(ctx, req)
}
