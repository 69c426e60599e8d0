package coordinator

import (
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// TestAmountsOfDemandsAndTerms: an amount may be 0 or the largest there is, in a demand and in the
// terms of a limit; one below and one above is refused, whichever it is.
func TestAmountsOfDemandsAndTerms(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, tt := range []struct {
		a  fixed.Amount
		ok bool
	}{{-1, false}, {0, true}, {1, true}, {fixed.MaxAmount, true}, {fixed.MaxAmount + 1, false}} {
		for i, demand := range []lease.Demand{{Rate: tt.a}, {Shortfall: tt.a}} {
			d := newDesk(t, hundred)
			demand.Handle, demand.Resource = 1, theLimit
			d.report(anna, demand)
			if got := d.c.list[0].accounts[0].Status == lease.StatusOK; got != tt.ok {
				t.Errorf("a demand of %d, the %d., is taken: %v", tt.a, i, got)
			}
		}
		for i, terms := range []lease.Terms{{Rate: tt.a, Burst: fixed.Token}, {Rate: fixed.Token, Burst: tt.a}, {Rate: fixed.Token, Burst: fixed.Token, Safe: tt.a}} {
			if i == 2 && tt.a > 0 {
				continue // a safe part is bounded by the limit
			}
			d := newDesk(t, terms)
			said := d.report(anna, asks(1))
			if got := !strings.Contains(said, "broken"); got != tt.ok {
				t.Errorf("terms with %d, the %d., are taken: %v", tt.a, i, got)
			}
		}
	}
	gauge := lease.Terms{Burst: fixed.Token, Semaphore: true, Suppress: &lease.Suppress{}}
	if said := newDesk(t, gauge).report(anna, asks(1)); !strings.Contains(said, "broken") {
		t.Errorf("a gauge shared by suppression is answered with %s", said)
	}
}
