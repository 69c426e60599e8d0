package lending

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
)

// One that gets a report of a later epoch goes above it, stores that before a grant is sent, and
// recovers; that it cannot be kept is logged.
func TestEpochOfAnotherIsHigher(t *testing.T) {
	for _, fault := range []error{nil, errors.New("the disk is full")} {
		synctest.Test(t, func(t *testing.T) {
			var raised []uint64
			var i *call
			lines := new(lockedBuffer)
			s := lend(t, func(o *Options) {
				o.Logger = slog.New(slog.NewTextHandler(lines, nil))
				o.Raise = func(epoch uint64) error {
					for _, g := range i.received() {
						if g.GetEpoch() == epoch {
							t.Errorf("told of the epoch %d before it is kept", epoch)
						}
					}
					raised = append(raised, epoch)
					return fault
				}
			})
			i = s.dial(t)
			i.report("a", 1, demand(1, "shared", 10))
			const heard = 1 << 62
			i.reports <- &leasepb.Report{Instance: "a", Session: 1, Number: 2, Stamp: 2, Epoch: heard - 5}
			synctest.Wait()
			if len(raised) != 1 || raised[0] <= heard-5 {
				t.Errorf("raised to %v", raised)
			}
			if learn := s.recovering(); learn != lease.DefaultLease+lease.DefaultLease/64 {
				t.Errorf("learns for %v", learn)
			}
			i.reports <- &leasepb.Report{Instance: "a", Session: 1, Number: 3, Stamp: 3}
			synctest.Wait()
			if received := i.received(); received[len(received)-1].GetEpoch() != raised[0] || len(raised) != 1 {
				t.Errorf("raised to %v, received %v", raised, received[len(received)-1])
			}
			text := lines.String()
			if strings.Count(text, "does not know of") != 1 || strings.Contains(text, "cannot be kept") != (fault != nil) {
				t.Errorf("logged:\n%s", text)
			}
			time.Sleep(lease.DefaultLease + lease.DefaultLease/64)
			if s.recovering() != 0 {
				t.Errorf("learns for %v more", s.recovering())
			}
		})
	}
}

// Nothing is lent at the end of a service that has lent nothing, once it has learnt that no
// former one has.
func TestNothingIsLentAtTheEnd(t *testing.T) {
	for _, c := range []struct {
		runs    time.Duration
		lent    bool
		nothing bool
	}{{10*time.Second - 1, false, false}, {10 * time.Second, false, true}, {20 * time.Second, false, true}, {20 * time.Second, true, false}} {
		synctest.Test(t, func(t *testing.T) {
			s := newShard(Options{Limits: limits(t, config), State: State{Epoch: 5, Recovery: 10 * time.Second}, Logger: slog.New(slog.DiscardHandler)})
			if s.recovering() != 10*time.Second || s.now() <= 0 {
				t.Errorf("learns for %v from %v", s.recovering(), s.now())
			}
			ctx, cancel := context.WithCancel(t.Context())
			nothing := make(chan bool, 1)
			go func() { nothing <- s.run(ctx) }()
			time.Sleep(c.runs)
			if c.lent {
				s.dial(t).report("a", 1, demand(1, "shared", 10))
				time.Sleep(time.Second)
			}
			cancel()
			if got := <-nothing; got != c.nothing {
				t.Errorf("after %v, something lent: %v: nothing is lent: %v", c.runs, c.lent, got)
			}
		})
	}
}

// lockedBuffer takes what is logged.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
