package uplink

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/internal/seeding"
)

// TestRandomTreesNeverExceedTheLimit: trees of random shape, demand that moves, messages that are
// lost, late and doubled, links that are cut, sites, instances and roots that crash and start
// again. At no moment may the instances spend more than the limit, or a site more than its cap, and all
// that was admitted fits one bucket.
func TestRandomTreesNeverExceedTheLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	n := 8
	if text, ok := os.LookupEnv("STINT_TREES"); ok {
		var err error
		if n, err = strconv.Atoi(text); err != nil {
			t.Fatalf("STINT_TREES: %v", err)
		}
	}
	var used []float64
	for seed := range seeding.Draw(t, n) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			if part, known := randomTree(t, seed); known {
				used = append(used, part)
			}
		})
	}
	if slices.Sort(used); len(used) > 0 {
		t.Logf("%d trees use %.3f of what they can at least, %.3f in the median", len(used), used[0], used[len(used)/2])
	}
}

// randomTree returns the part that is used of what can be reached; known is false with so few tokens that it is not
// known what can be reached.
func randomTree(t *testing.T, seed uint64) (part float64, known bool) {
	tr, instances := growTree(t, seed)
	tr.wreck(instances)
	// When all is well again, the demand is served.
	tr.loss, tr.duplicate, tr.unknown = 0, 0, false
	tr.stepRoot(coordinator.Reconfigure{})
	for _, n := range tr.nodes {
		n.cut = false
		if n.down && n.site != nil {
			tr.startSite(n)
		} else if n.down {
			tr.startInstance(n)
		}
	}
	for _, n := range instances {
		tr.load(n, 3*tr.terms.Rate.Float())
	}
	tr.run(12 * time.Second)
	before := total(instances)
	tr.run(5 * time.Second)
	use := float64(total(instances)-before) / 5
	if tr.terms.Burst.Floor() < int64(2*len(tr.nodes)) {
		return 0, false // with fewer tokens than nodes they go round, and those that do not wait use less
	}
	want := tr.reachable(nil)
	if use < 0.85*want-1 {
		t.Errorf("%v/s of %v, burst %v, %d nodes", use, want, tr.terms.Burst, len(tr.nodes))
	}
	return (use + 1) / want, true // the last token may be on its way
}

// growTree makes a tree of random shape, whose clocks show anything.
func growTree(t *testing.T, seed uint64) (tr *tree, instances []*node) {
	tr = newTree(t, seed, lease.Terms{})
	rate := fixed.Whole(1 + tr.rand.Int64N(400))
	tr.terms = lease.Terms{Rate: rate, Burst: fixed.Whole(1 + tr.rand.Int64N(60))}
	if tr.rand.IntN(2) == 0 {
		tr.terms.Sites = []lease.SiteCap{{Name: "s1", Rate: rate / 4, Burst: max(fixed.Token, tr.terms.Burst/4/fixed.Token*fixed.Token)}}
	}
	tr.central = *newReference(tr.terms.Rate, tr.terms.Burst, tr.now)
	tr.startRoot(0)
	sites := []*node{nil}
	for i := range 1 + tr.rand.IntN(5) {
		parent := sites[tr.rand.IntN(len(sites))]
		n := tr.addSite(parent, fmt.Sprint("s", i))
		sites = append(sites, n)
		if tr.rand.IntN(4) == 0 { // a site with a smaller limit of its own
			n.own = lease.Terms{Rate: rate / 2, Burst: max(fixed.Token, tr.terms.Burst/2/fixed.Token*fixed.Token), Sites: tr.terms.Sites}
			if tr.caps[n] == nil { // the cap of the root is smaller
				tr.caps[n] = newReference(n.own.Rate, n.own.Burst, tr.now)
			}
		}
	}
	for range 2 + tr.rand.IntN(12) {
		instances = append(instances, tr.addInstances(sites[tr.rand.IntN(len(sites))], 1)...)
	}
	for _, n := range tr.nodes {
		n.offset = limitTime(tr.rand.Int64N(int64(time.Hour)) - int64(time.Hour)/2)
	}
	for _, n := range tr.nodes { // their clocks have changed
		if n.site != nil {
			tr.startSite(n)
		} else {
			tr.startInstance(n)
		}
	}
	tr.jitter = time.Duration(tr.rand.Int64N(int64(50 * time.Millisecond)))
	tr.loss, tr.duplicate = tr.rand.Float64()*0.2, tr.rand.Float64()*0.2
	return tr, instances
}

// wreck moves demand and breaks what can break.
func (tr *tree) wreck(instances []*node) {
	rate := tr.terms.Rate
	for range 40 {
		switch n := tr.nodes[tr.rand.IntN(len(tr.nodes))]; tr.rand.IntN(10) {
		case 0:
			n.cut = !n.cut
		case 1:
			if n.down = !n.down; !n.down && n.site != nil {
				tr.startSite(n)
			} else if !n.down {
				tr.startInstance(n)
			} else {
				n.next = lease.Never
			}
		case 2:
			if tr.rand.IntN(4) == 0 {
				tr.epoch++
				tr.startRoot(6 * time.Second)
			}
		case 3:
			if !n.down && n.site != nil {
				tr.stepSite(n, coordinator.Takeover{})
			}
		case 4:
			tr.unknown = !tr.unknown && tr.rand.IntN(2) == 0
			tr.stepRoot(coordinator.Reconfigure{})
		default:
			for _, n := range instances {
				if !n.down && tr.rand.IntN(2) == 0 {
					tr.load(n, tr.rand.Float64()*tr.rand.Float64()*2*rate.Float())
				}
			}
		}
		tr.run(time.Duration(tr.rand.Int64N(int64(3 * time.Second))))
	}
}

// reachable is the most that the instances below a node can use together.
func (tr *tree) reachable(of *node) float64 {
	most, sum := tr.terms.Rate.Float(), 0.0
	if c := tr.caps[of]; c != nil {
		most = c.pool.Rate.Float()
	}
	for _, n := range tr.nodes {
		switch {
		case n.parent != of:
		case n.site != nil:
			sum += tr.reachable(n)
		default:
			sum += 3 * tr.terms.Rate.Float()
		}
	}
	return min(most, sum)
}
