package agent

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/lease"
)

// TestLowerEpoch: an instance that hears a lower epoch takes nothing, and soon tells of the
// higher one.
func TestLowerEpoch(t *testing.T) {
	b := newBench(t)
	b.epoch = 7
	bucket := bucket.NewBucket(b.h.Deadline())
	handle := b.h.Open(b.now, theLimit, LeaseOptions{}, bucket)
	b.after(20 * time.Millisecond)
	b.answer(lends(handle, 5, holding(60, 60, 60)))
	high := b.h.Epoch()
	b.after(time.Second) // nothing is due for a while
	before, held := b.h.reports.number, b.h.State(handle).Held
	g := lease.Grant{To: b.h.opts.Member, Epoch: high - 1, Number: 1, Echo: time.Duration(b.now), Lease: lease.DefaultLease, Shares: []lease.Share{lends(handle, 6, holding(100, 100, 100))}}
	b.h.Step(b.now, &g)
	if b.h.State(handle).Held != held || b.h.LowerEpoch() != high-1 || b.h.Epoch() != high {
		t.Errorf("a grant of a lower epoch: %+v, lower epoch %d", b.h.State(handle).Held, b.h.LowerEpoch())
	}
	b.after(lease.DefaultRefresh / 4)
	if b.h.reports.number == before || b.h.reports.last.Epoch != high {
		t.Errorf("%d reports in %v after a lower epoch was heard, the last of epoch %d", b.h.reports.number-before, lease.DefaultRefresh/4, b.h.reports.last.Epoch)
	}
	// One that never learns is not told at the rate of its answers.
	before = b.h.reports.number
	for range 100 {
		b.h.Step(b.now, &g)
		b.after(time.Millisecond)
	}
	if n := b.h.reports.number - before; n > 2 {
		t.Errorf("%d reports in 100 ms", n)
	}
	b.h.Step(b.now, &lease.Grant{To: b.h.opts.Member, Epoch: high + 1, Number: 1, Echo: time.Duration(b.now), Lease: lease.DefaultLease})
	if b.h.LowerEpoch() != 0 || b.h.Epoch() != high+1 {
		t.Errorf("after a higher epoch the lower one is %d", b.h.LowerEpoch())
	}
}
