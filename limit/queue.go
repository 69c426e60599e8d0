package limit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/waitline"
)

// The errors of a [Queue], beside those of a [Limiter]'s waits, for errors.Is.
var (
	// ErrQueueFull says that the Queue has MaxWaiting waiters, or waiters under MaxLines keys.
	// It is returned at once.
	ErrQueueFull = errors.New("limit: queue full")

	// ErrQueueClosed says that the Queue was closed.
	ErrQueueClosed = errors.New("limit: queue closed")

	errPeek = errors.New("limit: Peek takes nothing, so there is nothing to wait for: peek with Take")
)

// The defaults of [QueueOptions].
const (
	// DefaultMaxWaiting bounds the waiters of one Queue. Not more: each takes some 300 bytes,
	// so this is 80 MB. Not fewer: it is what a busy service is asked for in a second.
	DefaultMaxWaiting = 1 << 18

	// DefaultMaxLines bounds the keys with waiters. Not more: for each of them the limit is
	// checked once per Recheck. Not fewer: that many accounts of a large service are over their
	// limits at a time.
	DefaultMaxLines = 1 << 16

	// DefaultParallel bounds the concurrent calls of the Taker for waiters. Not more: each
	// takes a goroutine. Not fewer: a store that takes a millisecond would serve few keys.
	DefaultParallel = 64

	// DefaultRecheck is how often the first waiter of a key checks whether the limit has
	// changed. Not longer: waiters notice a change that late. Not shorter: each check is a call
	// of the Taker.
	DefaultRecheck = time.Second
)

// QueueOptions configure a [Queue]. The zero value has the default of each field.
type QueueOptions struct {
	// Attributes names the attributes that make up the key: requests with equal values wait in
	// one line. They should be those that select a bucket of the limit. nil = those that the
	// Taker reads, if it is an [AttributeReader], and otherwise all. With an empty list that is
	// not nil all requests wait in one line. A name that ends in * stands for all names with
	// that prefix.
	Attributes []string

	MaxWaiting int           // 0 = DefaultMaxWaiting
	MaxLines   int           // 0 = DefaultMaxLines
	Parallel   int           // 0 = DefaultParallel
	Recheck    time.Duration // 0 = DefaultRecheck

	// Hooks are called under the name "queue": for waits, and OnRefuse for a Take that is refused
	// because others wait. What the Taker admits and refuses it counts itself, so that nothing
	// counts twice. The zero value calls nothing.
	Hooks Hooks
}

// queueName is the name of a Queue in hooks: it does not know the limits of its Taker before
// they refuse.
const queueName = "queue"

// Queue lets callers wait for any [Taker]: an engine on a store, a leasing client, a Taker of
// your own. A [Limiter] computes when its own bucket can serve a waiter; a Queue has to ask the
// Taker.
//
// Each key has a line, first in, first out. Only the first waiter of a line asks the Taker; a
// request that finds a line joins it without asking, so no crowd wakes at the edge of a window.
// A first waiter that is refused sleeps for the RetryAfter of the refusal and asks again, and
// checks with a Peek once per Recheck whether the limit has changed. Requests that arrive while
// nobody waits ask at once, concurrently. The order is among the callers of this Queue: it knows
// nothing of waiters in other processes.
//
// A bounded wait fails at once when its permit cannot come in time. The lower bound is when the
// first waiter may pass, plus the time in which the limit grants the costs ahead (Quota per
// Window). If others spend the same limit, the permit comes later than that bound, and the wait
// ends at its deadline, to the precision of a timer.
//
// A limit that counts refused requests, or bans for them, counts the tries of waiters as well.
//
// Waiting takes no goroutine: one timer starts at most Parallel of them while waiters are due. A
// Queue is safe for concurrent use; use [NewQueue].
type Queue struct {
	taker  Taker
	reader AttributeReader // nil = the taker does not say what it reads
	opts   QueueOptions
	origin time.Time // of the clock

	ctx    context.Context // of calls for WaitFunc, which has none; ends with Close
	cancel context.CancelFunc
	work   sync.WaitGroup // the goroutines that call the Taker

	paces atomic.Bool  // a leaky bucket was met, which holds back what it admits
	lines atomic.Int64 // len(lanes), to be read without the lock

	mu      sync.Mutex
	closed  bool
	lanes   map[string]*lane
	waiting int
	alarms  waitline.Alarms // of waiters and of lanes
	timer   waitline.Timer[Queue]
	ready   []*lane             // whose first waiter is to ask
	asking  int                 // goroutines that ask for them
	free    int                 // of these, about to take a lane from ready
	calls   waitline.Dispatcher // of refusals and time-outs; permits are passed on by the goroutine that asked
}

// NewQueue returns a Queue for t. Negative options are an error.
func NewQueue(t Taker, o QueueOptions) (*Queue, error) {
	if t == nil {
		return nil, errors.New("limit: a queue for no Taker")
	}
	if o.MaxWaiting < 0 || o.MaxLines < 0 || o.Parallel < 0 || o.Recheck < 0 {
		return nil, fmt.Errorf("limit: queue of %d in %d lines, %d in parallel, recheck %v: want at least 0 each; 0 is the default",
			o.MaxWaiting, o.MaxLines, o.Parallel, o.Recheck)
	}
	o.MaxWaiting, o.MaxLines = cmp.Or(o.MaxWaiting, DefaultMaxWaiting), cmp.Or(o.MaxLines, DefaultMaxLines)
	o.Parallel, o.Recheck = cmp.Or(o.Parallel, DefaultParallel), cmp.Or(o.Recheck, DefaultRecheck)
	q := &Queue{taker: t, opts: o, origin: time.Now(), lanes: map[string]*lane{}}
	if o.Attributes == nil {
		q.reader, _ = t.(AttributeReader)
	}
	q.ctx, q.cancel = context.WithCancel(context.Background())
	return q, nil
}

// Take is the Taker's Take, but refuses while others wait under the same key, with the Results
// of the latest refusal and a RetryAfter behind all of them. A Queue is therefore a [Taker]
// itself.
func (q *Queue) Take(ctx context.Context, req Request) (Decision, error) {
	if req.Cost < 0 {
		return Decision{}, ErrNegativeCost
	}
	if err := ctx.Err(); err != nil {
		return Decision{}, err
	}
	var room [usualKey]byte
	if q.lines.Load() > 0 {
		q.mu.Lock()
		if l := q.lanes[string(q.key(room[:0], req))]; l != nil {
			d := l.refusal(q.now(), costOf(req))
			q.mu.Unlock()
			q.refused(&d, req)
			return d, nil
		}
		q.mu.Unlock()
	}
	if q.ctx.Err() != nil {
		return Decision{}, ErrQueueClosed
	}
	return q.taker.Take(ctx, req)
}

// refused calls the hooks for a request that is refused since others wait.
func (q *Queue) refused(d *Decision, req Request) {
	reason := ReasonRate // nobody has been refused yet: the first one is asking
	if r := d.Refused(); r != nil {
		reason = r.Reason
	}
	if !req.Peek {
		q.opts.Hooks.Refused(queueName, costOf(req), reason)
	}
}

// Wait waits until the request is admitted, in line behind those that came before, and returns
// the Decision that admits it; the delay of a leaky bucket is part of the wait. When ctx ends
// first it returns ctx's error, and the waiters behind move up.
//
// It fails at once with [ErrExceedsQuota] when no wait is long enough (RetryAfter is
// [Never]), with [ErrWaitTooLong], then also a context.DeadlineExceeded, when the
// permit cannot come before ctx's deadline, and with [ErrQueueFull]. An error of the
// Taker ends the wait and is returned as it is. With ErrWaitTooLong and ErrExceedsQuota
// the Decision is the refusal, which names the limit.
func (q *Queue) Wait(ctx context.Context, req Request) (Decision, error) {
	return q.wait(ctx, req, Never)
}

// WaitMax is Wait for a caller that waits at most d; a negative d counts as 0. With a d of 0 it
// asks once, unless others wait.
//
// The context of a call of the Taker ends with the wait. A Taker that ignores its context delays
// the return from the first try, which the caller's goroutine makes. Later tries do not delay
// the end of the wait; what they admit afterwards is lost, except for permits in flight, which
// are given back. The same holds for a wait that is cancelled while the Taker is being called or
// while the request is held back.
func (q *Queue) WaitMax(ctx context.Context, req Request, d time.Duration) (Decision, error) {
	return q.wait(ctx, req, max(d, 0))
}

func (q *Queue) wait(ctx context.Context, req Request, d time.Duration) (Decision, error) {
	if err := ctx.Err(); err != nil {
		return Decision{}, err
	}
	w := q.opts.Hooks.NewWait(queueName, costOf(req))
	p, r := q.enter(ctx, req, d, nil)
	if p == nil {
		return r.d, r.err
	}
	w.Start()
	err := p.Await(ctx, func() bool { return q.leave(p) })
	w.End(err)
	return p.decision(), err
}

// WaitFunc is WaitMax for a caller that does not block: done is called exactly once, with what
// WaitMax would return. [Never] waits without a bound. The Decision is valid until done returns.
//
// The caller's goroutine makes the first try, which takes a round trip with a Taker on a store;
// if that decides, done is called before WaitFunc returns. Otherwise it is called by other
// goroutines. Under one key permits are granted one after the other, in order, so a done that
// takes long delays its own line; time-outs of all lines come one after the other. A done may
// use the Queue in any way except Close or waiting for another done.
//
// cancel gives up the place in line and reports whether it did: then done is not called.
func (q *Queue) WaitFunc(req Request, d time.Duration, done func(Decision, error)) (cancel func() bool) {
	w, end := q.opts.Hooks.NewWait(queueName, costOf(req)), done
	if w != nil {
		end = func(d Decision, err error) {
			w.End(err)
			done(d, err)
		}
	}
	p, r := q.enter(q.ctx, req, max(d, 0), end)
	if p == nil {
		done(r.d, r.err)
		return ended
	}
	w.Start()
	return func() bool { return w.canceled(q.leave(p)) }
}

// Finish makes a Queue a [Finisher]. It passes the permit on, if the Taker is one, and lets the
// first waiter ask: a permit may be free.
func (q *Queue) Finish(ctx context.Context, req Request, permit uint64) error {
	f, ok := q.taker.(Finisher)
	if !ok {
		return nil
	}
	err := f.Finish(ctx, req, permit)
	if q.lines.Load() > 0 {
		var room [usualKey]byte
		q.lock()
		defer q.unlock()
		if l := q.lanes[string(q.key(room[:0], req))]; l != nil && l.polls {
			l.notBefore, l.tries = 0, 0
			q.schedule(l)
		}
	}
	return err
}

// Attributes makes a Queue an [AttributeReader]: they are the Taker's, or all.
func (q *Queue) Attributes() []string {
	if r, ok := q.taker.(AttributeReader); ok {
		return r.Attributes()
	}
	return []string{"*"}
}

// Waiting is the number of waiters.
func (q *Queue) Waiting() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.waiting
}

// Close ends all waits with [ErrQueueClosed] and refuses new ones. It returns when every done
// has returned and no call of the Taker for a waiter is under way; their context has ended. It
// must not be called by a done.
func (q *Queue) Close() {
	q.cancel()
	q.lock()
	q.closed = true
	for _, l := range q.lanes {
		for p := l.first(); p != nil; p = l.first() {
			q.end(p, nil, ErrQueueClosed)
		}
		q.schedule(l)
	}
	for _, a := q.alarms.First(); a != nil; _, a = q.alarms.First() { // waiters that are held back
		p := a.(*waiter)
		q.giveBack(p, *p.answer)
		q.end(p, nil, ErrQueueClosed)
	}
	q.unlock()
	q.work.Wait()
	q.calls.Wait()
}

// now is the time of the queue's clock, which is monotonic and begins at 1.
func (q *Queue) now() Time { return Time(1 + time.Since(q.origin)) }

// lock and unlock are for callers that may end waits or make a lane ready: unlock starts the
// goroutines and call-backs that are due, and sets the timer.
func (q *Queue) lock() { q.mu.Lock() }

func (q *Queue) unlock() {
	q.release()
	q.calls.Start()
}

// release is unlock without starting the call-backs.
func (q *Queue) release() {
	for len(q.ready) > q.free && q.asking < q.opts.Parallel && !q.closed {
		q.asking++
		q.free++
		q.work.Go(q.serve)
	}
	if at, _ := q.alarms.First(); !q.timer.IsSetTo(at) {
		q.timer.Set(q, (*Queue).fire, at, int64(q.now()))
	}
	q.mu.Unlock()
}

// fire is what the timer does.
func (q *Queue) fire() {
	q.lock()
	q.timer.Fired()
	now := q.now()
	for range batch {
		at, of := q.alarms.First()
		if Time(at) > now {
			break
		}
		switch of := of.(type) {
		case *lane:
			q.makeReady(of)
		case *waiter:
			if of.held {
				q.end(of, of.answer, nil)
			} else {
				q.expire(of, now)
			}
		}
	}
	q.release()
	q.calls.Run()
}

// patience is that of a request that arrives at now and waits at most d.
func (q *Queue) patience(ctx context.Context, now Time, d time.Duration) patience {
	b := patience{longest: d, latest: now.Add(d)}
	if deadline, ok := ctx.Deadline(); ok {
		if t := max(0, Time(1).Add(deadline.Sub(q.origin))); t < b.latest {
			b.latest, b.hurried = t, true
		}
	}
	return b
}

// tooLong is the error of a waiter whose permit does not come before t; 0 = unknown.
func (b patience) tooLong(t, now Time) error {
	e := &tooLong{longest: b.longest, hurried: b.hurried, queue: true}
	if t > 0 {
		e.wait = waitUntil(t, now)
	}
	return e
}
