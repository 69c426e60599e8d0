package admission

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/waitline"
)

// walk writes down what happens to requests that have names.
type walk struct {
	*Machine
	names map[*Item]string
	items map[string]*Item
	lines []string
}

func (w *walk) offer(now int64, name string, it Item) {
	if it.Deadline == 0 {
		it.Deadline = waitline.Never
	}
	w.names[&it], w.items[name] = name, &it
	w.Offer(now, &it)
	w.note(now, "offer "+name, &it)
}

func (w *walk) note(now int64, what string, offered *Item) {
	states := [...]string{"fresh", "waits", "runs", "finished", "refused", "evicted", "expired", "left"}
	say := func(it *Item) string {
		return strings.TrimSpace(w.names[it] + " " + states[it.State()] + " " + it.Reason().String())
	}
	line := fmt.Sprintf("%3d %-10s", now, what)
	if offered != nil {
		line += " " + say(offered)
	}
	for _, it := range w.Ended() {
		line += ", " + say(it)
	}
	next := "never"
	if at := w.Next(); at != waitline.Never {
		next = fmt.Sprint(at)
	}
	w.lines = append(w.lines, fmt.Sprintf("%s; %d waiting for %d, next %s", strings.Replace(line, " ,", " ", 1), w.Waiting(), w.WaitingCost(), next))
}

// One walk through a queue for three requests and 100 of cost, which waits for 50 at most, drained
// at half a nanosecond of CPU per nanosecond with a burst of 10.
func TestWalk(t *testing.T) {
	w := &walk{Machine: New(Config{Rate: 0.5, Burst: 10, MaxWaiting: 3, MaxCost: 100, MaxWait: 50}), names: map[*Item]string{}, items: map[string]*Item{}}
	w.offer(1, "a", Item{Class: 1, Cost: 10}) // the bucket is full: it starts, and empties it
	w.offer(1, "b", Item{Class: 1, Cost: 4})  // 4 more are there at 9
	w.offer(2, "c", Item{Class: 0, Level: 5, Cost: 30})
	w.offer(2, "d", Item{Class: 0, Level: 4, Cost: 30})
	w.offer(3, "e", Item{Class: 0, Level: 4, Cost: 1}) // no lower one waits
	w.offer(3, "f", Item{Class: 0, Level: 9, Cost: 1}) // d is the lowest
	w.offer(4, "g", Item{Class: 2, Cost: 500})         // counts as 100, so it waits alone
	w.offer(5, "h", Item{Class: 2, Cost: 2})           // and no lower one waits
	w.offer(6, "i", Item{Class: 3, Cost: 2})           // there are 2.5: it passes g and starts
	w.Leave(7, w.items["g"])
	w.note(7, "leave g", nil)
	w.Finish(8, w.items["a"], 6, true) // 4 are refunded
	w.note(8, "finish a", nil)
	w.offer(9, "j", Item{Class: 1, Cost: 10, Deadline: 30}) // in time at 17, when there are 10
	w.offer(9, "k", Item{Class: 0, Cost: 2, Deadline: 20})  // j is ahead: too late
	w.offer(10, "l", Item{Class: 0, Cost: 2})
	w.Charge(11, w.items["i"], 40) // it has cost 38 more than predicted, and runs on
	w.note(11, "charge i", nil)
	w.Step(29)
	w.note(29, "step", nil)
	w.Leave(30, w.items["l"])
	w.note(30, "leave l", nil)
	got, want := strings.Join(w.lines, "\n"), strings.TrimPrefix(`
  1 offer a    a runs; 0 waiting for 0, next never
  1 offer b    b waits; 1 waiting for 4, next 9
  2 offer c    c waits; 2 waiting for 34, next 9
  2 offer d    d waits; 3 waiting for 64, next 9
  3 offer e    e refused queue_full; 3 waiting for 64, next 9
  3 offer f    f waits, d evicted evicted; 3 waiting for 35, next 9
  4 offer g    g waits, c evicted evicted, f evicted evicted, b evicted evicted; 1 waiting for 100, next 21
  5 offer h    h refused queue_full; 1 waiting for 100, next 21
  6 offer i    i runs; 1 waiting for 100, next 25
  7 leave g   ; 0 waiting for 0, next never
  8 finish a  ; 0 waiting for 0, next never
  9 offer j    j waits; 1 waiting for 10, next 17
  9 offer k    k refused deadline; 1 waiting for 10, next 17
 10 offer l    l waits; 2 waiting for 12, next 17
 11 charge i  ; 2 waiting for 12, next 23
 29 step       j expired deadline; 1 waiting for 2, next 60
 30 leave l   ; 0 waiting for 0, next never`, "\n")
	if got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A route that is known to take less time than its CPU time, since it uses several cores, is in
// time although its cost is above what is left; so is a cheap request of a route that takes long.
func TestRouteOnSeveralCores(t *testing.T) {
	m := New(Config{Concurrency: 1, MaxWaiting: 3})
	it := &Item{Cost: 400, Deadline: waitline.Never}
	m.Offer(1, it)
	m.Finish(101, it, 400, true) // 100 ns of service
	m.Offer(101, &Item{Cost: 1, Deadline: waitline.Never})
	for left, want := range map[int64]State{200: Waiting, 99: Refused} {
		it := &Item{Cost: 400, Deadline: 101 + left}
		if m.Offer(101, it); it.State() != want {
			t.Errorf("with %d ns left it is %d, want %d", left, it.State(), want)
		}
	}
	it = &Item{Class: 1, Cost: 5, Deadline: 101 + 50}
	if m.Offer(101, it); it.State() != Waiting {
		t.Errorf("a cheap one is %d", it.State())
	}
}
