package overload

import (
	"context"
	"fmt"
	"time"

	"github.com/stint-io/stint/internal/traffic"
)

// checkEvery is how many events pass between looks at the context: some milliseconds of work.
const checkEvery = 1 << 14

// Run plays a scenario with a system. It returns the faults of a scenario that is not valid, and
// an error that says when it was when ctx ended first.
func Run(ctx context.Context, s Scenario, system System) (*Result, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	if s.Random != nil {
		s = Draw(s)
	} else {
		s = s.clone()
	}
	e := newEnv(&s, system)
	if err := e.play(ctx, system.Name()); err != nil {
		return nil, err
	}
	return e.recorder.finish(e), nil
}

// play lets the scenario's time pass.
func (e *Env) play(ctx context.Context, system string) error {
	for i := range e.loads {
		e.schedule(int32(i))
	}
	e.At(int64(e.Scenario.Measure.From), func() { e.recorder.mark(e) })
	for n := 0; len(e.events) > 0; n++ {
		if n%checkEvery == 0 && ctx.Err() != nil {
			return fmt.Errorf("overload: %s of %s ended at %v of %v: %w", system, e.Scenario.Name,
				time.Duration(e.now), e.Scenario.Duration, context.Cause(ctx))
		}
		next := e.events.Pop()
		if next.At >= int64(e.Scenario.Duration) {
			break
		}
		e.now = next.At
		e.handle(next.Of)
	}
	e.now = int64(e.Scenario.Duration)
	return nil
}

// clone returns the scenario with steps of its own, since a run numbers them.
func (s *Scenario) clone() Scenario {
	c := *s
	c.Routes = append([]Route(nil), s.Routes...)
	for i := range c.Routes {
		c.Routes[i].Step = c.Routes[i].Step.clone()
	}
	return c
}

func (p *Step) clone() Step {
	c := *p
	c.Calls = append([]Step(nil), p.Calls...)
	for i := range c.Calls {
		c.Calls[i] = c.Calls[i].clone()
	}
	return c
}

func (e *Env) handle(h happening) {
	switch h.kind {
	case requestComes:
		e.comes(h.load)
	case callArrives:
		e.servers[h.call.Server].arrive(e.now, h.call)
		e.control.Arrive(h.call)
	case workEnds:
		if c := e.servers[h.call.Server].ended(e, h); c != nil {
			e.proceed(c)
		}
	case answerArrives:
		e.control.Answer(h.call, h.call.outcome)
		if h.call.parent == nil {
			e.answered(h.call)
		} else {
			e.resume(h.call)
		}
	case timerRings:
		h.do()
	case clientGivesUp:
		if r := h.call.Request; !r.ended && h.call.attempt == r.current {
			e.failed(h.call, TimedOut)
		}
	case clientRetries:
		if !h.call.ended {
			e.attempt(h.call.Request)
		}
	}
}

// newCall makes a call. Its work depends on the request, the attempt and the step alone.
func (e *Env) newCall(r *Request, parent *Call, p *Step, id uint64) *Call {
	c := &Call{Request: r, Server: p.Server, Step: p, parent: parent, attempt: r.attempts, made: e.now}
	e.pcg.Seed(id, traffic.Mix(e.Scenario.Seed, uint64(p.id)<<8|uint64(r.attempts)))
	c.work = p.Work.draw(e.work)
	if parent == nil {
		c.Caller = r.client
		if r.Route.Timeout > 0 {
			c.Deadline = e.now + int64(r.Route.Timeout)
		}
	} else {
		c.Caller, c.Deadline = parent.Server, parent.Deadline
	}
	return c
}

// proceed makes the calls of a call whose work is done, or those that are next.
func (e *Env) proceed(c *Call) {
	calls := c.Step.Calls
	for c.next < len(calls) && (c.Step.Parallel || c.open == 0) {
		child := e.newCall(c.Request, c, &calls[c.next], c.Request.id)
		c.next++
		c.open++
		e.control.Send(child)
	}
	if c.open == 0 && c.next == len(calls) {
		e.finish(c, Answered)
	}
}

// resume goes on with the caller of a call that was answered.
func (e *Env) resume(child *Call) {
	c := child.parent
	c.open--
	switch {
	case c.outcome != Pending: // another call has failed before
	case child.outcome != Answered:
		e.finish(c, child.outcome)
	default:
		e.proceed(c)
	}
}

func (e *Env) finish(c *Call, o Outcome) {
	c.outcome = o
	e.control.Finish(c)
	e.push(e.now+int64(e.Scenario.Delay), happening{kind: answerArrives, call: c})
}
