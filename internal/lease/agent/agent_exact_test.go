package agent

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// TestEverythingComesBack: of a handle that is closed, and of all when the instance goes, rate and
// burst are given back to the last millionth, and the tokens that are left.
func TestEverythingComesBack(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	granted := lease.Capacity{Rate: 50*fixed.Token + 7, Burst: 10 * fixed.Token, Tokens: 10 * fixed.Token}
	for _, leaving := range []bool{false, true} {
		b := newBench(t)
		bucket := bucket.NewBucket(b.h.Deadline())
		handle := b.h.Open(b.now, theLimit, LeaseOptions{}, bucket)
		b.step(lease.Tick{})
		b.answer(lends(handle, 3, granted))
		b.allowed(bucket, 4)
		if leaving {
			r := b.step(Leave{})
			if r == nil || !r.Leaving || b.h.Next() != lease.Never || b.h.Step(b.now, lease.Tick{}) != nil {
				t.Errorf("it goes with %+v", r)
			}
		} else {
			b.h.Close(b.now, handle)
			if r := b.after(time.Second)[0]; len(r.Demands) != 1 || !r.Demands[0].Closed || r.Demands[0].Returned != (lease.Capacity{Rate: granted.Rate, Burst: granted.Burst, Tokens: 6 * fixed.Token}) {
				t.Errorf("it closes with %+v", r)
			}
		}
		if held := b.h.list; len(held) == 1 && (held[0].lease.held().Rate != 0 || held[0].lease.held().Burst != 0) {
			t.Errorf("%+v is held after all", held[0].lease.held())
		}
		if bucket.Remaining(b.now) != 0 || bucket.MaxCost(b.now) != 0 {
			t.Errorf("%d of %d remain", bucket.Remaining(b.now), bucket.MaxCost(b.now))
		}
	}
}

// TestGrantsToAClosedHandle: what was on its way when a handle was closed comes back, whether that is a new lease or more
// of the one there was, and whether the coordinator was told before. Another agent may fill the bucket meanwhile: what it
// has is left alone.
func TestGrantsToAClosedHandle(t *testing.T) {
	const part = 10 * fixed.Token
	for _, c := range []struct{ held, told bool }{{false, false}, {false, true}, {true, false}, {true, true}} {
		b := newBench(t)
		var never bucket.Deadline
		never.Store(int64(lease.Never))
		moved := bucket.NewBucket(&never)
		handle := b.h.Open(b.now, theLimit, LeaseOptions{}, moved)
		b.step(lease.Tick{})
		if c.held {
			b.answer(lends(handle, 3, lease.Capacity{Rate: part, Burst: part, Tokens: part}))
		}
		b.h.Close(b.now, handle)
		moved.Update(b.now, 0, part, part)
		if c.told {
			b.after(time.Second)
		}
		b.answer(lends(handle, 3, lease.Capacity{Rate: 2 * part, Burst: 2 * part, Tokens: 2 * part}))
		var last lease.Demand
		for _, r := range b.after(time.Second) {
			for _, d := range r.Demands {
				last = d
			}
		}
		if last.Handle != handle || !last.Closed || last.Returned.Rate != 2*part || last.Returned.Burst != 2*part {
			t.Errorf("%+v: it ends with %+v", c, last)
		}
		if b.step(Leave{}); moved.Remaining(b.now) != 10 {
			t.Errorf("%+v: of 10 tokens that another agent has lent %d are left", c, moved.Remaining(b.now))
		}
	}
}

// TestTotalsThatGoBack: a grant of less than was granted under the same lease changes nothing,
// whichever of its totals went back.
func TestTotalsThatGoBack(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	granted := lease.Capacity{Rate: 50 * fixed.Token, Burst: 10 * fixed.Token, Tokens: 10 * fixed.Token}
	for _, less := range []lease.Capacity{{Rate: 1}, {Burst: fixed.Token}, {Tokens: 1}} {
		b := newBench(t)
		bucket := bucket.NewBucket(b.h.Deadline())
		handle := b.h.Open(b.now, theLimit, LeaseOptions{}, bucket)
		b.step(lease.Tick{})
		b.answer(lends(handle, 3, granted))
		more := lease.Capacity{Rate: 70 * fixed.Token, Burst: 20 * fixed.Token, Tokens: 20 * fixed.Token}
		if less.Rate > 0 {
			more.Rate = granted.Rate - less.Rate
		}
		if less.Burst > 0 {
			more.Burst = granted.Burst - less.Burst
		}
		if less.Tokens > 0 {
			more.Tokens = granted.Tokens - less.Tokens
		}
		b.answer(lends(handle, 3, more))
		if s := b.h.State(handle); s.Held.Rate != granted.Rate || s.Held.Burst != granted.Burst || bucket.Remaining(b.now) != 10 {
			t.Errorf("%+v is held after a grant of %+v under the same lease, %d remain", s.Held, more, bucket.Remaining(b.now))
		}
	}
}

// TestReconnectedIsNotExtendedBlindly: after a new connection a lease is extended again when the
// coordinator has said something of it, and not by a renewal: it may know nothing of it.
func TestReconnectedIsNotExtendedBlindly(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	b := newBench(t)
	handle := b.h.Open(b.now, theLimit, LeaseOptions{}, bucket.NewBucket(b.h.Deadline()))
	b.step(lease.Tick{})
	share := lends(handle, 3, lease.Capacity{Rate: 50 * fixed.Token, Burst: 10 * fixed.Token, Tokens: 10 * fixed.Token})
	b.answer(share)
	ends := b.h.Deadline().Load()
	b.after(time.Second)
	b.step(Connected{})
	b.answer()
	if got := b.h.Deadline().Load(); got != ends {
		t.Errorf("a renewal extends it by %v", time.Duration(got-ends))
	}
	share.AckedReport = b.reports[len(b.reports)-1].Number
	if b.answer(share); b.h.Deadline().Load() <= ends {
		t.Error("it is not extended when the lease is known")
	}
}
