package overload

import (
	"time"

	"github.com/stint-io/stint/internal/admission"
)

// DAGOR is our model of WeChat's overload control (Zhou et al., SoCC 2018): each server admits what
// is at or above its level of importance, and moves that level by the mean queueing time of a
// window of 1 s or 2,000 calls. Answers carry the level to the callers, which do not send what is
// below. Where they keep calls away, the histogram below the level is taken to be as dense as
// above it: else one quiet window would open it wholly.
type DAGOR struct{ Tuning }

// Name is that of the table.
func (d DAGOR) Name() string { return d.name("dagor") }

// The published constants.
const (
	dagorTarget   = 20 * time.Millisecond // of mean queueing time
	dagorInterval = time.Second
	dagorCalls    = 2000
	dagorFall     = 0.05 // of the calls admitted, under overload
	dagorRise     = 0.01 // of all calls, otherwise
)

const dagorRanks = (maxClass + 1) * admission.Levels

// dagorLevel is the level of one server.
type dagorLevel struct {
	level     int // what is below is refused
	came      int
	admitted  int
	histogram [dagorRanks]int
}

// count takes a call into the histogram and says whether it is admitted.
func (d *dagorLevel) count(rank int) bool {
	d.came++
	d.histogram[rank]++
	if rank < d.level {
		return false
	}
	d.admitted++
	return true
}

// update moves the level at the end of a window.
func (d *dagorLevel) update(overloaded bool, rise, fall float64) {
	expected := float64(d.admitted) + rise*float64(d.came)
	if overloaded {
		expected = float64(d.admitted) * (1 - fall)
	}
	// Callers keep away what is below the level: it is as dense as what is seen.
	dense, seen := 0.0, 0
	for rank := d.level; rank < dagorRanks; rank++ {
		if d.histogram[rank] > 0 {
			seen++
		}
	}
	if seen > 0 {
		dense = float64(d.admitted) / float64(seen)
	}
	sum, level := 0.0, dagorRanks-1
	for ; level > 0; level-- {
		count := float64(d.histogram[level])
		if level < d.level {
			count = max(count, dense)
		}
		if sum += count; sum >= expected {
			break
		}
	}
	if d.came > 0 {
		d.level = level
	}
	d.came, d.admitted, d.histogram = 0, 0, [dagorRanks]int{}
}

type dagor struct {
	none
	tuning  Tuning
	levels  []*dagorLevel
	delays  []mean
	windows []int          // generation, so that a window that ended early is not ended twice
	known   map[[2]int]int // level, by caller and server
}

// New begins a run.
func (d DAGOR) New(env *Env) Control {
	n := len(env.Scenario.Servers)
	c := &dagor{none: none{env}, tuning: d.Tuning, delays: make([]mean, n), windows: make([]int, n), known: map[[2]int]int{}}
	for i := range n {
		c.levels = append(c.levels, &dagorLevel{})
		c.window(i)
	}
	return c
}

// window begins a window of a server.
func (d *dagor) window(server int) {
	d.windows[server]++
	this := d.windows[server]
	d.env.After(d.tuning.interval(dagorInterval.Seconds()), func() {
		if d.windows[server] == this {
			d.close(server)
		}
	})
}

func (d *dagor) close(server int) {
	m := &d.delays[server]
	// A call that waits still has waited that long.
	if head := d.env.Head(server); head != nil && m.n == 0 {
		m.sum, m.n = float64(d.env.now-head.arrived), 1
	}
	overloaded := m.n > 0 && m.sum/float64(m.n) > d.tuning.target(dagorTarget.Seconds())*float64(time.Second)
	d.levels[server].update(overloaded, d.tuning.rise(dagorRise), d.tuning.fall(dagorFall))
	*m = mean{}
	d.window(server)
}

func (d *dagor) Send(c *Call) {
	if c.rank() < d.known[[2]int{c.Caller, c.Server}] {
		d.env.Drop(c, Dropped)
		return
	}
	d.env.Deliver(c)
}

func (d *dagor) Arrive(c *Call) {
	v := d.levels[c.Server]
	if v.count(c.rank()) {
		d.env.Run(c)
	} else {
		d.env.Refuse(c, Refused)
	}
	if v.came >= dagorCalls {
		d.close(c.Server)
	}
}

func (d *dagor) Begin(c *Call) {
	d.delays[c.Server].sum += float64(c.QueueDelay())
	d.delays[c.Server].n++
}

// Answer is where the caller learns the level. A client of one user would never send again once it
// is above that user's, so that it is services and clients of many users that learn.
func (d *dagor) Answer(c *Call, _ Outcome) {
	if c.Sent() {
		d.known[[2]int{c.Caller, c.Server}] = d.levels[c.Server].level
	}
}
