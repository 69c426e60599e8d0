package agent

import (
	"fmt"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/lease"
)

// TestCompleteReport: what follows a new connection or a new epoch has every lease and says so,
// and no later report does. One with a lease that cannot be claimed never says so.
func TestCompleteReport(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	b := newBench(t)
	other := lease.ResourceID{Limit: "other"}
	first := b.h.Open(b.now, theLimit, LeaseOptions{}, bucket.NewBucket(b.h.Deadline()))
	second := b.h.Open(b.now, other, LeaseOptions{}, bucket.NewBucket(b.h.Deadline()))
	if r := b.step(Connected{}); r == nil || !r.Complete || len(r.Demands) != 2 {
		t.Fatalf("the first report is %+v", r)
	}
	both := func(epoch uint64) []lease.Share {
		a, o := lends(first, epoch*10+1, holding(10, 10, 10)), lends(second, epoch*10+2, holding(5, 5, 5))
		a.Token, o.Token = []byte("a"), []byte("o")
		return []lease.Share{a, o}
	}
	b.answer(both(1)...)
	for _, r := range b.after(time.Second) {
		if r.Complete {
			t.Errorf("a report of %d demands is called complete while nothing is claimed", len(r.Demands))
		}
	}
	// The stream breaks.
	r := b.step(Connected{})
	if r == nil || !r.Complete || len(r.Demands) != 2 || r.Demands[0].Lease != 11 || string(r.Demands[1].Claim) != "o" {
		t.Fatalf("after a new connection: %+v", r)
	}
	// It is lost. What is sent again is complete as well, or does not say so.
	again := false
	for _, r := range b.after(time.Second) {
		again = again || r.Complete
		if r.Complete && len(r.Demands) != 2 {
			t.Errorf("%d demands are called complete", len(r.Demands))
		}
	}
	if !again {
		t.Error("a lost report is not made up for")
	}
	// The next coordinator confirms one of the two leases, and says that the other is not known.
	b.epoch = 2
	shares := both(2)
	shares[1] = lease.Share{Handle: second, Status: lease.StatusBadClaim}
	b.answer(shares...)
	b.step(Connected{})
	for _, r := range b.after(time.Second) {
		if r.Complete {
			t.Errorf("with a lease that cannot be claimed: %+v", r)
		}
	}
}

// TestCompleteInSeveralReports: where the leases do not fit into one report, the one that is called
// complete follows when all the others have been acknowledged, and not before.
func TestCompleteInSeveralReports(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	b := newBench(t)
	const n = 2*maxDemands + 10
	shares := map[uint32]lease.Share{}
	for i := range n {
		h := b.h.Open(b.now, lease.ResourceID{Limit: "l", Key: fmt.Sprint(i)}, LeaseOptions{}, bucket.NewBucket(b.h.Deadline()))
		s := lends(h, uint64(i+1), holding(1, 1, 1))
		s.Token = []byte("t")
		shares[h] = s
	}
	grant := func(r *lease.Report) *lease.Report {
		var some []lease.Share
		for i := range r.Demands {
			s := shares[r.Demands[i].Handle]
			s.AckedReport = r.Number
			some = append(some, s)
		}
		return b.grant(r.Stamp, some...)
	}
	for _, r := range b.after(100 * time.Millisecond) {
		grant(&r)
	}
	b.after(2 * time.Second)
	from := len(b.reports)
	b.step(Connected{})
	b.after(20 * time.Millisecond)
	acked := map[uint32]bool{}
	for i := from; i < len(b.reports) && i < from+20; i++ {
		r := b.reports[i]
		for _, d := range r.Demands {
			if !r.Complete {
				acked[d.Handle] = true // it is answered below
			}
		}
		if r.Complete {
			for _, d := range r.Demands {
				acked[d.Handle] = true
			}
			if len(acked) != n {
				t.Errorf("a report is called complete with %d of %d leases", len(acked), n)
			}
			return
		}
		b.now = b.now.Add(time.Millisecond)
		grant(&r)
		b.step(lease.Tick{})
	}
	t.Error("no report is called complete")
}
