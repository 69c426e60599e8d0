package overload

import (
	"cmp"
	"math"
	"math/rand/v2"
	"time"

	"github.com/stint-io/stint/internal/admission"
	"github.com/stint-io/stint/internal/traffic"
)

// load is a Load at work.
type load struct {
	*Load
	index   int
	random  *rand.Rand
	jitter  *rand.Rand // of retries, so that arrivals are the same whatever policies do
	step    int        // of Rate, the one in force
	users   uint64
	clients int
	first   int // its clients are numbered from here
}

func newLoad(s *Scenario, i, first int) *load {
	l := &s.Loads[i]
	return &load{
		Load: l, index: i, random: traffic.Seeded(s.Seed, chanceArrivals, uint64(i), 0),
		jitter: traffic.Seeded(s.Seed, chanceJitter, uint64(i), 0), step: -1, users: uint64(cmp.Or(l.Users, 1000)), clients: cmp.Or(l.Clients, 10), first: first,
	}
}

// schedule makes the event of a load's next request: the next in a process whose rate changes.
func (e *Env) schedule(i int32) {
	l := e.loads[i]
	left := 1.0
	if !l.Even {
		left = l.random.ExpFloat64()
	}
	at := e.now
	for {
		until, rate := int64(math.MaxInt64), 0.0
		if l.step >= 0 {
			rate = l.Rate[l.step].Rate
		}
		if l.step+1 < len(l.Rate) {
			until = int64(l.Rate[l.step+1].At)
		}
		if rate > 0 {
			wait := left / rate * float64(time.Second)
			if float64(at)+wait < float64(until) {
				e.push(at+int64(wait), happening{kind: requestComes, load: i})
				return
			}
			left -= rate * float64(until-at) / float64(time.Second)
		}
		if until == math.MaxInt64 {
			return
		}
		at = max(at, until)
		l.step++
	}
}

// comes is a new request of a load.
func (e *Env) comes(i int32) {
	l := e.loads[i]
	e.requests++
	r := &Request{
		Load: l.Load, Route: &e.Scenario.Routes[l.Route], Class: uint8(l.Class), born: e.now, load: l.index,
		id:   traffic.Mix(e.Scenario.Seed^uint64(l.index)<<40, e.requests),
		User: uint64(l.index)<<32 | l.random.Uint64N(l.users),
	}
	r.client = l.first + l.random.IntN(l.clients)
	draw := l.random.Uint64()
	switch l.Levels {
	case ByUser:
		r.Level = uint8(traffic.Mix(r.User, 1) % admission.Levels)
	case ByRequest:
		r.Level = uint8(draw % admission.Levels)
	case Alike:
		r.Level = admission.Levels / 2
	}
	e.recorder.offer(e.now, r)
	e.schedule(i)
	e.attempt(r)
}

// attempt sends a request once more.
func (e *Env) attempt(r *Request) {
	r.attempts++
	r.current, r.sent = r.attempts, e.now
	c := e.newCall(r, nil, &r.Route.Step, r.id)
	if c.Deadline > 0 {
		e.push(c.Deadline, happening{kind: clientGivesUp, call: c})
	}
	e.recorder.attempts++
	e.control.Send(c)
}

// answered is an answer to a client.
func (e *Env) answered(c *Call) {
	r := c.Request
	switch {
	case r.ended || c.attempt != r.current: // it has given up waiting for this one
	case c.outcome == Answered:
		e.end(r, Answered)
	default:
		e.failed(c, c.outcome)
	}
}

// failed tries a request again, or ends it.
func (e *Env) failed(c *Call, o Outcome) {
	r := c.Request
	if r.attempts > r.Load.Retries {
		e.end(r, o)
		return
	}
	// From half of the back-off to half as much again, doubled each time.
	wait := float64(r.Load.Backoff) * math.Pow(2, float64(min(r.attempts-1, 10))) * (0.5 + e.loads[r.load].jitter.Float64())
	r.current = 0 // what is still under way does not count any more
	e.push(e.now+int64(wait), happening{kind: clientRetries, call: c})
}

func (e *Env) end(r *Request, o Outcome) {
	r.ended, r.last = true, o
	good := e.recorder.end(e.now, r, o)
	if observer, ok := e.control.(Observer); ok {
		observer.Ended(r, good, e.now-r.born)
	}
}
