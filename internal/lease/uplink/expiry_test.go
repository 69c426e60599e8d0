package uplink

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
)

// TestSiteThatIsCutOff: it lives on its lease, then lends what its mode says, and is whole within a
// second of healing.
func TestSiteThatIsCutOff(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for name, c := range map[string]struct {
		mode        agent.ExpiryMode
		least, most float64 // of the limit, after the lease
	}{
		"pessimistic": {agent.Pessimistic, 0, 0},
		"safe":        {agent.Safe, 0.45, 0.52}, // of two sites
		"optimistic":  {agent.Optimistic, 0.95, 1.05},
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTree(t, 3, lease.Terms{Rate: 1000 * fixed.Token, Burst: 100 * fixed.Token})
			tr.lenient = c.mode != agent.Pessimistic
			a, b := tr.addSite(nil, "a"), tr.addSite(nil, "b")
			a.expiry = c.mode
			tr.startSite(a)
			instances := tr.addInstances(a, 5)
			tr.addInstances(b, 5)
			for _, n := range instances {
				tr.load(n, 400)
			}
			use := func(d time.Duration) float64 {
				before := total(instances)
				tr.run(d)
				return float64(total(instances)-before) / d.Seconds() / tr.terms.Rate.Float()
			}
			tr.run(4 * time.Second)
			a.cut = true
			if got := use(2 * time.Second); got < 0.97 {
				t.Errorf("on its lease it uses %.3f of the limit", got)
			}
			tr.run(4 * time.Second)
			if got := use(4 * time.Second); got < c.least || got > c.most {
				t.Errorf("after its lease it uses %.3f of the limit, want %v to %v", got, c.least, c.most)
			}
			a.cut = false
			tr.run(time.Second)
			if got := use(3 * time.Second); got < 0.97 || got > 1.05 {
				t.Errorf("a second after healing it uses %.3f of the limit", got)
			}
		})
	}
}

// TestSiteKeepsSmallDemandsWhole: the parent divides by the instances' demand, not by their number:
// a site with one instance that demands all and nine that demand little gets no ten shares for the
// one.
func TestSiteKeepsSmallDemandsWhole(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	tr := newTree(t, 4, lease.Terms{Rate: 1000 * fixed.Token, Burst: 200 * fixed.Token})
	a, b := tr.addSite(nil, "a"), tr.addSite(nil, "b")
	mixed, other := tr.addInstances(a, 10), tr.addInstances(b, 1)
	for _, n := range mixed[1:] {
		tr.load(n, 10)
	}
	tr.load(mixed[0], 2000)
	tr.load(other[0], 2000)
	tr.run(5 * time.Second)
	before, alone := total(other), mixed[0].took
	tr.run(10 * time.Second)
	one, two := float64(total(other)-before)/10, float64(mixed[0].took-alone)/10
	if want := (1000 - 90) / 2.0; one < 0.9*want || two < 0.9*want {
		t.Errorf("two that demand the same get %v/s and %v/s, want %v each", one, two, want)
	}
}
