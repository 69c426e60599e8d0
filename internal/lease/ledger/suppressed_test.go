package ledger

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// TestBadTotals: totals that go back are refused, and change nothing.
func TestBadTotals(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	r := new(Scratch).New(theLimit, lease.Terms{Rate: 1000 * fixed.Token, Burst: 50 * fixed.Token, Suppress: &lease.Suppress{}}, start, false)
	a := opened(r)
	now := start
	report := func(attempted, admitted fixed.Amount) lease.Status {
		now += second / 10
		a.Status = lease.StatusOK
		r.Pool.Refill(now)
		r.Receive(a, &lease.Demand{Rate: 900 * fixed.Token, Attempted: attempted, Admitted: admitted}, Arrival{Now: now, Sent: time.Duration(now), Suppresses: true})
		r.Round(now)
		return a.Status
	}
	for n := range fixed.Amount(5) {
		if got := report((n+1)*150*fixed.Token, (n+1)*100*fixed.Token); got != lease.StatusOK {
			t.Fatalf("status %v", got)
		}
	}
	was, had := *r.divider.(*suppression), a.attempts
	for _, bad := range [][2]fixed.Amount{{749, 500}, {750, 499}, {-1, 500}, {0, 0}} {
		a.Status = lease.StatusOK
		r.Receive(a, &lease.Demand{Rate: 900 * fixed.Token, Attempted: bad[0] * fixed.Token, Admitted: bad[1] * fixed.Token}, Arrival{Now: now, Suppresses: true})
		got := *r.divider.(*suppression)
		if a.Status != lease.StatusBadDemand || got.bucket != was.bucket || got.total != was.total || got.spilled != was.spilled || a.attempts != had {
			t.Errorf("%v: status %v, %+v became %+v", bad, a.Status, was, got)
		}
	}
	if got := report(900*fixed.Token, 600*fixed.Token); got != lease.StatusOK {
		t.Errorf("status %v after totals that go on", got)
	}
}
