package coordinator

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// TestColdBurst: a burst that one central bucket would admit is admitted within a few
// milliseconds by an instance that held nothing, although its last token lay in two
// parts, one here and one with the coordinator.
func TestColdBurst(t *testing.T) {
	f := newFleet(t, 1, 1, lease.Terms{Rate: 10 * fixed.Token, Burst: 5 * fixed.Token})
	f.delay = 100 * time.Microsecond
	f.run(time.Second)
	in := f.instances[0]
	for i := range 5 {
		// As a Take does: when it is refused it asks, and looks for what comes.
		was := in.took
		f.arriveOnce(in)
		f.run(4 * time.Millisecond)
		if in.took == was {
			f.arriveOnce(in)
		}
		if in.took == was {
			t.Errorf("number %d was refused: held %v, level %v, pool %+v", i+1, in.agent.State(in.handle).Held, in.bucket.Observe(f.now).Level, f.coord.list[0].Pool)
		}
		f.run(4 * time.Millisecond)
	}
}
