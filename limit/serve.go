package limit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"time"
)

// enter asks for p, unless others wait, and puts p in line if it is to wait; else r is
// its reply.
func (q *Queue) enter(p *waiter, d time.Duration) (r reply, waits bool) {
	if p.req.Cost < 0 {
		return reply{err: ErrNegativeCost}, false
	}
	if p.req.Peek {
		return reply{err: errPeek}, false
	}
	now := q.now()
	p.longest = d
	p.latest, p.hurried = q.until(p.ctx, now, d)
	var room [usualKey]byte
	key := q.key(room[:0], p.req)
	if q.lines.Load() > 0 {
		if r, met, waits := q.join(p, key, nil); met {
			return r, waits
		}
	}
	if q.ctx.Err() != nil {
		return reply{err: ErrQueueClosed}, false
	}
	refused, err := q.try(p, false)
	if err != nil {
		return reply{err: p.fault(err, q.now())}, false
	}
	if refused.Allowed {
		return q.admitted(p, refused)
	}
	if r, final := p.final(&refused, q.now()); final {
		return r, false
	}
	r, _, waits = q.join(p, key, &refused)
	return r, waits
}

// try calls the Taker for p, with a context that ends when p goes away. One who does not
// wait at all asks all the same.
func (q *Queue) try(p *waiter, peek bool) (Decision, error) {
	ctx, req := p.ctx, p.req
	if p.latest < math.MaxInt64 && !p.hurried && p.longest > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, q.origin.Add(time.Duration(p.latest-1)))
		defer cancel()
	}
	paced := p.latest < math.MaxInt64 && q.paces.Load()
	if peek || paced {
		// What is admitted and held back for too long is charged all the same, so
		// look before.
		req.Peek = true
		d, err := q.taker.Take(ctx, req)
		if err != nil || !d.Allowed {
			return d, err
		}
		if paced && q.now().Add(d.Delay) > p.latest {
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

// fault is the error of p when the Taker answered with err.
func (p *waiter) fault(err error, now Time) error {
	if errors.Is(err, errHeldTooLong) || errors.Is(err, context.DeadlineExceeded) && now >= p.latest {
		return p.tooLong(0, now)
	}
	return err
}

// final says whether a refusal at now ends the wait of p, who asked first.
func (p *waiter) final(d *Decision, now Time) (reply, bool) {
	if d.RetryAfter() == Never {
		return reply{p: p, d: *d, err: exceeds(d)}, true
	}
	f := forecast{at: now, cost: costOf(p.req), results: d.Results}
	if t := max(f.earliest(f.cost), now+1); t > p.latest {
		return reply{p: p, d: *d, err: p.tooLong(f.earliest(f.cost), now)}, true
	}
	return reply{}, false
}

// exceeds is the error of a refusal that no wait can mend.
func exceeds(d *Decision) error {
	for i := range d.Results {
		if r := &d.Results[i]; !r.Shadow && !r.Allowed && r.RetryAfter == Never {
			return fmt.Errorf("%w: %q refuses a cost of %d for good: %v", ErrExceedsQuota, r.Limit, r.Cost, r.Reason)
		}
	}
	return ErrExceedsQuota
}

// admitted ends the wait of p, who is in no line, with an admission: at once, or when it
// has been held back.
func (q *Queue) admitted(p *waiter, d Decision) (r reply, waits bool) {
	if d.Delay <= 0 {
		return reply{p: p, d: d}, false
	}
	at := q.now().Add(d.Delay)
	if at > p.latest {
		q.giveBack(p, d)
		return reply{p: p, err: p.tooLong(at, q.now())}, false
	}
	q.lock()
	defer q.unlock()
	if q.closed {
		return reply{p: p, err: ErrQueueClosed}, false
	}
	q.own(p)
	q.hold(p, d, at)
	return reply{}, true
}

// hold lets p go at a time; it counts among those who wait.
func (q *Queue) hold(p *waiter, d Decision, at Time) {
	d.Results = slices.Clone(d.Results)
	p.held = &d
	q.waiting++
	q.set(&p.alarm, at)
}

// giveBack finishes what a Decision holds for one who has gone.
func (q *Queue) giveBack(p *waiter, d Decision) {
	if f, ok := q.taker.(Finisher); ok && d.Permit != 0 {
		// Nobody is there to be told of an error; the place's time-out is left.
		_ = f.Finish(context.WithoutCancel(p.ctx), p.req, d.Permit)
	}
}

// own makes p fit to outlive the call: one who is called may reuse the attributes.
func (q *Queue) own(p *waiter) {
	p.alarm.waiter = p
	if p.done == nil {
		p.wake = make(chan reply, 1)
	} else {
		p.req.Attributes = slices.Clone(p.req.Attributes)
	}
}

// join puts p at the end of the key's line. met says that there is one, or that one was
// made, for which the refusal is that p has met; else r is p's reply unless p waits.
func (q *Queue) join(p *waiter, key []byte, refused *Decision) (r reply, met, waits bool) {
	q.lock()
	defer q.unlock()
	now := q.now()
	l := q.lanes[string(key)]
	switch {
	case q.closed:
		return reply{err: ErrQueueClosed}, true, false
	case l == nil && refused == nil:
		return reply{}, false, false
	case q.waiting >= q.opts.MaxWaiting:
		return reply{err: fmt.Errorf("%w: %d wait, which is all: raise MaxWaiting, or come later", ErrQueueFull, q.waiting)}, true, false
	case l == nil && len(q.lanes) >= q.opts.MaxLines:
		return reply{err: fmt.Errorf("%w: some wait under %d keys, which is all: raise MaxLines, or come later", ErrQueueFull, len(q.lanes))}, true, false
	case l == nil:
		l = &lane{key: string(key)}
		l.alarm.lane = l
		l.refuse(refused, now, costOf(p.req))
		q.lanes[l.key] = l
		q.lines.Add(1)
	case l.forecast.never(costOf(p.req)):
		return reply{p: p, d: l.refusal(now, costOf(p.req)), err: fmt.Errorf("%w: a cost of %d", ErrExceedsQuota, costOf(p.req))}, true, false
	default:
		if t := max(l.turn(l.cost, costOf(p.req)), now+1); t > p.latest {
			return reply{p: p, d: l.refusal(now, costOf(p.req)), err: p.tooLong(l.turn(l.cost, costOf(p.req)), now)}, true, false
		}
	}
	q.own(p)
	l.push(p)
	q.waiting++
	q.set(&p.alarm, p.latest)
	if l.first == p {
		q.schedule(l)
	}
	return reply{}, true, true
}

// leave takes p, who gives up, out of its line. It says false when the wait is over.
func (q *Queue) leave(p *waiter) bool {
	q.lock()
	defer q.unlock()
	if p.over {
		return false
	}
	l, held := p.lane, p.held
	p.pass()
	q.quit(p)
	if held != nil && held.Permit != 0 {
		d := *held
		q.work.Go(func() { q.giveBack(p, d) })
	}
	if l != nil {
		q.schedule(l)
	}
	return true
}

// expire sends p away, whose time is over.
func (q *Queue) expire(p *waiter, now Time) {
	l := p.lane
	q.end(p, reply{d: l.refusal(now, costOf(p.req)), err: p.tooLong(0, now)})
	q.schedule(l)
}

// pass takes note that p leaves its line unserved.
func (p *waiter) pass() {
	if p.lane != nil && p.lane.first == p {
		p.lane.forecast.loose = true
	}
}

// quit takes p out of everything.
func (q *Queue) quit(p *waiter) {
	q.unset(&p.alarm)
	if p.lane != nil {
		p.lane.remove(p)
	}
	p.over, p.held = true, nil
	q.waiting--
}

// end ends the wait of p, who is not admitted, or was held back.
func (q *Queue) end(p *waiter, r reply) {
	p.pass()
	q.quit(p)
	r.p = p
	if p.wake != nil {
		p.wake <- r
		return
	}
	q.calls.add(r)
	q.told = true
}

// schedule sees to it that the first in line asks when it is its time. It sends away
// those who would be too late, up to the first who would not, and drops an empty line.
func (q *Queue) schedule(l *lane) {
	if l.busy {
		return
	}
	now := q.now()
	for l.first != nil {
		p := l.first
		cost := costOf(p.req)
		if t := l.turn(ticks{}, cost); t > p.latest {
			q.end(p, reply{d: l.refusal(now, cost), err: p.tooLong(t, now)})
			continue
		}
		at, look := l.ask(cost), now.Add(q.opts.Recheck)
		l.peek = at > look
		if at = min(at, look); at <= now {
			q.makeReady(l)
		} else {
			q.set(&l.alarm, at)
		}
		return
	}
	q.unset(&l.alarm)
	if q.lanes[l.key] == l {
		delete(q.lanes, l.key)
		q.lines.Add(-1)
	}
}

// makeReady has the first in line ask as soon as somebody is free to do it.
func (q *Queue) makeReady(l *lane) {
	q.unset(&l.alarm)
	if !l.due && !l.busy {
		l.due = true
		q.ready = append(q.ready, l)
	}
}

// serve asks for those who are first in the lines that are ready, one after the other.
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
			q.end(p, reply{err: errNoAnswer})
		}
		l.busy = false
		q.schedule(l)
	}()
	for {
		var peek bool
		if l, p, peek = q.next(); l == nil {
			return
		}
		d, err := q.try(p, peek)
		if r, tell := q.answer(l, p, d, err); tell {
			r.call()
		}
		q.lock()
		l.busy = false
		q.schedule(l)
		q.free++
		q.unlock()
	}
}

var errNoAnswer = errors.New("limit: the Taker did not return")

// next returns a line, busy from here on, whose first is to ask; nil if there is none.
func (q *Queue) next() (l *lane, p *waiter, peek bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.free--
	for len(q.ready) > 0 && !q.closed {
		l, q.ready[0] = q.ready[0], nil
		q.ready = q.ready[1:]
		l.due = false
		// Since it was made ready the first may have left, and the next be due later.
		if l.first != nil && l.alarm.index == 0 {
			l.busy = true
			return l, l.first, l.peek
		}
	}
	return nil, nil, false
}

// answer takes note of what the Taker said to p, the first in line. tell says that the
// caller, who has taken no lock, is to tell r.
func (q *Queue) answer(l *lane, p *waiter, d Decision, err error) (r reply, tell bool) {
	q.lock()
	defer q.unlock()
	now, cost := q.now(), costOf(p.req)
	if err == nil && d.Allowed {
		l.admit(&d, now, cost)
	} else if err == nil && d.RetryAfter() != Never { // else it tells nothing of others
		l.refuse(&d, now, cost)
	}
	switch {
	case p.over: // it left meanwhile
		if d.Allowed && d.Permit != 0 {
			q.work.Go(func() { q.giveBack(p, d) })
		}
		return reply{}, false
	case err != nil:
		q.end(p, reply{err: p.fault(err, now)})
		return reply{}, false
	case !d.Allowed:
		if d.RetryAfter() == Never {
			d.Results = slices.Clone(d.Results)
			q.end(p, reply{d: d, err: exceeds(&d)})
		}
		return reply{}, false
	}
	if d.Delay > 0 {
		at := now.Add(d.Delay)
		if at > p.latest {
			q.end(p, reply{err: p.tooLong(at, now)})
		} else {
			l.remove(p)
			q.waiting--
			q.hold(p, d, at)
		}
		return reply{}, false
	}
	q.quit(p)
	r = reply{p: p, d: d}
	if p.wake != nil {
		r.d.Results = slices.Clone(d.Results)
		p.wake <- r
		return reply{}, false
	}
	return r, true
}
