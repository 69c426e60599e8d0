package uplink

import (
	"fmt"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
)

// TestFirstRequestTakesOneRoundTripPerLevel: the first request of a key has its token after one round trip for each
// server above, and the moment in which that one gathers reports.
func TestFirstRequestTakesOneRoundTripPerLevel(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for sites := range 4 {
		tr := newTree(t, 1, lease.Terms{Rate: 300 * fixed.Token, Burst: 60 * fixed.Token})
		var parent *node
		for i := range sites {
			parent = tr.addSite(parent, fmt.Sprint("s", i))
		}
		n := tr.addInstances(parent, 1)[0]
		tr.load(n, 50) // of another key
		tr.run(2 * time.Second)
		b, began := bucket.NewBucket(n.agent.Deadline()), tr.now
		handle := n.agent.Open(tr.clock(n), lease.ResourceID{Limit: "l", Key: "k"}, agent.LeaseOptions{}, b)
		b.Allow(tr.clock(n), 1)
		tr.stepAgent(n, agent.Starved{Handle: handle})
		tr.run(time.Duration(sites+1) * (2*tr.delay + 2*time.Millisecond))
		if b.Remaining(tr.clock(n)) < 1 {
			t.Errorf("with %d sites the token is not there after %v", sites, time.Duration(tr.now-began))
		}
	}
}
