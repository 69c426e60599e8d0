package overload

import (
	"time"

	"github.com/stint-io/stint/sim/internal/agenda"
)

// Cinnamon is our model of Uber's load shedder (2023): what passes a rejector waits in a queue by
// priority for one of the places in flight. A PID controller, twice a second, sets the part to be
// rejected from what came into the queue, what left it, and free places; it becomes a threshold of
// priority by the distribution of the last 1,000 requests. The error is taken over what arrived, with
// which the loop is stable at any load; over what left, it swings at three times the capacity. What waits longer than Target is
// rejected. The tuner of the places is taken to have found its optimum, as many as there are cores.
type Cinnamon struct{ Tuning }

// Name is that of the table.
func (c Cinnamon) Name() string { return c.name("cinnamon") }

// The published constants.
const (
	cinnamonInterval = 500 * time.Millisecond
	cinnamonP        = 0.1
	cinnamonI        = 1.4
	cinnamonRecent   = 1000
)

// rejector is the controller of one server.
type rejector struct {
	came     int // all that arrived
	in, out  int // of the queue
	integral float64
	ratio    float64 // of calls to be rejected
	recent   [cinnamonRecent]int16
	seen     int
	below    int // calls of a rank below it are rejected
}

// update sets the ratio after seconds, with free places.
func (r *rejector) update(free int, seconds float64) {
	err := float64(r.in-r.out-free) / float64(max(r.came, 1))
	// The integral stays where it acts: what is beyond would have to be undone first.
	r.integral = min(max(r.integral+cinnamonI*err*seconds, 0), 1)
	r.ratio = min(max(cinnamonP*err+r.integral, 0), 0.99)
	r.came, r.in, r.out = 0, 0, 0
	r.threshold()
}

// threshold is the rank below which the ratio of recent calls is.
func (r *rejector) threshold() {
	n := min(r.seen, cinnamonRecent)
	var counts [dagorRanks]int
	for _, rank := range r.recent[:n] {
		counts[rank]++
	}
	want := int(r.ratio * float64(n))
	r.below = 0
	for sum := 0; r.below < dagorRanks-1 && sum+counts[r.below] <= want; r.below++ {
		sum += counts[r.below]
	}
}

// admit takes a call into the distribution and says whether it passes.
func (r *rejector) admit(rank int) bool {
	r.recent[r.seen%cinnamonRecent] = int16(rank)
	r.seen++
	r.came++
	return r.ratio == 0 || rank >= r.below
}

type cinnamon struct {
	none
	tuning  Tuning
	servers []*cinnamonServer
}

type cinnamonServer struct {
	rejector
	queue   agenda.Heap[*Call] // the most important first, then the oldest
	running int
	places  int
}

// New begins a run.
func (c Cinnamon) New(env *Env) Control {
	v := &cinnamon{none: none{env}, tuning: c.Tuning}
	for i, s := range env.Scenario.Servers {
		places := s.Cores
		if env.calls(i) {
			places *= 100 // they wait for others
		}
		server := &cinnamonServer{places: places}
		v.servers = append(v.servers, server)
		interval := v.tuning.interval(cinnamonInterval.Seconds())
		env.Every(interval, func() { server.update(server.places-server.running, interval.Seconds()) })
	}
	return v
}

// calls reports whether a server calls others.
func (e *Env) calls(server int) bool {
	for _, p := range e.steps {
		if p.Server == server && len(p.Calls) > 0 {
			return true
		}
	}
	return false
}

func (v *cinnamon) Arrive(c *Call) {
	s := v.servers[c.Server]
	if !s.admit(c.rank()) {
		v.env.Refuse(c, Refused)
		return
	}
	s.in++
	v.env.seq++
	s.queue.Push(agenda.Event[*Call]{At: int64(-c.rank()), Seq: v.env.seq, Of: c})
	v.env.After(time.Duration(v.tuning.target(0.5)*float64(time.Second)), func() {
		if c.waits && c.lists == 0 {
			c.lists = 2
			v.env.Refuse(c, Expired)
		}
	})
	v.serve(s)
}

func (v *cinnamon) serve(s *cinnamonServer) {
	for s.running < s.places && len(s.queue) > 0 {
		c := s.queue.Pop().Of
		s.out++
		if c.lists == 2 {
			continue // it has been rejected
		}
		c.lists = 1
		s.running++
		v.env.Run(c)
	}
}

func (v *cinnamon) Finish(c *Call) {
	s := v.servers[c.Server]
	s.running--
	v.serve(s)
}
