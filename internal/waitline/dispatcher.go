package waitline

import (
	"context"
	"sync"
	"sync/atomic"
)

// Signal is how one waiter learns that its wait has ended: it blocks and is woken, or has
// left a call-back. The zero value notifies no waiter.
type Signal struct {
	handler Handler // a wakeUp, if the waiter blocks
}

// wakeUp has room for one error, so that ending a wait never blocks. As a Handler it is one word
// beside the type's, and a Signal two.
type wakeUp chan error

// WaitEnded implements Handler.
func (w wakeUp) WaitEnded(err error) { w <- err }

// Handler is what is called when a wait has ended, with nil or the reason.
type Handler interface{ WaitEnded(err error) }

// HandlerFunc is a function as a Handler.
type HandlerFunc func(error)

// WaitEnded implements Handler.
func (f HandlerFunc) WaitEnded(err error) { f(err) }

// Wake is the signal of a goroutine that calls [Signal.Await].
func Wake() Signal { return Signal{make(wakeUp, 1)} }

// Callback is the signal of a waiter that does not block.
func Callback(h Handler) Signal { return Signal{h} }

// Blocks says whether a goroutine blocks for s.
func (s *Signal) Blocks() bool {
	_, ok := s.handler.(wakeUp)
	return ok
}

// End ends the wait with err: at once if the waiter blocks, else by d, in order. It is to
// be called once. The owner's lock may be held; the owner then calls [Dispatcher.Start]
// or [Dispatcher.Run] without it.
func (s *Signal) End(d *Dispatcher, err error) {
	switch h := s.handler.(type) {
	case nil:
	case wakeUp:
		h <- err
	default:
		d.add(h, err)
	}
}

// Await blocks until the wait ends and returns its error. When ctx ends first it calls
// leave, which takes the waiter out of its line; when that was too late, since the wait
// has ended in the same moment, what was taken is taken, and the wait's own error is
// returned.
func (s *Signal) Await(ctx context.Context, leave func() bool) error {
	wake := s.handler.(wakeUp)
	select {
	case err := <-wake:
		return err
	case <-ctx.Done():
	}
	if !leave() {
		return <-wake
	}
	return ctx.Err()
}

// Dispatcher calls the call-backs of those whose wait has ended: one after the other, in
// the order in which the waits ended, never from within a call-back, and never under the
// owner's lock. One goroutine does it, and ends when no call-back is due.
//
// A call-back that takes long delays only those behind it. One that ends its goroutine
// (runtime.Goexit) delays no other: the next are called by a new goroutine.
type Dispatcher struct {
	due atomic.Bool // queue is not empty; it spares Start and Run the lock

	mu      sync.Mutex
	queue   []ended
	next    int // of queue
	calling bool
	idle    chan struct{} // closed when no call-back is due or running; nil = no call of Wait
}

// ended is a wait that has ended.
type ended struct {
	handler Handler
	err     error
}

// add lines up a call.
func (d *Dispatcher) add(h Handler, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.queue = append(d.queue, ended{h, err})
	d.due.Store(true)
}

// Start has those who are due called by a goroutine, unless one is at it. The owner calls
// it after it has given its lock back.
func (d *Dispatcher) Start() {
	if d.due.Load() && d.begin() {
		go d.run()
	}
}

// Run is Start for a goroutine that has nothing else to do, such as a timer's: it makes
// the calls itself.
func (d *Dispatcher) Run() {
	if d.due.Load() && d.begin() {
		d.run()
	}
}

// begin says whether the caller is to run.
func (d *Dispatcher) begin() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.calling || len(d.queue) == 0 {
		return false
	}
	d.calling = true
	return true
}

// Claim is for one whose wait has ended before it began. It says whether the caller may
// call done itself, by [Dispatcher.Direct], since no other is due before it. Otherwise done
// is lined up, and the owner calls Start. Claim may be called under the owner's lock, so
// that the order of calls is that in which permits were taken.
func (d *Dispatcher) Claim(done func(error)) (direct bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if !d.calling && len(d.queue) == 0 {
		d.calling = true
		return true
	}
	d.queue = append(d.queue, ended{HandlerFunc(done), nil})
	d.due.Store(true)
	return false
}

// Direct calls done in the caller's goroutine, after a Claim.
func (d *Dispatcher) Direct(done func(error)) {
	defer d.goOn()
	done(nil)
}

// Wait returns when no call-back is due or running. It must not be called by a call-back,
// nor under a lock that one takes.
func (d *Dispatcher) Wait() {
	for {
		d.Start()
		d.mu.Lock()
		if !d.calling && len(d.queue) == 0 {
			d.mu.Unlock()
			return
		}
		if d.idle == nil {
			d.idle = make(chan struct{})
		}
		idle := d.idle
		d.mu.Unlock()
		<-idle
	}
}

// run calls those who are due.
func (d *Dispatcher) run() {
	finished := false
	defer func() {
		if !finished { // the call-back has ended the goroutine, or is about to by a panic
			d.goOn()
		}
	}()
	for {
		e, ok := d.pop()
		if !ok {
			finished = true
			return
		}
		e.handler.WaitEnded(e.err)
	}
}

// pop returns who is to be called next. Without one it ends the run.
func (d *Dispatcher) pop() (e ended, ok bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.next == len(d.queue) {
		d.queue, d.next = d.queue[:0], 0
		d.due.Store(false)
		d.rest()
		return ended{}, false
	}
	e, d.queue[d.next] = d.queue[d.next], ended{}
	d.next++
	if d.next > len(d.queue)/2+64 {
		n := copy(d.queue, d.queue[d.next:])
		clear(d.queue[n:])
		d.queue, d.next = d.queue[:n], 0
	}
	return e, true
}

// rest ends calling, under the lock.
func (d *Dispatcher) rest() {
	d.calling = false
	if d.idle != nil {
		close(d.idle)
		d.idle = nil
	}
}

// goOn ends a call that run did not make or did not survive: a goroutine calls those who
// have become due since.
func (d *Dispatcher) goOn() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.next < len(d.queue) {
		go d.run()
		return
	}
	d.queue, d.next = d.queue[:0], 0
	d.due.Store(false)
	d.rest()
}
