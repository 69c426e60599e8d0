package coordinator

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/seeding"
)

// TestGrantBehindALevelThatIsNotKnownYet: replicas that take the whole bucket for free, since the first grant waits for
// them, are waited for by the second one too, though it lowers nothing; and no grant waits longer.
func TestGrantBehindALevelThatIsNotKnownYet(t *testing.T) {
	seconds := 0
	for seed := range seeding.Draw(t, 2000) {
		r := rand.New(rand.NewPCG(seed, 76))
		burst := 1 + r.Int64N(1000)
		rate := float64(burst) / (6 + 1000*r.Float64())
		demand := rate * r.Float64() / 100
		d := newDesk(t, lease.Terms{Rate: amount(rate), Burst: fixed.Whole(burst)})
		d.start(1, 0)
		if _, _, ok := d.c.Replicate(d.now); !ok {
			t.Fatal("nothing is replicated")
		}
		_, began := d.c.Levels()
		must := func(who lease.Member) (most uint64) {
			d.numbers[who]++
			grants := slices.Clone(d.c.Step(d.now, &lease.Report{Member: who, Epoch: 1, Number: d.numbers[who], Stamp: time.Duration(d.now), Demands: []lease.Demand{asks(demand)}}))
			for range 5 {
				d.now = d.now.Add(time.Millisecond)
				grants = append(grants, slices.Clone(d.c.Step(d.now, lease.Tick{}))...)
			}
			for i := range grants {
				most = max(most, d.c.MustKnow(&grants[i]))
			}
			return most
		}
		first := must(anna)
		_, told := d.c.Levels()
		second := must(bert)
		_, later := d.c.Levels()
		if told == began {
			continue // it is lent nothing of a bucket that is so small
		}
		if first != told || first <= began || second < first || second > later {
			t.Fatalf("seed %d: the first grant waits for %d, the second for %d, and levels %d to %d and then %d were told", seed, first, second, began, told, later)
		}
		if later == told {
			seconds++
		}
	}
	if seconds < 10 {
		t.Errorf("%d second grants lowered nothing: too few to say something", seconds)
	}
}
