package ledger

import (
	"slices"
	"testing"

	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// TestSilentIsServedInItsBand: an instance that does not report its demand has an equal part of the limit as
// far as its band and its weight have it, and none before those that report. By the kinds without bands it
// has its part whatever others demand.
func TestSilentIsServedInItsBand(t *testing.T) {
	limited := func(kind fairshare.Allocation) lease.Terms {
		return lease.Terms{Rate: 120 * fixed.Token, Burst: 120 * fixed.Token, Allocation: kind}
	}
	guaranteed, permits := limited(fairshare.MaxMin), lease.Terms{Burst: 120 * fixed.Token, Semaphore: true}
	guaranteed.Guarantees = []fairshare.Guarantee{{Band: 0, Amount: 12 * fixed.Token}}
	for name, c := range map[string]struct {
		terms  lease.Terms
		band   uint8  // of two others
		weight uint32 // of each
		wants  fixed.Amount
		share  []fixed.Amount // of the others, and of the silent one
	}{
		"a higher band wants all":       {limited(fairshare.MaxMin), 5, 1, 500, []fixed.Amount{60, 60, 0}},
		"a higher band wants a half":    {limited(fairshare.MaxMin), 5, 1, 30, []fixed.Amount{30, 30, 40}},
		"a higher band leaves a little": {limited(fairshare.MaxMin), 5, 1, 55, []fixed.Amount{55, 55, 10}},
		"its band has a guarantee":      {guaranteed, 5, 1, 500, []fixed.Amount{54, 54, 12}},
		"its own band":                  {limited(fairshare.MaxMin), 0, 1, 500, []fixed.Amount{40, 40, 40}},
		"its own band wants little":     {limited(fairshare.MaxMin), 0, 1, 10, []fixed.Amount{10, 10, 40}},
		"the others have more weight":   {limited(fairshare.MaxMin), 0, 2, 500, []fixed.Amount{48, 48, 24}},
		"permits of a higher band":      {permits, 5, 1, 120, []fixed.Amount{60, 60, 0}},
		"permits of its own band":       {permits, 0, 1, 120, []fixed.Amount{40, 40, 40}},
		"proportional":                  {limited(fairshare.Proportional), 5, 1, 500, []fixed.Amount{40, 40, 40}},
		"equal":                         {limited(fairshare.Equal), 5, 1, 0, []fixed.Amount{40, 40, 40}},
	} {
		t.Run(name, func(t *testing.T) {
			r := new(Scratch).New(theLimit, c.terms, start, false)
			for i := range 3 {
				a := opened(r)
				if a.Silent = i == 2; !a.Silent {
					a.Demand, a.Band, a.Weight = c.wants*fixed.Token, c.band, c.weight
				}
			}
			r.divide(start)
			for i := range c.share {
				c.share[i] *= fixed.Token
			}
			if !slices.Equal(r.shares, c.share) {
				t.Errorf("shares %v, want %v", r.shares, c.share)
			}
		})
	}
}
