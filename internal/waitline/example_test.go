package waitline

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

var errLate = errors.New("late")

// counter is an owner: it admits one unit per gap, and nobody before its time. It shows
// all that an owner has to do.
type counter struct {
	origin time.Time
	gap    int64
	calls  Dispatcher

	mu        sync.Mutex
	line      Line[int]
	deadlines Alarms
	timer     Timer[counter]
	next      int64 // when the next unit is there
	opened    bool  // false = nobody is served
}

func (c *counter) now() int64 { return 1 + int64(time.Since(c.origin)) }

func (c *counter) unlock() {
	c.mu.Unlock()
	c.calls.Start()
}

// wait puts a waiter for cost units in line until a time.
func (c *counter) wait(id int, cost, deadline int64, s Signal) *Waiter[int] {
	c.mu.Lock()
	defer c.unlock()
	w := &Waiter[int]{Signal: s, Cost: cost, Value: id}
	c.line.Push(w)
	c.deadlines.Set(&w.Deadline, w, deadline)
	c.settle(c.now())
	return w
}

func (c *counter) leave(w *Waiter[int]) bool {
	c.mu.Lock()
	defer c.unlock()
	if !c.line.Remove(w) {
		return false
	}
	c.settle(c.now())
	return true
}

// settle serves those for whom there is enough, ends the waits that lasted too long, and
// sets the timer for those who are left.
func (c *counter) settle(now int64) {
	first := c.line.Serve(&c.calls, func(w *Waiter[int]) bool {
		if !c.opened || now < c.next {
			return false
		}
		c.next = max(c.next, now-c.gap) + w.Cost*c.gap // one unit may be kept
		return true
	})
	at, late := c.deadlines.First()
	for at <= now {
		w := late.(*Waiter[int])
		c.line.Remove(w)
		w.End(&c.calls, errLate)
		at, late = c.deadlines.First()
	}
	if first != nil && c.opened {
		at = min(at, max(c.next, now+1))
	}
	c.timer.Set(c, (*counter).fire, at, now)
}

func (c *counter) fire() {
	c.mu.Lock()
	c.timer.Fired()
	c.settle(c.now())
	c.mu.Unlock()
	c.calls.Run()
}

func (c *counter) open() {
	c.mu.Lock()
	defer c.unlock()
	c.opened = true
	c.settle(c.now())
}

func Example() {
	c := &counter{origin: time.Now(), gap: int64(time.Millisecond)}
	c.wait(1, 1, Never, callback(func(err error) { fmt.Println("first:", err) }))
	second := c.wait(2, 1, Never, callback(func(error) { fmt.Println("never called") }))
	third := c.wait(3, 1, Never, Wake())
	fmt.Println("left:", c.leave(second), c.leave(second))
	c.open()
	err := third.Await(context.Background(), func() bool { return c.leave(third) })
	c.calls.Wait() // the call-back of the first was begun before the third was woken, and may still run
	fmt.Println("third:", err)
	// Output:
	// left: true false
	// first: <nil>
	// third: <nil>
}

func callback(f func(error)) Signal { return Callback(HandlerFunc(f)) }
