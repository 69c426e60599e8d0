package coordinator

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// cycler opens a limit under a new handle, spends all tokens that it is lent, and closes it.
type cycler struct {
	*desk
	handle uint32
	tokens fixed.Amount // lent in all
}

func (c *cycler) open(id lease.ResourceID) *account {
	c.handle++
	c.report(anna, lease.Demand{Handle: c.handle, Resource: id, Rate: amount(1000)})
	return c.c.sessions[anna].accounts[c.handle]
}

func (c *cycler) cycle(id lease.ResourceID, unused fixed.Amount) {
	a := c.open(id)
	h := a.Held()
	returned := a.Granted
	if returned.Tokens = min(unused, h.Tokens); a.Lease == 0 {
		returned = lease.Capacity{}
	}
	c.tokens += h.Tokens - returned.Tokens
	c.report(anna, lease.Demand{Handle: c.handle, Lease: a.Lease, Returned: returned, AckedGrant: c.acked[anna], Closed: true})
}

var ownTerms = lease.Terms{Rate: 10 * fixed.Token, Burst: 100 * fixed.Token, Allocation: fairshare.Static}

// TestOwnLimitIsClosedAndOpened: an instance that closes a limit of its own and opens it again has one bucket of
// it: after a pause in which the coordinator has forgotten the limit, after others were closed, and after a
// change of the limit. What it returns unused it has again.
func TestOwnLimitIsClosedAndOpened(t *testing.T) {
	for name, between := range map[string]func(d *cycler){
		"at once":        func(*cycler) {},
		"after a second": func(d *cycler) { d.pass(time.Second, anna) },
		"after others":   func(d *cycler) { d.cycle(lease.ResourceID{Limit: "l", Key: "other"}, 100*fixed.Token) },
		"with another rate": func(d *cycler) {
			d.terms["l"] = lease.Terms{Rate: 5 * fixed.Token, Burst: 100 * fixed.Token, Allocation: fairshare.Static}
		},
		"with a smaller burst": func(d *cycler) {
			d.terms["l"] = lease.Terms{Rate: 10 * fixed.Token, Burst: 50 * fixed.Token, Allocation: fairshare.Static}
		},
		"returning what is left": nil,
	} {
		t.Run(name, func(t *testing.T) {
			d := &cycler{desk: newDesk(t, ownTerms)}
			begin, unused := d.now, fixed.Amount(0)
			if between == nil {
				between, unused = func(*cycler) {}, 30*fixed.Token
			}
			for range 20 {
				between(d)
				d.cycle(theLimit, unused)
			}
			most := 100*fixed.Token + fixed.Amount(d.now-begin).Scale(10*fixed.Token, fixed.Amount(time.Second))
			if d.tokens > most {
				t.Errorf("%v tokens in %v, of a burst of 100 and 10/s", d.tokens, time.Duration(d.now-begin))
			}
			if least := most - 60*fixed.Token; d.tokens < least && name != "with a smaller burst" && name != "with another rate" {
				t.Errorf("%v tokens in %v, want %v at least", d.tokens, time.Duration(d.now-begin), least)
			}
		})
	}
}
