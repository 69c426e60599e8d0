package admission

import (
	"math/rand/v2"
	"slices"

	"github.com/stint-io/stint/internal/waitline"
)

// server is a simulated server behind a Machine, in virtual time: workers, each with one request
// at a time, and a queue of its own that nobody bounds.
type server struct {
	*rand.Rand
	machine *Machine
	workers int
	now     int64
	busy    int
	inside  []*job          // started by the Machine, not by a worker
	events  waitline.Alarms // jobs that end, and arrivals
	waits   func(*job, int) // called with 1 when a job begins to wait, with -1 when its wait has ended
	ended   func(*job)      // called for each job that is refused, evicted, expired or finished
}

// job is a request in the server.
type job struct {
	Item
	service int64 // that it takes on a worker
	work    int64 // when a worker took it
	done    int64
	event   waitline.Alarm
}

// arrivals are calls at random times (Poisson) with a rate that may change.
type arrivals struct {
	perSecond float64
	bring     func()
	event     waitline.Alarm
}

const (
	millisecond = int64(1_000_000)
	second      = int64(1_000_000_000)
)

func newServer(c Config, workers int, seed uint64) *server {
	return &server{Rand: rand.New(rand.NewPCG(seed, 28)), machine: New(c), workers: workers, now: 1, waits: func(*job, int) {}, ended: func(*job) {}}
}

// begin has calls of bring at random times.
func (s *server) begin(perSecond float64, bring func()) *arrivals {
	a := &arrivals{perSecond: perSecond, bring: bring}
	s.again(a)
	return a
}

func (s *server) again(a *arrivals) {
	s.events.Set(&a.event, a, s.now+1+int64(s.ExpFloat64()/a.perSecond*float64(second)))
}

// offer brings a job to the Machine.
func (s *server) offer(j *job) {
	j.Of = j
	if j.Deadline == 0 {
		j.Deadline = waitline.Never
	}
	s.machine.Offer(s.now, &j.Item)
	if j.State() == Refused {
		s.ended(j)
	}
	switch {
	case j.State() == Waiting:
		s.waits(j, 1)
	case j.State() == Running:
		s.take(j)
	}
	s.settle()
}

func (s *server) settle() {
	for _, it := range slices.Clone(s.machine.Ended()) {
		j := it.Of.(*job)
		s.waits(j, -1)
		if it.State() == Running {
			s.take(j)
		} else {
			s.ended(j)
		}
	}
}

// take has a worker take a job, or puts it in the queue inside.
func (s *server) take(j *job) {
	if s.busy >= s.workers {
		s.inside = append(s.inside, j)
		return
	}
	s.busy++
	j.work = s.now
	s.events.Set(&j.event, j, s.now+max(1, j.service))
}

// finish ends a job. A worker takes the next.
func (s *server) finish(j *job) {
	j.event.Unset()
	s.busy--
	j.done = s.now
	if len(s.inside) > 0 && s.busy < s.workers {
		next := s.inside[0]
		s.inside = s.inside[1:]
		s.take(next)
	}
	s.machine.Finish(s.now, &j.Item, j.service, true)
	s.ended(j)
	s.settle()
}

// run goes on until a time.
func (s *server) run(until int64) {
	for {
		at, of := s.events.First()
		next := s.machine.Next()
		if min(at, next) > until {
			s.now = until
			return
		}
		if next < at {
			s.now = max(s.now, next)
			s.machine.Step(s.now)
			s.settle()
			continue
		}
		s.now = at
		switch e := of.(type) {
		case *job:
			s.finish(e)
		case *arrivals:
			s.again(e)
			e.bring()
		}
	}
}

// quantile returns the q quantile of values, which it sorts.
func quantile(values []int64, q float64) int64 {
	if len(values) == 0 {
		return 0
	}
	slices.Sort(values)
	return values[min(len(values)-1, int(q*float64(len(values))))]
}
