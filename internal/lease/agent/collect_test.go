package agent

import (
	"fmt"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/lease"
)

// connectedBench is an instance with one resource whose round trip is known.
func connectedBench(t *testing.T, trip time.Duration) *bench {
	b := newBench(t)
	b.open("first")
	b.step(lease.Tick{})
	b.now = b.now.Add(trip)
	b.answer()
	b.after(time.Minute)
	b.now = b.now.Add(trip)
	b.answer()
	return b
}

func (b *bench) open(key string) (handle uint32) {
	return b.h.Open(b.now, lease.ResourceID{Limit: "l", Key: key}, LeaseOptions{}, bucket.NewBucket(b.h.Deadline()))
}

// TestNewKeyIsAskedForAtOnce: the first request for a key is in one report with its opening, at the time of
// the request. A key without a request is reported soon as well.
func TestNewKeyIsAskedForAtOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	b := connectedBench(t, time.Millisecond)
	handle := b.open("a")
	if r := b.step(lease.Tick{}); r != nil {
		t.Errorf("before a request: %+v", r)
	}
	r := b.step(Starved{handle})
	if r == nil || len(r.Demands) != 1 || r.Demands[0].Resource.Key != "a" || r.Demands[0].Shortfall == 0 {
		t.Fatalf("the first request is reported as %+v", r)
	}
	b.now = b.now.Add(time.Millisecond)
	b.answer(lends(handle, 5, holding(1, 1, 1)))
	b.open("b")
	if list := b.after(lease.MinReportGap); len(list) != 1 {
		t.Errorf("%d reports of a key that is only opened: %+v", len(list), list)
	}
}

// TestStarvedKeyAsksWhenAnswered: a key that is short again asks as soon as its report before is
// answered, however soon that is, and not earlier.
func TestStarvedKeyAsksWhenAnswered(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	b := connectedBench(t, time.Millisecond)
	handle := b.open("a")
	b.step(Starved{handle})
	b.now = b.now.Add(time.Millisecond)
	if r := b.step(Starved{handle}); r != nil {
		t.Errorf("the report is unanswered, and another is sent: %+v", r)
	}
	b.answer(lends(handle, 5, holding(0, 1, 1)))
	b.now = b.now.Add(time.Millisecond)
	if r := b.step(Starved{handle}); r == nil || len(r.Demands) != 1 || r.Demands[0].Shortfall == 0 {
		t.Errorf("answered and short again: %+v", r)
	}
}

// TestReportsAreAsManyAsRoundTrips: what many keys have to report while a report is unanswered goes
// with the next one, when the answer comes. An answer that does not come is waited for no longer than
// MinReportGap, and one from far away not at all.
func TestReportsAreAsManyAsRoundTrips(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	starve := func(b *bench, n int) (reports int) {
		from := len(b.reports)
		for i := range n {
			b.now = b.now.Add(10 * time.Microsecond)
			b.step(Starved{b.open(fmt.Sprint(len(b.reports), "-", i))})
		}
		return len(b.reports) - from
	}
	b := connectedBench(t, time.Millisecond)
	if n := starve(b, 100); n != 1 {
		t.Errorf("%d reports within one round trip", n)
	}
	if r := b.answer(); r == nil || len(r.Demands) != 99 {
		t.Errorf("the answer is followed by %+v, want 99 demands", r)
	}
	sent := b.now
	starve(b, 10)
	if list := b.after(time.Duration(sent.Add(lease.MinReportGap) - b.now)); len(list) != 1 || len(list[0].Demands) < 10 {
		t.Errorf("without an answer: %+v", list)
	}
	if n := starve(connectedBench(t, 50*time.Millisecond), 10); n != 10 {
		t.Errorf("%d reports to one that is far away, want each at once", n)
	}
}
