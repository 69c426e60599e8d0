package coordinator

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// TestSteadyIsQuiet: an instance whose steady demand fits its lease tells nothing but
// that it is there, once a second.
func TestSteadyIsQuiet(t *testing.T) {
	f := newFleet(t, 1, 1, lease.Terms{Rate: 1000 * fixed.Token, Burst: 1000 * fixed.Token})
	f.load(f.instances[0], 300)
	f.run(20 * time.Second)
	before := f.coord.Stats()
	_, refused := f.totals()
	f.run(60 * time.Second)
	reports, grants := f.coord.Stats().Reports-before.Reports, f.coord.Stats().Grants-before.Grants
	t.Logf("%d reports and %d grants in 60 s", reports, grants)
	if reports > 90 || grants > 90 {
		t.Errorf("%d reports and %d grants in 60 s of steady demand, want at most 90: renewals come every 0.875 s", reports, grants)
	}
	if _, after := f.totals(); after != refused {
		t.Errorf("%d were refused", after-refused)
	}
}
