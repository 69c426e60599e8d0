package client

import "sync"

// teller calls those whose wait has ended and who did not block for it: one after the
// other, in the order in which they were added, and never from within a call. Whoever
// is calling is busy; nobody else calls meanwhile. The zero value is ready, and safe
// for concurrent use. It is that of package limit, which exports none.
type teller struct {
	mu    sync.Mutex
	queue []call
	next  int // of queue, to be called
	busy  bool
}

type call struct {
	done func(error)
	err  error
}

// add lines up a call. It says whether the caller has to see to it that it runs, there
// being nobody who calls.
func (t *teller) add(done func(error), err error) (run bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.queue = append(t.queue, call{done, err})
	run = !t.busy
	t.busy = true
	return run
}

// direct says whether the caller may make a call of its own, there being nobody before
// it. It is busy then, and has to end.
func (t *teller) direct() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.busy {
		return false
	}
	t.busy = true
	return true
}

// run makes the calls until there are no more. The caller is busy.
func (t *teller) run() {
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
		c.done(c.err)
	}
}

// pop returns the next call, or ends being busy.
func (t *teller) pop() (c call, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.next == len(t.queue) {
		t.queue, t.next, t.busy = t.queue[:0], 0, false
		return call{}, false
	}
	c, t.queue[t.next] = t.queue[t.next], call{}
	t.next++
	if t.next > len(t.queue)/2+64 {
		n := copy(t.queue, t.queue[t.next:])
		clear(t.queue[n:])
		t.queue, t.next = t.queue[:n], 0
	}
	return c, true
}

// end ends being busy with a direct call, and has the others called by a goroutine.
func (t *teller) end() {
	t.mu.Lock()
	t.busy = t.next < len(t.queue)
	more := t.busy
	t.mu.Unlock()
	if more {
		go t.run()
	}
}
