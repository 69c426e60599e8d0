package coordinator

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/internal/lease/ledger"
	"github.com/stint-io/stint/limit"
)

// live is a fleet whose limit changes while it runs. It is held against the largest
// recent terms: what was lent under a larger limit may be in use until it is given
// back or its lease has ended.
type live struct {
	*fleet
	real    lease.Terms
	changes []change
	history []change // all changes
}

type change struct {
	at    limit.Time
	terms lease.Terms // until then
}

// memory is how long larger terms may be in use.
const memory = lease.DefaultLease + lease.DefaultLease/lease.DriftMargin + time.Second

func (v *live) resolve(lease.ResourceID) (lease.Terms, lease.Status) { return v.real, lease.StatusOK }

// change puts terms in force.
func (v *live) change(rate, burst fixed.Amount) {
	v.trace("terms %v %v of %+v", rate, burst, v.real)
	v.changes = append(v.changes, change{v.now, v.real})
	v.history = append(v.history, change{v.now, v.real})
	v.real.Rate, v.real.Burst = rate, burst
	v.envelope()
	if v.coord != nil {
		v.coord.opts.Resolve = v.resolve
	}
	v.coordinate(Reconfigure{})
	v.check()
}

// envelope finds the largest recent terms.
func (v *live) envelope() {
	v.central.take(v.fleet, 0) // what came under the former ones
	largest := v.real
	kept := v.changes[:0]
	for _, c := range v.changes {
		if v.now >= c.at.Add(memory) {
			continue
		}
		kept = append(kept, c)
		largest.Rate, largest.Burst = max(largest.Rate, c.terms.Rate), max(largest.Burst, c.terms.Burst)
	}
	v.changes = kept
	// A bucket that was not used was forgotten, and begins full of a larger burst.
	v.central.level += max(0, largest.Burst-v.terms.Burst)
	v.terms, v.central.terms = largest, largest
}

// over fails the test if in some interval more was admitted than the largest burst and
// the largest rate that were in force in it, or so long before that their leases may not
// have ended: burst + rate x T.
func (v *live) over() {
	all := append(slices.Clone(v.history), change{lease.Never, v.real})
	began := func(i int) limit.Time {
		if i == 0 {
			return 0
		}
		return all[i-1].at
	}
	for first := range all {
		from, largest := began(first), lease.Capacity{}
		for _, c := range all[:first] {
			if c.at.Add(memory) >= from {
				largest = lease.Capacity{Rate: max(largest.Rate, c.terms.Rate), Burst: max(largest.Burst, c.terms.Burst)}
			}
		}
		events, _ := slices.BinarySearch(v.noted, from)
		for last := first; last < len(all); last++ {
			c := all[last]
			largest = lease.Capacity{Rate: max(largest.Rate, c.terms.Rate), Burst: max(largest.Burst, c.terms.Burst)}
			p := ledger.Pool{Rate: largest.Rate, Burst: largest.Burst, Level: largest.Burst, At: from}
			for _, at := range v.noted[events:] {
				if at > c.at {
					break
				}
				p.Refill(at)
				if p.Level -= fixed.Token; p.Level < -fixed.Amount(len(v.instances))*10 {
					v.t.Fatalf("%v: %v more were admitted than %v and %v/s allow, since %v", time.Duration(at), -p.Level, largest.Burst, largest.Rate, time.Duration(from))
				}
			}
		}
	}
}

// goOn lets the fleet run.
func (v *live) goOn(d time.Duration) {
	for end := v.now.Add(d); v.now < end; {
		v.envelope()
		v.run(min(50*time.Millisecond, time.Duration(end-v.now)))
	}
}

// mishap is the fleet's; a coordinator that comes anew has the terms in force.
func (v *live) mishap(r *rand.Rand) {
	was := v.coord
	v.fleet.mishap(r)
	if v.coord != was && v.coord != nil {
		v.coord.opts.Resolve = v.resolve
	}
}

// TestLiveTerms: while rate and burst change at random, up, down and to nothing, among
// random faults, instances hold at no moment more than the largest terms of the last
// lease length, and what is admitted fits one bucket of these terms: in no interval it is
// more than the largest burst and the largest rate allow. Afterwards they
// use the limit that is in force, and no more.
func TestLiveTerms(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 100) {
		liveTerms(t, seed)
		if t.Failed() {
			return
		}
	}
}

func liveTerms(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 4))
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	draw := func() (rate, burst fixed.Amount) {
		rates := []fixed.Amount{0, fixed.Token / 2, fixed.Token, 3 * fixed.Token, 20 * fixed.Token, 200 * fixed.Token}
		rate = rates[r.IntN(len(rates))]
		return rate, fixed.Whole(r.Int64N(2*rate.Floor() + 3))
	}
	terms := lease.Terms{Allocation: []fairshare.Allocation{fairshare.MaxMin, fairshare.MaxMin, fairshare.Proportional, fairshare.Equal}[r.IntN(4)]}
	terms.Rate, terms.Burst = draw()
	v := &live{fleet: newFleet(t, seed, 1+r.IntN(5), terms), real: terms}
	v.coord.opts.Resolve, v.noting = v.resolve, true
	v.delay = time.Duration(1+r.IntN(80)) * time.Millisecond
	v.jitter = time.Duration(r.IntN(100)) * time.Millisecond
	v.loss, v.duplicate = r.Float64()*0.3, r.Float64()*0.3
	for _, in := range v.instances {
		in.opts = agent.LeaseOptions{Weight: uint32(r.IntN(4)), Band: uint8(r.IntN(2)), Silent: r.IntN(8) == 0}
		v.load(in, 1+terms.Rate.Float()*r.Float64()*2)
	}
	for range 6 + r.IntN(12) {
		v.goOn(time.Duration(r.Int64N(int64(1500 * time.Millisecond))))
		if r.IntN(2) == 0 {
			v.change(draw())
		} else {
			v.mishap(r)
		}
	}
	v.heal()
	const last = 20 * fixed.Token
	v.change(last, last)
	v.goOn(2 * memory)
	if v.terms.Rate != v.real.Rate || v.terms.Burst != v.real.Burst {
		t.Errorf("seed %d: the terms are held against %+v, in force are %+v", seed, v.terms, v.real)
	}
	before, _ := v.totals()
	for _, in := range v.instances {
		v.load(in, 2*last.Float())
	}
	v.goOn(10 * time.Second)
	after, _ := v.totals()
	v.over()
	if want := last.Float() * 10 * 0.5; float64(after-before) < want && !v.anySilent() {
		t.Errorf("seed %d: after the changes %d were admitted in 10 s of %v/s among %d", seed, after-before, last, len(v.instances))
	}
}
