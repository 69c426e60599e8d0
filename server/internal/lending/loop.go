package lending

import (
	"context"
	"sync"
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/limit"
)

// run lends until ctx ends; then it ends all streams and returns once everything it
// started has ended. It reports whether nothing was lent at the end. It runs once.
func (s *shard) run(ctx context.Context) (nothingLent bool) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	sample := time.NewTimer(0)
	defer sample.Stop()
	s.loop.sampled = s.now()
	resign := s.beginElecting()
	onward, endReporting := context.WithCancel(context.WithoutCancel(ctx))
	defer endReporting()
	reporting := s.beginReporting(onward)
	for running := true; running; {
		panics := s.loop.panics
		select {
		case <-ctx.Done():
			running = false
		case e := <-s.events:
			select {
			case <-s.reload:
				// What was reported after reconfigure is answered by its limits.
				s.feed(s.now(), nil, coordinator.Reconfigure{})
			default:
			}
			s.takeAll(e)
		case <-s.reload:
			s.feed(s.now(), nil, coordinator.Reconfigure{})
		case <-timer.C:
			s.feed(s.now(), nil, lease.Tick{})
		case <-sample.C:
			pause := time.Second
			s.guard(nil, "sample", func() { pause = s.sample(s.now()) })
			sample.Reset(pause)
		}
		due := min(s.sweepReplicas(s.now()), s.next())
		wait := max(0, time.Duration(due-s.now()))
		if s.loop.panics > panics {
			wait = max(wait, breath)
		}
		timer.Reset(wait)
	}
	s.admission.close()
	s.loop.members.endAll(errGoing)
	s.guard(nil, "end", func() { nothingLent = s.nothingLent() })
	if s.parent != nil && nothingLent {
		s.parent.leave(s.now(), reporting)
	}
	endReporting()
	close(s.ended)
	resign()
	s.admission.handlers.Wait()
	reporting.Wait()
	return nothingLent
}

// takeAll takes an event and those that wait behind it, all at one time, so that one round
// serves them: a round is due a millisecond after a report, and where a report takes longer
// each would have a round of its own. Events that come while the others are taken wait for
// the next time, since a report must not be taken at a time before it was sent: its leases
// would end here before they end at the instance.
func (s *shard) takeAll(e event) {
	for left := batch; ; {
		waiting := len(s.events)
		now := s.now()
		s.take(now, e)
		for range waiting {
			s.take(now, <-s.events)
		}
		if left -= 1 + waiting; left <= 0 {
			return
		}
		select {
		case e = <-s.events:
		default:
			return
		}
	}
}

func (s *shard) take(now limit.Time, e event) {
	switch {
	case e.parent != nil:
		s.parent.take(e.parent, func() { s.feed(now, nil, e.parent) })
	case e.snapshot != nil:
		s.guard(nil, "look", func() { e.snapshot(now) })
	case e.report == nil:
		s.loop.members.gone(e.stream)
	case !s.lends(): // the term may have ended while others were taken
		e.stream.end(errNotLeader)
		e.stream.take()
	default:
		if m := s.loop.members.admit(now, e.stream, e.report, s.loop.coordinator.Knows); m != nil {
			m.decided = s.limits.Load().count(m.decided, e.report.Usage)
			s.feed(now, e.stream, e.report)
			if e.report.Leaving {
				s.loop.members.remove(m)
				e.stream.end(nil)
			}
		}
		e.stream.take()
	}
}

// beginReporting connects to the parent, while this service lends, until ctx ends.
func (s *shard) beginReporting(ctx context.Context) *sync.WaitGroup {
	var wg sync.WaitGroup
	if s.parent != nil {
		wg.Go(func() { s.parent.run(ctx) })
	}
	return &wg
}

// nothingLent says whether no instance holds anything: no lease of a former coordinator
// either, of which nothing is known before the recovery is over.
func (s *shard) nothingLent() bool {
	nothing := !s.loop.coordinator.Recovering(s.now())
	s.loop.coordinator.Each(s.now(), func(r *coordinator.ResourceState) bool {
		nothing = nothing && r.Lent == lease.Capacity{} && !r.Recovering
		return nothing
	})
	return nothing
}
