package uplink

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/coordinator"
)

// below runs a test with a site below the root, and with one below another site.
func below(t *testing.T, terms lease.Terms, f func(t *testing.T, tr *tree, parent *node)) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	t.Run("root", func(t *testing.T) { f(t, newTree(t, 1, terms), nil) })
	t.Run("site", func(t *testing.T) {
		tr := newTree(t, 1, terms)
		f(t, tr, tr.addSite(nil, "region"))
	})
}

// addSmall adds a site with a smaller limit of its own. The tree checks that it is not exceeded.
func (tr *tree) addSmall(parent *node, own lease.Terms) *node {
	n := tr.addSite(parent, "small")
	n.own = own
	tr.caps[n] = newReference(own.Rate, own.Burst, tr.now)
	tr.startSite(n)
	return n
}

// rateOf runs the tree for so long and returns what the nodes used per second.
func (tr *tree) rateOf(d time.Duration, nodes ...[]*node) (used []float64) {
	before := make([]int64, len(nodes))
	for i := range nodes {
		before[i] = total(nodes[i])
	}
	tr.run(d)
	for i := range nodes {
		used = append(used, float64(total(nodes[i])-before[i])/d.Seconds())
	}
	return used
}

// TestOthersUseWhatASiteMayNot: a site with a smaller limit of its own and most of the demand is lent no more than that,
// and the others have the rest.
func TestOthersUseWhatASiteMayNot(t *testing.T) {
	below(t, lease.Terms{Rate: 300 * fixed.Token, Burst: 60 * fixed.Token}, func(t *testing.T, tr *tree, parent *node) {
		small := tr.addSmall(parent, lease.Terms{Rate: 100 * fixed.Token, Burst: 20 * fixed.Token})
		in, others := tr.addInstances(small, 6), tr.addInstances(parent, 2)
		for _, n := range append(in, others...) {
			tr.load(n, 900)
		}
		tr.run(2 * time.Second)
		sent := tr.seq
		used := tr.rateOf(10*time.Second, in, others)
		if used[0] < 97 || used[1] < 194 {
			t.Errorf("the site uses %v/s of 100, the others %v/s of 200", used[0], used[1])
		}
		// Nothing changes, so the messages are renewals.
		if perSecond := float64(tr.seq-sent) / 10 / float64(len(tr.nodes)); perSecond > 4 {
			t.Errorf("%.1f messages per second and node", perSecond)
		}
	})
}

// TestOthersUsePermitsThatASiteMayNot is the same for requests in flight.
func TestOthersUsePermitsThatASiteMayNot(t *testing.T) {
	below(t, lease.Terms{Burst: 30 * fixed.Token, Semaphore: true}, func(t *testing.T, tr *tree, parent *node) {
		small := tr.addSite(parent, "small")
		small.own = lease.Terms{Burst: 10 * fixed.Token, Semaphore: true}
		tr.startSite(small)
		lengths := make([]time.Duration, 20)
		for i := range lengths {
			lengths[i] = time.Second + time.Duration(i)*time.Millisecond
		}
		in := []*node{tr.addCrew(small, lengths), tr.addCrew(small, lengths), tr.addCrew(small, lengths)}
		other := tr.addCrew(parent, lengths)
		tr.run(10 * time.Second)
		held := func() (small, others float64) {
			for _, n := range in {
				n.crew.count()
				small += n.crew.held
			}
			other.crew.count()
			return small, other.crew.held
		}
		sent := tr.seq
		smallBefore, otherBefore := held()
		tr.run(30 * time.Second)
		s, o := held()
		if s, o = (s-smallBefore)/30, (o-otherBefore)/30; s < 9.5 || s > 10 || o < 19 {
			t.Errorf("the site uses %.2f permits of 10, the others %.2f of 20", s, o)
		}
		// Each permit that is waited for is reported.
		if perSecond := float64(tr.seq-sent) / 30 / float64(len(tr.nodes)); perSecond > 8 {
			t.Errorf("%.1f messages per second and node", perSecond)
		}
	})
}

// TestSmallerLimitHoldsOverPauses: what a site used of its own limit stays used when its instances pause, or close what
// they use, and everything goes back to the parent meanwhile.
func TestSmallerLimitHoldsOverPauses(t *testing.T) {
	below(t, lease.Terms{Rate: 10 * fixed.Token, Burst: 100 * fixed.Token}, func(t *testing.T, tr *tree, parent *node) {
		in := tr.addInstances(tr.addSmall(parent, lease.Terms{Rate: fixed.Token, Burst: 20 * fixed.Token}), 1)
		n := in[0]
		for range 4 {
			tr.load(n, 60)
			tr.run(2 * time.Second)
			tr.load(n, 0)
			tr.run(2 * time.Second)
			tr.load(n, 60)
			tr.run(2 * time.Second)
			tr.load(n, 0)
			n.agent.Close(tr.clock(n), n.handle)
			tr.stepAgent(n, lease.Tick{})
			tr.run(2 * time.Second)
			tr.startInstance(n)
		}
		if n.took < 30 {
			t.Errorf("%d requests were admitted in 32 s at 1/s with a burst of 20", n.took)
		}
	})
}

// TestParentLearnsOfANewLimit: the file of a site has another limit while the demand stays. The parent lends it that
// much, and the rest to the others.
func TestParentLearnsOfANewLimit(t *testing.T) {
	below(t, lease.Terms{Rate: 300 * fixed.Token, Burst: 60 * fixed.Token}, func(t *testing.T, tr *tree, parent *node) {
		small := tr.addSite(parent, "small")
		in, others := tr.addInstances(small, 2), tr.addInstances(parent, 2)
		for _, n := range append(in, others...) {
			tr.load(n, 900)
		}
		for _, rate := range []int64{30, 100, 10, 300} {
			small.own = lease.Terms{Rate: fixed.Whole(rate), Burst: fixed.Whole(max(4, rate/5))}
			tr.stepSite(small, coordinator.Reconfigure{})
			tr.run(time.Second)
			want := min(float64(rate), 150)
			if used := tr.rateOf(5*time.Second, in, others); used[0] < 0.97*want || used[1] < 0.97*(300-want) {
				t.Errorf("with a limit of %d/s the site uses %v/s, and the others %v/s", rate, used[0], used[1])
			}
		}
	})
}

// TestCapsAreReloaded: the file of whoever lends to a site has another cap for it.
func TestCapsAreReloaded(t *testing.T) {
	below(t, lease.Terms{Rate: 300 * fixed.Token, Burst: 60 * fixed.Token}, func(t *testing.T, tr *tree, parent *node) {
		in, others := tr.addInstances(tr.addSite(parent, "capped"), 2), tr.addInstances(parent, 2)
		for _, n := range append(in, others...) {
			tr.load(n, 900)
		}
		for _, rate := range []int64{100, 30, 200} {
			terms := tr.terms
			terms.Sites = []lease.SiteCap{{Name: "capped", Rate: fixed.Whole(rate), Burst: fixed.Whole(rate / 5)}}
			if parent == nil {
				tr.terms = terms
				tr.stepRoot(coordinator.Reconfigure{})
			} else {
				parent.own = terms
				tr.stepSite(parent, coordinator.Reconfigure{})
			}
			tr.run(time.Second)
			want := min(float64(rate), 150)
			if used := tr.rateOf(5*time.Second, in, others); used[0] < 0.97*want || used[0] > want+1 || used[1] < 0.97*(300-want) {
				t.Errorf("with a cap of %d/s the site uses %v/s, and the others %v/s", rate, used[0], used[1])
			}
		}
	})
}
