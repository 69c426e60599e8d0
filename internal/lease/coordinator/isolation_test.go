package coordinator

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/ledger"
	"github.com/stint-io/stint/limit"
)

const (
	limits   = 1000
	poisoned = 300 // its terms are none
	huge     = 301 // its terms are beyond all amounts
	angry    = 500 // its terms cannot be had without a panic
	panicky  = 700 // its rounds panic
)

// TestOneLimitSpoilsNoOther: of 1,000 limits, one has terms that are none and one
// terms beyond all amounts, one cannot be resolved without a panic, and one panics in
// its rounds. The others get exactly
// the grants that they get without them.
func TestOneLimitSpoilsNoOther(t *testing.T) {
	healthy, spoilt := thousandLimits(t, false), thousandLimits(t, true)
	for of, grants := range healthy.grants {
		if len(grants) < 6 || len(healthy.grants) != limits {
			t.Fatalf("%s of %d was granted %d times, too few to compare", of, len(healthy.grants), len(grants))
		}
	}
	differ := 0
	for _, of := range slices.Sorted(maps.Keys(healthy.grants)) {
		switch of {
		case name(poisoned), name(huge), name(angry), name(panicky):
			continue
		}
		if !slices.Equal(healthy.grants[of], spoilt.grants[of]) {
			differ++
			t.Logf("%s got\n%q\nand without the others\n%q", of, spoilt.grants[of], healthy.grants[of])
		}
	}
	if differ > 0 {
		t.Errorf("%d of %d limits were affected by four", differ, limits)
	}
	for _, i := range []int{poisoned, huge, angry, panicky} {
		if !slices.Contains(spoilt.statuses[name(i)], lease.StatusBroken) {
			t.Errorf("%s was answered with %v, want %v among them", name(i), spoilt.statuses[name(i)], lease.StatusBroken)
		}
	}
	if s := spoilt.stats; s.Broken == 0 || s.Expired != 0 {
		t.Errorf("%+v", s)
	}
	// New terms mend what was broken.
	for _, i := range []int{poisoned, huge, angry, panicky} {
		if s := spoilt.mended[name(i)]; len(s) == 0 || s[len(s)-1] != lease.StatusOK {
			t.Errorf("%s is answered with %v after its terms were mended", name(i), s)
		}
	}
}

func name(i int) string { return fmt.Sprint("limit-", i) }

type outcome struct {
	grants           map[string][]string // by limit, without what tells of other limits
	statuses, mended map[string][]lease.Status
	stats            Stats
}

// thousandLimits has three instances ask for 1,000 limits for a while, of which four
// are spoilt or not, and then mends the limits.
func thousandLimits(t *testing.T, spoil bool) *outcome {
	terms := lease.Terms{Rate: 100 * fixed.Token, Burst: 50 * fixed.Token}
	now := limit.Time(time.Hour)
	mended := false
	c := New(Options{Epoch: 1, Resolve: func(id lease.ResourceID) (lease.Terms, lease.Status) {
		if spoil && !mended {
			switch id.Limit {
			case name(poisoned):
				return lease.Terms{Rate: -1, Burst: math.MinInt64}, lease.StatusOK
			case name(huge):
				return lease.Terms{Rate: math.MaxInt64, Burst: math.MaxInt64, Safe: fixed.MaxAmount}, lease.StatusOK
			case name(angry):
				panic("no terms for you")
			}
		}
		return terms, lease.StatusOK
	}}, now)
	out := &outcome{grants: map[string][]string{}, statuses: map[string][]lease.Status{}}
	acked := map[lease.Member]uint64{}
	leases := map[lease.Member]map[uint32]uint64{}
	take := func(grants []lease.Grant) {
		for _, g := range grants {
			acked[g.To] = g.Number
			for _, s := range g.Shares {
				of := name(int(s.Handle) - 1)
				if s.Lease != 0 {
					leases[g.To][s.Handle] = s.Lease
				}
				out.statuses[of] = append(out.statuses[of], s.Status)
				out.grants[of] = append(out.grants[of], fmt.Sprintf("%s %v %v keep %v %v %v",
					g.To.Instance, s.Status, s.Granted, s.CapRate, s.CapBurst, s.Limit))
			}
		}
	}
	step := func(e lease.Event) {
		take(c.Step(now, e))
		for end := now.Add(50 * time.Millisecond); now < end; {
			now = min(end, max(now, c.Next()))
			take(c.Step(now, lease.Tick{}))
		}
	}
	spoilRound := func() {
		// A state that must not be: a member that does not exist.
		if r := c.resources[lease.ResourceID{Limit: name(panicky)}]; spoil && !mended && r != nil {
			r.Rotation = ledger.Rotation{Until: lease.Never, Members: make([]*ledger.Account, 1)}
			own := *r.Terms         // which limits share
			own.Burst = fixed.Token // so that turns are taken
			r.Terms = &own
		}
	}
	round := func(number uint64) {
		for i, m := range []lease.Member{anna, bert, cleo} {
			if leases[m] == nil {
				leases[m] = map[uint32]uint64{}
			}
			report := lease.Report{Member: m, Epoch: 1, Number: number, Stamp: time.Duration(now)}
			for j := range limits {
				handle := uint32(j + 1)
				report.Demands = append(report.Demands, lease.Demand{
					Handle: handle, Resource: lease.ResourceID{Limit: name(j)}, Lease: leases[m][handle], AckedGrant: acked[m],
					Rate: amount(float64(1000*(i+1)) + float64(number)),
				})
			}
			step(&report)
			spoilRound()
		}
	}
	for number := range uint64(6) {
		round(number + 1)
	}
	mended = true
	out.stats = c.Stats()
	step(Reconfigure{})
	kept := out.grants
	was := out.statuses
	out.grants, out.statuses = map[string][]string{}, map[string][]lease.Status{}
	round(100)
	out.mended, out.statuses, out.grants = out.statuses, was, kept
	return out
}
