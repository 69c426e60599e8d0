package agent

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// TestThousandsAreConfirmed: a report has a thousand demands at most, whatever there is to tell; the
// rest follows at once, and in the end the coordinator knows that everything was heard.
func TestThousandsAreConfirmed(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const leases = 2500
	b := newBench(t)
	var shares []lease.Share
	for i := range uint32(leases) {
		handle := b.h.Open(b.now, lease.ResourceID{Limit: "l", Key: string(rune('a' + i))}, LeaseOptions{}, bucket.NewBucket(b.h.Deadline()))
		shares = append(shares, lends(handle, uint64(i)+10, lease.Capacity{Rate: fixed.Token, Burst: fixed.Token, Tokens: fixed.Token}))
	}
	opened := map[uint32]bool{}
	for _, r := range b.after(50 * time.Millisecond) {
		if len(r.Demands) > maxDemands {
			t.Fatalf("a report of %d demands", len(r.Demands))
		}
		for _, d := range r.Demands {
			opened[d.Handle] = true
		}
	}
	for i := range shares {
		shares[i].AckedReport = 100
	}
	from := len(b.reports)
	b.answer(shares...)
	b.after(300 * time.Millisecond)
	confirmed := map[uint32]bool{}
	for _, r := range b.reports[from:] {
		if len(r.Demands) > maxDemands {
			t.Fatalf("a report of %d demands", len(r.Demands))
		}
		for _, d := range r.Demands {
			if d.AckedGrant == b.number {
				confirmed[d.Handle] = true
			}
		}
	}
	if len(opened) != leases || len(confirmed) != leases {
		t.Errorf("%d of %d were asked for and %d confirmed", len(opened), leases, len(confirmed))
	}
}
