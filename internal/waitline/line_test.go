package waitline

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
)

// show is a line as a text: who waits for how much, and the sum.
func show(l *Line[int]) string {
	var b strings.Builder
	for w := l.First(); w != nil; w = w.next {
		fmt.Fprintf(&b, "%d:%d ", w.Value, w.Cost)
	}
	return b.String() + fmt.Sprint("= ", l.Cost())
}

// TestWalkThrough goes through all that a line does, step by step.
func TestWalkThrough(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	var l Line[int]
	var d Dispatcher
	var alarms Alarms
	var log []string
	called := func(id int) Signal {
		return callback(func(err error) { log = append(log, fmt.Sprint(id, " ", err)) })
	}
	expect := func(step, want string) {
		t.Helper()
		d.Run()
		if got := show(&l) + " | " + strings.Join(log, ", "); got != want {
			t.Fatalf("%s: %q, want %q", step, got, want)
		}
		log = nil
	}
	var w [6]*Waiter[int]
	for i := range w {
		w[i] = &Waiter[int]{Signal: called(i), Cost: int64(i), Value: i}
		if i > 0 {
			l.Push(w[i])
			alarms.Set(&w[i].Deadline, w[i], int64(100-10*i))
		}
	}
	expect("five came", "1:1 2:2 3:3 4:4 5:5 = 15 | ")
	if at, of := alarms.First(); at != 50 || of != any(w[5]) || w[3].Prev() != w[2] || l.last != w[5] {
		t.Fatalf("the earliest deadline is %d of %v", at, of)
	}
	tokens := int64(4)
	first := l.Serve(&d, func(w *Waiter[int]) bool {
		if w.Cost > tokens {
			return false
		}
		tokens -= w.Cost
		return true
	})
	expect("four tokens came, and the third does not get the one that is left", "3:3 4:4 5:5 = 12 | 1 <nil>, 2 <nil>")
	if first != w[3] || alarms.Len() != 3 {
		t.Fatalf("first is %v, %d deadlines", first, alarms.Len())
	}
	if !l.Remove(w[4]) || l.Remove(w[4]) || l.Remove(w[0]) || w[4].Waiting() {
		t.Fatal("a waiter leaves once, and only a line that it is in")
	}
	expect("one gives up", "3:3 5:5 = 8 | ")
	l.Push(w[0])
	alarms.Set(&w[3].Deadline, w[3], 40)
	alarms.Set(&w[5].Deadline, w[5], Never)
	expect("one came who wants nothing", "3:3 5:5 0:0 = 8 | ")
	if at, of := alarms.First(); at != 40 || of != any(w[3]) || alarms.Len() != 1 || w[5].Deadline.IsSet() {
		t.Fatalf("the earliest deadline is %d of %v", at, of)
	}
	l.Review(&d, func(w *Waiter[int], cost int64) error {
		if cost > 4 {
			return fmt.Errorf("%d", cost)
		}
		return nil
	})
	expect("who would need more than four is sent away, and those behind move up", "3:3 0:0 = 3 | 5 8")
	l.Remove(w[3])
	l.Remove(w[0])
	expect("all left", "= 0 | ")
	for range 5 {
		l.Push(&Waiter[int]{Cost: math.MaxInt64})
	}
	for want := range 5 {
		if l.Cost() != math.MaxInt64 {
			t.Errorf("a sum beyond 63 bits is %d after %d have left", l.Cost(), want)
		}
		l.Remove(l.First())
	}
	if l.Cost() != 0 {
		t.Errorf("and %d when all have left", l.Cost())
	}
}

// member is a waiter of the model: a slice in order of arrival.
type member struct {
	w        *Waiter[int]
	deadline int64
	changed  int // when the deadline was set, among equal ones
}

// Whatever comes, leaves, is served, reviewed or late, in any order: the line holds who
// came and has not gone, in the order of arrival; its cost is their sum; the first alarm is
// the earliest deadline of those in line, the one that was set first among equals; and each
// wait ends once, in the order in which waits were ended, with the reason why.
func TestLineIsASlice(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 300) {
		r := rand.New(rand.NewPCG(seed, 7))
		h := &history{r: r}
		for step := range 400 {
			h.step()
			h.d.Run()
			if err := h.check(); err != nil {
				t.Fatalf("seed %d, step %d: %v", seed, step, err)
			}
		}
		if len(h.want) < 20 {
			t.Fatalf("seed %d: only %d waits ended: the test tests nothing", seed, len(h.want))
		}
	}
}

type history struct {
	r         *rand.Rand
	line      Line[int]
	alarms    Alarms
	d         Dispatcher
	model     []member
	serial    int
	got, want []string
}

func (h *history) end(m member, err error) {
	h.want = append(h.want, fmt.Sprint(m.w.Value, err))
}

func (h *history) step() {
	switch r := h.r; r.IntN(6) {
	case 0, 1:
		h.push()
	case 2:
		if len(h.model) > 0 {
			i := r.IntN(len(h.model))
			h.line.Remove(h.model[i].w)
			h.model = slices.Delete(h.model, i, i+1)
		}
	case 3:
		tokens := r.Int64N(10)
		left := tokens
		for len(h.model) > 0 && h.model[0].w.Cost <= left {
			left -= h.model[0].w.Cost
			h.end(h.model[0], nil)
			h.model = h.model[1:]
		}
		h.line.Serve(&h.d, func(w *Waiter[int]) bool {
			if w.Cost > tokens {
				return false
			}
			tokens -= w.Cost
			return true
		})
	case 4:
		most := r.Int64N(60)
		sum := int64(0)
		h.model = slices.DeleteFunc(h.model, func(m member) bool {
			if sum+m.w.Cost > most {
				h.end(m, errLate)
				return true
			}
			sum += m.w.Cost
			return false
		})
		h.line.Review(&h.d, func(_ *Waiter[int], cost int64) error {
			if cost > most {
				return errLate
			}
			return nil
		})
	case 5:
		h.move()
	}
}

func (h *history) push() {
	h.serial++
	id := h.serial
	w := &Waiter[int]{Cost: h.r.Int64N(8), Value: id}
	w.Signal = callback(func(err error) { h.got = append(h.got, fmt.Sprint(id, err)) })
	m := member{w, 1 + h.r.Int64N(30), id}
	if h.r.IntN(4) == 0 {
		m.deadline = Never
	}
	h.line.Push(w)
	h.alarms.Set(&w.Deadline, w, m.deadline)
	h.model = append(h.model, m)
}

// move gives somebody another deadline, or ends the waits that are late.
func (h *history) move() {
	if len(h.model) > 0 && h.r.IntN(2) == 0 {
		m := &h.model[h.r.IntN(len(h.model))]
		if was := m.deadline; was == Never {
			h.serial++
			m.changed = h.serial
		}
		m.deadline = 1 + h.r.Int64N(30)
		h.alarms.Set(&m.w.Deadline, m.w, m.deadline)
		return
	}
	now := h.r.Int64N(5)
	for {
		i := h.earliest()
		if i < 0 || h.model[i].deadline > now {
			break
		}
		h.end(h.model[i], errLate)
		h.model = slices.Delete(h.model, i, i+1)
	}
	for at, of := h.alarms.First(); at <= now; at, of = h.alarms.First() {
		w := of.(*Waiter[int])
		h.line.Remove(w)
		w.End(&h.d, errLate)
	}
}

// earliest is the model's index of the earliest deadline, or -1.
func (h *history) earliest() int {
	best := -1
	for i, m := range h.model {
		if m.deadline != Never && (best < 0 || m.deadline < h.model[best].deadline || m.deadline == h.model[best].deadline && m.changed < h.model[best].changed) {
			best = i
		}
	}
	return best
}

func (h *history) check() error {
	sum, w := int64(0), h.line.First()
	var prev *Waiter[int]
	for _, m := range h.model {
		if w != m.w || w.Prev() != prev {
			return fmt.Errorf("the line is %s, want %d in its place", show(&h.line), m.w.Value)
		}
		sum += w.Cost
		prev, w = w, w.next
	}
	if w != nil || h.line.last != prev || h.line.Cost() != sum {
		return fmt.Errorf("the line is %s, want %d waiters of %d", show(&h.line), len(h.model), sum)
	}
	at, of := h.alarms.First()
	if i := h.earliest(); i < 0 && (at != Never || of != nil || h.alarms.Len() != 0) || i >= 0 && (at != h.model[i].deadline || of != any(h.model[i].w)) {
		return fmt.Errorf("the first alarm is at %d", at)
	}
	if !slices.Equal(h.got, h.want) {
		return fmt.Errorf("waits ended as %v, want %v", h.got, h.want)
	}
	return nil
}

// A hundred thousand who left a call-back and four thousand goroutines that block wait,
// give up and are late at the same time: everybody learns exactly once how its wait ended,
// call-backs come one at a time in the order of the line, and nothing is left behind.
func TestManyAtOnce(t *testing.T) {
	const crowd, blocked = 100_000, 4_000
	c := &counter{origin: time.Now(), gap: 0}
	var calling atomic.Int32
	var served, late, left, woken int
	last := -1
	var all sync.WaitGroup
	all.Add(crowd)
	for i := range crowd {
		deadline := int64(Never)
		if i%10 == 3 {
			deadline = c.now() + int64(time.Hour) + int64(i) // for the heap; nobody waits that long
		}
		w := c.wait(i, 1, deadline, callback(func(err error) {
			if calling.Add(1) != 1 {
				t.Error("two call-backs at a time")
			}
			if err != nil || i <= last {
				t.Errorf("%d is called with %v after %d", i, err, last)
			}
			last = i
			served++
			calling.Add(-1)
			all.Done()
		}))
		if i%5 == 4 {
			if !c.leave(w) {
				t.Fatal("a waiter who is not served cannot leave")
			}
			left++
			all.Done()
		}
	}
	var mu sync.Mutex
	for i := range blocked {
		ctx, cancel := context.WithCancel(context.Background())
		deadline := int64(Never)
		if i%4 == 1 {
			deadline = c.now()
		}
		w := c.wait(crowd+i, 1, deadline, Wake())
		if i%4 == 2 {
			cancel()
		}
		all.Go(func() {
			defer cancel()
			err := w.Await(ctx, func() bool { return c.leave(w) })
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				woken++
			case errors.Is(err, errLate) && i%4 == 1:
				late++
			case errors.Is(err, context.Canceled) && i%4 == 2:
				left++
			default:
				t.Errorf("%d: %v", i, err)
			}
		})
	}
	c.open()
	all.Wait()
	c.calls.Wait()
	c.mu.Lock()
	defer c.mu.Unlock()
	if served+late+left+woken != crowd+blocked || served != crowd*4/5 || late != blocked/4 {
		t.Errorf("%d call-backs, %d woken, %d late, %d left", served, woken, late, left)
	}
	if c.line.First() != nil || c.line.last != nil || c.line.Cost() != 0 || c.deadlines.Len() != 0 || !c.timer.IsSetTo(Never) {
		t.Error("somebody is left behind")
	}
}

// Served in order, each at its time and not before, and late at its deadline and not
// before, by one timer.
func TestTimesAreExact(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	synctest.Test(t, func(t *testing.T) {
		c := &counter{origin: time.Now(), gap: int64(time.Second), next: int64(time.Second) + 1, opened: true}
		var got []string
		for i, deadline := range []int64{Never, Never, 1500, Never, Never, 2000, 4000} {
			if deadline < Never {
				deadline = deadline*int64(time.Millisecond) + 1
			}
			c.wait(i, 1, deadline, callback(func(err error) {
				got = append(got, fmt.Sprint(i, " ", time.Since(c.origin), " ", err))
			}))
		}
		time.Sleep(time.Minute)
		c.calls.Wait()
		want := []string{"0 1s <nil>", "2 1.5s late", "1 2s <nil>", "5 2s late", "3 3s <nil>", "4 4s <nil>", "6 4s late"}
		if !slices.Equal(got, want) {
			t.Errorf("waits ended so: %q, want %q", got, want)
		}
	})
}

// A call-back that ends its goroutine delays nobody, one that makes others due is not
// interrupted by them, and Wait returns after all of them.
func TestDispatcherSurvivesItsCallbacks(t *testing.T) {
	var d Dispatcher
	var got []int
	for i := range 10 {
		s := callback(func(error) {
			again := callback(func(error) { got = append(got, 100+i) })
			again.End(&d, nil)
			d.Start()
			got = append(got, i)
			if i%3 == 0 {
				runtime.Goexit()
			}
		})
		s.End(&d, nil)
	}
	d.Wait()
	if d.Claim(func(error) {}) {
		if d.Claim(func(error) { got = append(got, -1) }) {
			t.Error("two call at a time")
		}
		d.Direct(func(err error) {})
	} else {
		t.Error("nobody is due, and a call-back waits for its turn")
	}
	d.Wait()
	want := []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 100, 101, 102, 103, 104, 105, 106, 107, 108, 109, -1}
	if !slices.Equal(got, want) {
		t.Errorf("called: %v, want %v", got, want)
	}
	if len(d.queue) != 0 || d.calling || d.due.Load() {
		t.Errorf("left behind: %+v", &d)
	}
}

// Who gives up in the moment in which it is served has been served: what was taken is not
// lost.
func TestServedWhileLeaving(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var d Dispatcher
	for _, want := range []error{nil, errLate} {
		s := Wake()
		got := s.Await(ctx, func() bool {
			s.End(&d, want)
			return false
		})
		if !errors.Is(got, want) || want == nil && got != nil {
			t.Errorf("served while leaving: %v, want %v", got, want)
		}
	}
	s := Wake()
	if err := s.Await(ctx, func() bool { return true }); !errors.Is(err, context.Canceled) {
		t.Errorf("left: %v", err)
	}
}

// A permit that is there at once does not overtake a wait that has ended before and whose
// call-back nobody has begun to call.
func TestClaimIsBehindThoseWhoAreDue(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	var d Dispatcher
	var got []int
	first := callback(func(error) { got = append(got, 1) })
	first.End(&d, nil)
	if d.Claim(func(error) { got = append(got, 2) }) {
		t.Error("it is to be called before those who are due")
	}
	d.Run()
	if !slices.Equal(got, []int{1, 2}) {
		t.Errorf("called: %v", got)
	}
}

// A timer that has fired can be set to the same time again, and fires again; one that is
// unset, or set to a later time, does not fire at the former.
func TestTimerFiresAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now()
		now := func() int64 { return 1 + int64(time.Since(begin)) }
		type owner struct {
			timer Timer[owner]
			fired []time.Duration
		}
		o := &owner{}
		fire := func(o *owner) {
			o.timer.Fired()
			if o.fired = append(o.fired, time.Since(begin)); len(o.fired) == 1 {
				o.timer.Set(o, nil, 1+int64(time.Second), now())
			}
		}
		if o.timer.Set(o, fire, Never, now()); !o.timer.IsSetTo(0) {
			t.Error("a timer that was never set is set")
		}
		for _, at := range []int64{1 + int64(time.Hour), 0, 1 + int64(time.Second)} {
			o.timer.Set(o, fire, at, now())
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if !slices.Equal(o.fired, []time.Duration{time.Second, time.Second}) || !o.timer.IsSetTo(Never) {
			t.Errorf("fired after %v", o.fired)
		}
		o.timer.Set(o, fire, now()+int64(time.Second), now())
		o.timer.Set(o, fire, Never, now())
		time.Sleep(time.Minute)
		synctest.Wait()
		if len(o.fired) != 2 {
			t.Errorf("fired after %v, though it was unset", o.fired)
		}
	})
}
