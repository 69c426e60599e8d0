package limit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/stint-io/stint/internal/waitline"
)

// enter asks the Taker, unless others wait, and puts a request that has to wait in line. If it
// need not wait, p is nil and r is the reply.
func (q *Queue) enter(ctx context.Context, req Request, d time.Duration, done func(Decision, error)) (p *waiter, r reply) {
	if req.Cost < 0 {
		return nil, reply{err: ErrNegativeCost}
	}
	if req.Peek {
		return nil, reply{err: errPeek}
	}
	asked := q.now()
	b := q.patience(ctx, asked, d)
	var room [usualKey]byte
	key := q.key(room[:0], req)
	if q.lines.Load() > 0 {
		if p, r, met := q.join(ctx, req, b, done, key, asked, nil); met {
			return p, r
		}
	}
	if q.ctx.Err() != nil {
		return nil, reply{err: ErrQueueClosed}
	}
	answer, err := q.try(ctx, req, b, false)
	switch now := q.now(); {
	case err != nil:
		return nil, reply{err: b.fault(err, now)}
	case answer.Allowed && answer.Delay <= 0:
		return nil, reply{d: answer}
	case answer.Allowed:
		return q.admitted(newWaiter(ctx, req, b, done), answer)
	case answer.RetryAfter() == Never:
		return nil, reply{d: answer, err: exceeds(&answer)}
	default:
		f := forecast{at: asked, cost: costOf(req), results: answer.Results}
		if t := f.earliest(f.cost); max(t, now+1) > b.latest {
			return nil, reply{d: answer, err: b.tooLong(t, now)}
		}
	}
	p, r, _ = q.join(ctx, req, b, done, key, asked, &answer)
	return p, r
}

// try calls the Taker with a context that ends with the wait. A request that does not wait at
// all asks once without that bound.
func (q *Queue) try(ctx context.Context, req Request, b patience, peek bool) (Decision, error) {
	if b.latest < math.MaxInt64 && !b.hurried && b.longest > 0 {
		var cancel context.CancelFunc
		until := max(b.latest, q.now().Add(grace)) // the waiter may have been due in time, and its timer late
		ctx, cancel = context.WithDeadline(ctx, q.origin.Add(time.Duration(until-1)))
		defer cancel()
	}
	paced := b.latest < math.MaxInt64 && q.paces.Load()
	if peek || paced {
		// A request that is admitted and held back for too long is charged all the same, so
		// check before.
		req.Peek = true
		d, err := q.taker.Take(ctx, req)
		if err != nil || !d.Allowed {
			return d, err
		}
		if paced && q.now().Add(d.Delay) > b.latest {
			return d, errHeldTooLong
		}
		req.Peek = false
	}
	d, err := q.taker.Take(ctx, req)
	for i := range d.Results {
		if d.Results[i].Algorithm == LeakyBucket && !q.paces.Load() {
			q.paces.Store(true)
		}
	}
	return d, err
}

var errHeldTooLong = errors.New("held back for too long")

// fault is the error of a request that the Taker answered with err.
func (b patience) fault(err error, now Time) error {
	if errors.Is(err, errHeldTooLong) || errors.Is(err, context.DeadlineExceeded) && now >= b.latest {
		return b.tooLong(0, now)
	}
	return err
}

// exceeds is the error of a refusal with a RetryAfter of Never.
func exceeds(d *Decision) error {
	for i := range d.Results {
		if r := &d.Results[i]; !r.Shadow && !r.Allowed && r.RetryAfter == Never {
			return fmt.Errorf("%w: %q refuses a cost of %d for good: %v", ErrExceedsQuota, r.Limit, r.Cost, r.Reason)
		}
	}
	return ErrExceedsQuota
}

// admitted makes p, which is in no line, wait for the delay of its admission.
func (q *Queue) admitted(p *waiter, d Decision) (held *waiter, r reply) {
	q.lock()
	now := q.now()
	at := now.Add(d.Delay)
	if !q.closed && at <= p.latest {
		defer q.unlock()
		p.own()
		q.park(p, d, at)
		return p, reply{}
	}
	r.err = ErrQueueClosed
	if !q.closed {
		r.err = p.tooLong(at, now)
	}
	q.unlock()
	q.finish(p, d)
	return nil, r
}

// park ends the wait of p at that time, with d. Until then p counts as waiting.
func (q *Queue) park(p *waiter, d Decision, at Time) {
	d.Results = slices.Clone(d.Results)
	p.answer, p.held = &d, true
	q.waiting++
	p.Deadline.Unset() // set anew, it comes after others that are released at the same time
	q.alarms.Set(&p.Deadline, p, int64(at))
}

// finish gives back the permit of a Decision whose waiter has left. There is nobody to handle an
// error; the time-out of the permit remains.
func (q *Queue) finish(p *waiter, d Decision) {
	if f, ok := q.taker.(Finisher); ok && d.Permit != 0 {
		_ = f.Finish(context.WithoutCancel(p.ctx), p.req, d.Permit)
	}
}

// giveBack is finish under the lock. The queue is not closed, or has a goroutine at work.
func (q *Queue) giveBack(p *waiter, d Decision) {
	if d.Permit != 0 {
		q.work.Go(func() { q.finish(p, d) })
	}
}

func newWaiter(ctx context.Context, req Request, b patience, done func(Decision, error)) *waiter {
	p := &waiter{req: req, ctx: ctx, patience: b, done: done}
	p.Value, p.Cost = p, costOf(req)
	return p
}

// own prepares p to outlive the call: it copies the attributes, which the caller may reuse
// afterwards, and makes the signal.
func (p *waiter) own() {
	p.req.Attributes = slices.Clone(p.req.Attributes)
	if p.done == nil {
		p.Signal = waitline.Wake()
	} else {
		p.Signal = waitline.Callback(p)
	}
}

// WaitEnded implements waitline.Handler.
func (p *waiter) WaitEnded(err error) { p.done(p.decision(), err) }

// decision is how the wait of p has ended.
func (p *waiter) decision() Decision {
	if p.answer == nil {
		return Decision{}
	}
	return *p.answer
}

// join appends a request to the key's line. met is false if there is none and refused is nil.
// With refused, the refusal of a call made at asked, it makes the line. If met is true and p is
// nil, r is the reply.
func (q *Queue) join(ctx context.Context, req Request, b patience, done func(Decision, error), key []byte, asked Time, refused *Decision) (p *waiter, r reply, met bool) {
	q.lock()
	defer q.unlock()
	now, cost := q.now(), costOf(req)
	l := q.lanes[string(key)]
	switch {
	case q.closed:
		return nil, reply{err: ErrQueueClosed}, true
	case l == nil && refused == nil:
		return nil, reply{}, false
	case q.waiting >= q.opts.MaxWaiting:
		return nil, reply{err: fmt.Errorf("%w: %d wait, which is all: raise MaxWaiting, or come later", ErrQueueFull, q.waiting)}, true
	case l == nil && len(q.lanes) >= q.opts.MaxLines:
		return nil, reply{err: fmt.Errorf("%w: some wait under %d keys, which is all: raise MaxLines, or come later", ErrQueueFull, len(q.lanes))}, true
	case l == nil:
		l = &lane{key: string(key)}
		l.refuse(refused, asked, now, cost)
		q.lanes[l.key] = l
		q.lines.Add(1)
	case l.forecast.never(cost):
		return nil, reply{d: l.refusal(now, cost), err: fmt.Errorf("%w: a cost of %d", ErrExceedsQuota, cost)}, true
	default:
		if t := l.earliest(l.line.Cost(), cost); max(t, now+1) > b.latest {
			return nil, reply{d: l.refusal(now, cost), err: b.tooLong(t, now)}, true
		}
	}
	p = newWaiter(ctx, req, b, done)
	p.own()
	p.lane = l
	l.line.Push(&p.Waiter)
	q.waiting++
	q.alarms.Set(&p.Deadline, p, int64(p.latest))
	if l.first() == p {
		q.schedule(l)
	}
	return p, reply{}, true
}

// leave takes p, which gives up, out of its line. It returns false when the wait is over.
func (q *Queue) leave(p *waiter) bool {
	q.lock()
	defer q.unlock()
	if p.over {
		return false
	}
	inLine := p.Waiting()
	p.pass()
	if p.held {
		q.giveBack(p, *p.answer)
		p.answer = nil
	}
	q.quit(p)
	if inLine {
		q.schedule(p.lane)
	}
	return true
}

// grace is how much longer a waiter stays past its deadline while its line is asking: it may
// have been due in time, and its timer late. Not longer: a wait is to end at its deadline. Not
// shorter: timers are a millisecond late.
const grace = 2 * time.Millisecond

// expire ends the wait of p, whose deadline has passed, or grants it the grace time.
func (q *Queue) expire(p *waiter, now Time) {
	l := p.lane
	if (l.busy || l.due) && !l.peek && !p.late {
		p.late = true
		q.alarms.Set(&p.Deadline, p, int64(now.Add(grace)))
		return
	}
	first := l.first() == p
	d := l.refusal(now, p.Cost)
	q.end(p, &d, p.tooLong(0, now))
	if first {
		q.schedule(l)
	}
}

// pass records that p leaves its line unserved.
func (p *waiter) pass() {
	if p.Waiting() && p.lane.first() == p {
		p.lane.forecast.loose = true
	}
}

// quit removes p from its line, its alarm and the count of waiters.
func (q *Queue) quit(p *waiter) {
	p.Deadline.Unset()
	if p.Waiting() {
		p.lane.line.Remove(&p.Waiter)
	}
	p.over, p.held = true, false
	q.waiting--
}

// end ends the wait of p, which is not admitted, or was held back.
func (q *Queue) end(p *waiter, d *Decision, err error) {
	p.pass()
	q.quit(p)
	p.answer = d
	p.End(&q.calls, err)
}

// schedule makes the first waiter of a line ask when it is due. It ends the waits of those that
// would be served too late, up to the first that would not, and drops an empty line.
func (q *Queue) schedule(l *lane) {
	if l.busy {
		return
	}
	now := q.now()
	for p := l.first(); p != nil; p = l.first() {
		if t := l.earliest(0, p.Cost); t > p.latest {
			d := l.refusal(now, p.Cost)
			q.end(p, &d, p.tooLong(t, now))
			continue
		}
		at, check := l.ask(p.Cost), now.Add(q.opts.Recheck)
		l.peek = at > check
		if at = min(at, check); at <= now {
			q.makeReady(l)
		} else {
			q.alarms.Set(&l.alarm, l, int64(at))
		}
		return
	}
	l.alarm.Unset()
	if q.lanes[l.key] == l {
		delete(q.lanes, l.key)
		q.lines.Add(-1)
	}
}

// makeReady has the first waiter ask as soon as a goroutine is free to do it.
func (q *Queue) makeReady(l *lane) {
	l.alarm.Unset()
	if !l.due && !l.busy {
		l.due = true
		q.ready = append(q.ready, l)
	}
}

// serve asks for the first waiters of the lines that are ready, one after the other.
func (q *Queue) serve() {
	var l *lane
	var p *waiter
	defer func() {
		q.lock()
		defer q.unlock()
		q.asking--
		if l == nil {
			return
		}
		// A done, or the Taker, has ended the goroutine.
		if !p.over {
			q.end(p, nil, errNoAnswer)
		}
		l.busy = false
		q.schedule(l)
	}()
	for {
		var peek bool
		if l, p, peek = q.next(); l == nil {
			return
		}
		asked := q.now()
		d, err := q.try(p.ctx, p.req, p.patience, peek)
		if q.answer(l, p, d, err, asked) {
			p.done(d, nil)
		}
		q.lock()
		l.busy = false
		q.schedule(l)
		q.free++
		q.unlock()
	}
}

var errNoAnswer = errors.New("limit: the Taker did not return")

// next returns a line whose first waiter is to ask, busy from here on; nil if there is none.
func (q *Queue) next() (l *lane, p *waiter, peek bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.free--
	for len(q.ready) > 0 && !q.closed {
		l, q.ready[0] = q.ready[0], nil
		q.ready = q.ready[1:]
		l.due = false
		// Since the line was made ready its first waiter may have left, and the next may be
		// due later.
		if p = l.first(); p != nil && !l.alarm.IsSet() {
			l.busy = true
			return l, p, l.peek
		}
	}
	return nil, nil, false
}

// answer applies the Taker's answer to p, the first waiter of l; asked is when the Taker was
// called. served says that p is admitted and does not block: the caller then calls done, without
// the lock.
func (q *Queue) answer(l *lane, p *waiter, d Decision, err error, asked Time) (served bool) {
	q.lock()
	defer q.unlock()
	now, cost := q.now(), p.Cost
	if err == nil && d.Allowed {
		l.admit(&d, now, cost)
	} else if err == nil && d.RetryAfter() != Never { // a refusal for good says nothing about other costs
		l.refuse(&d, asked, now, cost)
	}
	switch {
	case p.over: // it left meanwhile
		if err == nil && d.Allowed {
			q.giveBack(p, d)
		}
		return false
	case err != nil:
		q.end(p, nil, p.fault(err, now))
		return false
	case !d.Allowed:
		switch {
		case d.RetryAfter() == Never:
			refusal := d
			refusal.Results = slices.Clone(d.Results)
			q.end(p, &refusal, exceeds(&refusal))
		case now >= p.latest:
			refusal := l.refusal(now, cost)
			q.end(p, &refusal, p.tooLong(0, now))
		}
		return false
	}
	at := now.Add(d.Delay)
	until := at
	if at >= l.heldFrom {
		// A delay counts from the Taker's decision, which was between asked and now. To keep
		// the order, a request is not released before an earlier one unless its delay is
		// certainly shorter.
		until = max(at, min(l.heldUntil, p.latest))
	}
	if until > now {
		if at > p.latest {
			q.giveBack(p, d)
			q.end(p, nil, p.tooLong(at, now))
		} else {
			l.heldFrom, l.heldUntil = max(l.heldFrom, asked.Add(d.Delay)), max(l.heldUntil, until)
			l.line.Remove(&p.Waiter)
			q.waiting--
			q.park(p, d, until)
		}
		return false
	}
	q.quit(p)
	if !p.Blocks() {
		return true
	}
	p.answer = &Decision{}
	*p.answer = d
	p.answer.Results = slices.Clone(d.Results)
	p.End(&q.calls, nil)
	return false
}
