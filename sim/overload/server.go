package overload

import (
	"math"
	"math/bits"

	"github.com/stint-io/stint/sim/internal/agenda"
)

// server is a Server at work.
type server struct {
	*Server
	index int
	busy  int // calls that have a core, or a part of one
	queue ring
	used  int64 // CPU time, ns

	// Of a server that shares: virtual time is what a call has got that runs since the start.
	virtual    float64
	since      int64 // when virtual was brought up to date
	finishing  agenda.Heap[*Call]
	generation int32

	lowestWaiting *ranks // of those that are here and have no core
}

// run puts a call in the run queue, or on a core.
func (s *server) run(e *Env, c *Call) {
	if s.Discipline == Sharing {
		s.begin(e, c)
		s.advance(e.now)
		s.busy++
		e.seq++
		s.finishing.Push(agenda.Event[*Call]{At: int64(math.Ceil(s.virtual)) + c.work, Seq: e.seq, Of: c})
		s.plan(e)
		return
	}
	if s.busy < s.Cores {
		s.busy++
		s.begin(e, c)
		e.push(e.now+c.work, happening{kind: workEnds, call: c})
		return
	}
	s.queue.push(c)
}

// begin is when a call gets a core.
func (s *server) begin(e *Env, c *Call) {
	s.leave(c)
	c.began = e.now
	if s.Discipline == FIFO {
		e.recorder.delay(e.now, s.index, c.QueueDelay())
	}
	e.control.Begin(c)
}

// ended is the end of a call's work. It returns the call.
func (s *server) ended(e *Env, h happening) *Call {
	c := h.call
	if s.Discipline == Sharing {
		if h.load != s.generation {
			return nil
		}
		s.advance(e.now)
		c = s.finishing.Pop().Of
		s.busy--
		s.plan(e)
		e.recorder.delay(e.now, s.index, e.now-c.arrived-c.work)
	} else if next := s.queue.pop(); next != nil {
		s.begin(e, next)
		e.push(e.now+next.work, happening{kind: workEnds, call: next})
	} else {
		s.busy--
	}
	s.used += c.work
	c.spend(s.index, len(e.servers))
	return c
}

// advance brings virtual time up to date: each call that runs gets a core or its part of them.
func (s *server) advance(now int64) {
	if s.busy > 0 {
		s.virtual += float64(now-s.since) * min(1, float64(s.Cores)/float64(s.busy))
	}
	s.since = now
}

// plan makes the event of the next end of work.
func (s *server) plan(e *Env) {
	s.generation++
	if len(s.finishing) == 0 {
		return
	}
	wait := max(0, float64(s.finishing[0].At)-s.virtual) / min(1, float64(s.Cores)/float64(s.busy))
	e.push(e.now+int64(math.Ceil(wait)), happening{kind: workEnds, call: s.finishing[0].Of, load: s.generation})
}

// arrive notes a call that waits.
func (s *server) arrive(now int64, c *Call) {
	c.arrived, c.waits = now, true
	s.lowestWaiting.add(c.rank())
}

// leave notes that a call does not wait any more.
func (s *server) leave(c *Call) {
	if c.waits {
		c.waits = false
		s.lowestWaiting.remove(c.rank())
	}
}

// lowest is the least important that waits; above all ranks if none does.
func (s *server) lowest() int {
	for i, word := range s.lowestWaiting.words {
		if word != 0 {
			return i*64 + bits.TrailingZeros64(word)
		}
	}
	return math.MaxInt
}

// spend counts a call's work for its request.
func (c *Call) spend(server, servers int) {
	c.spent += c.work
	if servers == 1 {
		return
	}
	if c.at == nil {
		c.at = make([]int64, servers)
	}
	c.at[server] += c.work
}

// ring is a queue.
type ring struct {
	calls []*Call
	head  int
	n     int
}

func (r *ring) len() int { return r.n }

func (r *ring) first() *Call {
	if r.n == 0 {
		return nil
	}
	return r.calls[r.head]
}

func (r *ring) push(c *Call) {
	if r.n == len(r.calls) {
		grown := make([]*Call, max(16, 2*r.n))
		for i := range r.n {
			grown[i] = r.calls[(r.head+i)%len(r.calls)]
		}
		r.calls, r.head = grown, 0
	}
	r.calls[(r.head+r.n)%len(r.calls)] = c
	r.n++
}

// pop takes out the oldest, or returns nil.
func (r *ring) pop() *Call {
	if r.n == 0 {
		return nil
	}
	c := r.calls[r.head]
	r.calls[r.head] = nil
	r.head = (r.head + 1) % len(r.calls)
	r.n--
	return c
}
