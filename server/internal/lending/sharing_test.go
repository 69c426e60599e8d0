package lending

import (
	"context"
	"testing"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/limit"
)

// TestReloadComesFirst: a report that the loop finds waiting beside a Reload is answered by
// the limits of that, since it may have been sent on account of it.
func TestReloadComesFirst(t *testing.T) {
	for range 50 {
		set := limits(t, "limits: [{name: l, rate: 10/s, sharing: leased}]")
		s := newShard(Options{Limits: set, State: State{Epoch: 1}})
		ctx, cancel := context.WithCancel(t.Context())
		step, first := s.step, make(chan lease.Event, 1)
		s.step = func(now limit.Time, e lease.Event) []lease.Grant {
			switch e.(type) {
			case *lease.Report, coordinator.Reconfigure:
				select {
				case first <- e:
				default:
				}
			}
			return step(now, e)
		}
		p, err := s.pipe(ctx, true)
		if err != nil {
			t.Fatal(err)
		}
		s.reconfigure(set)
		s.events <- event{stream: p.stream, report: &lease.Report{Member: lease.Member{Instance: "a", Session: 1}, Number: 1, Stamp: 1}}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			s.run(ctx)
		}()
		if e := <-first; e != (coordinator.Reconfigure{}) {
			t.Errorf("the first is %T", e)
		}
		<-p.stream.taken
		cancel()
		<-ended
	}
}
