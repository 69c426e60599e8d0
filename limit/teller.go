package limit

import "sync"

// teller calls those whose wait has ended and who did not block for it: one after the
// other, in the order in which they were added, and never from within a call. Whoever
// is calling is busy; nobody else calls meanwhile. The zero value is ready, and safe
// for concurrent use.
//
// A call may take its time, which holds up those behind it alone, or end its goroutine:
// the next are then called by a new one.
type teller[C interface{ call() }] struct {
	mu    sync.Mutex
	queue []C
	next  int // of queue, to be called
	busy  bool
}

// add lines up a call, to be made by whoever is calling or begins to.
func (t *teller[C]) add(c C) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queue = append(t.queue, c)
}

// begin says whether there is somebody to call and nobody is calling; the caller is
// busy from here on, and has to run.
func (t *teller[C]) begin() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.busy || len(t.queue) == 0 {
		return false
	}
	t.busy = true
	return true
}

// direct says whether the caller may make a call of its own, there being nobody before
// it. It is busy then, and has to end.
func (t *teller[C]) direct() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.busy || len(t.queue) > 0 {
		return false
	}
	t.busy = true
	return true
}

// run makes the calls until there are no more. The caller is busy.
func (t *teller[C]) run() {
	done := false
	defer func() {
		if !done { // the call has ended the goroutine, or is about to by a panic
			t.end()
		}
	}()
	for {
		c, ok := t.pop()
		if !ok {
			done = true
			return
		}
		c.call()
	}
}

// pop returns the next call, or ends being busy.
func (t *teller[C]) pop() (c C, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var none C
	if t.next == len(t.queue) {
		t.queue, t.next, t.busy = t.queue[:0], 0, false
		return none, false
	}
	c, t.queue[t.next] = t.queue[t.next], none
	t.next++
	if t.next > len(t.queue)/2+64 {
		n := copy(t.queue, t.queue[t.next:])
		clear(t.queue[n:])
		t.queue, t.next = t.queue[:n], 0
	}
	return c, true
}

// end ends being busy with a direct call, and has the others called by a goroutine.
func (t *teller[C]) end() {
	t.mu.Lock()
	t.busy = t.next < len(t.queue)
	more := t.busy
	t.mu.Unlock()
	if more {
		go t.run()
	}
}

// call is how one who waited is told.
type call struct {
	done func(error)
	err  error
}

func (c call) call() { c.done(c.err) }
