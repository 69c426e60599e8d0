package split_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/split"
)

// TestHistoriesChanges: a fleet under load whose total changes at random, at each instance at
// another time, as in a roll-out. In no interval is more admitted than the largest of the totals
// in force allows, plus one for each instance and for each change in it.
func TestHistoriesChanges(t *testing.T) {
	let := 0
	for seed := range seeding.Draw(t, 60) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 36))
			n := 1 + r.IntN(8)
			draw := func() limit.Rate { return limit.PerSecond(1 + r.Int64N(1<<(1+r.IntN(8)))) }
			total := draw()
			var fleet []*split.Limiter
			for i := range n {
				fleet = append(fleet, newLimiter(t, split.Terms{Total: total, Part: split.Instance(i, n)}, split.Options{}))
			}
			most := total.Count
			var changes []time.Duration
			for at := time.Duration(0); at < 8*time.Second; at += time.Duration(r.Int64N(int64(3 * time.Second))) {
				next := draw()
				most = max(most, next.Count)
				for _, l := range fleet {
					when := at + time.Duration(r.Int64N(int64(time.Second)))
					changes = append(changes, when)
					timer := time.AfterFunc(when, func() {
						if err := l.SetTotal(next); err != nil {
							t.Error(err)
						}
					})
					defer timer.Stop()
				}
			}
			events := drain(t, fleet, 10*time.Second)
			worst(events, time.Second) // sorts them
			let += len(events)
			for i, first := range events {
				for j, e := range events[i:] {
					changed := 0
					for _, c := range changes {
						if c >= first.at && c <= e.at {
							changed++
						}
					}
					if bound := float64(most)*(e.at-first.at).Seconds() + float64(n+changed); float64(j+1) > bound+1e-6 {
						t.Fatalf("seed %d: %d were let go in %v among %d, of at most %g: %d/s and %d changes", seed, j+1, e.at-first.at, n, bound, most, changed)
					}
				}
			}
		})
	}
	if let < 60*100 {
		t.Errorf("%d were let go in 60 histories: they show little", let)
	}
}
