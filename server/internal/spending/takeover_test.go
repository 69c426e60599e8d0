package spending_test

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/server/internal/lending"
	"github.com/stint-io/stint/server/internal/spending"
	"github.com/stint-io/stint/store"
)

// TestTakeoverIsWaitedFor: a limit is all used when its coordinator ends, and free at the next one, which comes a random
// moment later. A request in between waits for the next coordinator's answer, and is admitted if that comes in time. Else
// on_store_failure decides, or the lease that it has; what the former coordinator has said of the limit refuses nothing.
func TestTakeoverIsWaitedFor(t *testing.T) {
	type charge struct {
		verdict limit.Verdict
		failed  bool
	}
	waited, away := 0, 0
	for seed := range seeding.Draw(t, some(300, 30)) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 1))
			const burst, patience, answer = 20, 500 * time.Millisecond, 30 * time.Millisecond
			text := "  - {name: a, rate: 20/day, sharing: leased}\n"
			var current atomic.Pointer[lending.Service]
			var connected atomic.Int64 // to the latest coordinator
			begun := time.Now()
			connect := func(ctx context.Context) (spending.Stream, error) {
				s := current.Load()
				if s == nil {
					return nil, errors.New("nobody coordinates")
				}
				connected.Store(int64(time.Since(begun)))
				return s.Pipe(ctx, 0)
			}
			lend := func(epoch uint64) (stop func()) {
				s := lending.New(lending.Options{Limits: limits(t, text), State: lending.State{Epoch: epoch}, Logger: slog.New(slog.DiscardHandler)}, 1)
				ctx, cancel := context.WithCancel(t.Context())
				var running sync.WaitGroup
				running.Go(func() { s.Run(ctx) })
				current.Store(s)
				return func() {
					current.Store(nil)
					cancel()
					running.Wait()
				}
			}
			end := lend(1)
			other, stopOther := open(t, spending.Options{Connect: connect}, text)
			for range burst {
				other.take(true, other.charge("a", "", 1))
			}
			f, stop := open(t, spending.Options{Connect: connect, Away: true}, text)
			defer stop()
			if c := f.take(false, f.charge("a", "", 1))[0]; c.Verdict.Reason != limit.ReasonRate || c.Verdict.RetryAfter < time.Minute {
				t.Fatalf("seed %d: of a limit that is used up: %+v", seed, c.Verdict)
			}
			// Another one demands all of it, also for so long that this one has nothing in the end.
			for idle := time.Duration(rng.Int64N(int64(time.Second))) + time.Duration(rng.IntN(2))*10*time.Second; idle > 0; idle -= 100 * time.Millisecond {
				other.take(false, other.charge("a", "", 1))
				time.Sleep(100 * time.Millisecond)
			}
			type request struct {
				asked time.Duration
				charge
			}
			all := make([]request, 1+rng.IntN(burst/2))
			outage := time.Duration(rng.Int64N(int64([]time.Duration{time.Millisecond, patience, 3 * time.Second}[rng.IntN(3)])))
			stopOther()
			end()
			ended := time.Since(begun)
			var taking sync.WaitGroup
			for i := range all {
				at := time.Duration(rng.Int64N(int64(outage + patience/2)))
				taking.Go(func() {
					time.Sleep(at)
					charges := []store.Charge{f.charge("a", "", 1)}
					charges[0].OnFailure = store.FailReject
					all[i].asked = time.Since(begun)
					if _, err := f.Take(t.Context(), charges); err != nil {
						t.Error(err)
					}
					all[i].charge = charge{charges[0].Verdict, charges[0].Failed}
				})
			}
			time.Sleep(outage)
			end = lend(2)
			defer func() { end() }()
			taking.Wait()
			time.Sleep(2 * time.Second) // a client pauses for a second at most between two tries
			up := time.Duration(connected.Load())
			for _, r := range all {
				awaited := (r.asked < ended+patience || r.asked >= up) && r.asked+patience > up+answer
				switch {
				case r.verdict.Allowed && r.asked < up:
					waited++
				case r.verdict.Allowed:
				case awaited, !r.failed && r.verdict.RetryAfter > time.Second:
					t.Errorf("seed %d: the coordinator ended at %v, and the next one was connected at %v: a request at %v is refused: %+v", seed, ended, up, r.asked, r.verdict)
				default:
					away++
				}
			}
		})
	}
	if waited == 0 || away == 0 {
		t.Errorf("%d waited for a coordinator, and %d for none", waited, away)
	}
}
