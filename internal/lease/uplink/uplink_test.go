package uplink

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// TestAllLoadMovesToTheSmallestSite: three levels, three sites of ten instances. When all demand
// moves to one of them, it has at least 0.97 of the limit within two seconds, and the whole never
// admits more than one bucket.
func TestAllLoadMovesToTheSmallestSite(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, c := range []struct {
		name  string
		terms lease.Terms
		over  float64 // demand over limit
	}{
		{"above the limit", lease.Terms{Rate: 3000 * fixed.Token, Burst: 300 * fixed.Token}, 2},
		{"at the limit", lease.Terms{Rate: 3000 * fixed.Token, Burst: 300 * fixed.Token}, 1},
		{"a small burst", lease.Terms{Rate: 3000 * fixed.Token, Burst: 60 * fixed.Token}, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			tr := newTree(t, 1, c.terms)
			region := tr.addSite(nil, "region")
			sites := []*node{tr.addSite(region, "a"), tr.addSite(region, "b"), tr.addSite(region, "c")}
			instances := [][]*node{tr.addInstances(sites[0], 10), tr.addInstances(sites[1], 10), tr.addInstances(sites[2], 10)}
			demand := c.over * c.terms.Rate.Float()
			for i, part := range []float64{0.6, 0.38, 0.02} {
				for _, n := range instances[i] {
					tr.load(n, demand*part/10)
				}
			}
			tr.run(5 * time.Second)
			for _, n := range append(instances[0], instances[1]...) {
				tr.load(n, 0)
			}
			for _, n := range instances[2] {
				tr.load(n, demand/10)
			}
			tr.run(2 * time.Second)
			before := total(instances[2])
			tr.run(5 * time.Second)
			if use := float64(total(instances[2])-before) / 5 / c.terms.Rate.Float(); use < 0.97 {
				t.Errorf("the site uses %.3f of the limit", use)
			}
		})
	}
}
