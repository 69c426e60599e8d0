package coordinator

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// largeCoordinator has n resources with two instances each, which have acknowledged all grants.
func largeCoordinator(tb testing.TB, n int) (*Coordinator, limit.Time) {
	now := limit.Time(time.Hour)
	c := New(Options{Epoch: 1, Resolve: func(lease.ResourceID) (lease.Terms, lease.Status) { return hundred, lease.StatusOK }}, now)
	leases := map[lease.Member][]uint64{anna: make([]uint64, n), bert: make([]uint64, n)}
	acked := map[lease.Member]uint64{}
	for number := range uint64(2) {
		for _, m := range []lease.Member{anna, bert} {
			for from := 0; from < n; from += 1000 {
				r := &lease.Report{Member: m, Epoch: 1, Number: number*uint64(n) + uint64(from) + 1, Stamp: time.Duration(now)}
				for i := from; i < min(n, from+1000); i++ {
					d := lease.Demand{Handle: uint32(i), Lease: leases[m][i], Rate: 30 * fixed.Token, AckedGrant: acked[m]}
					if d.Lease == 0 {
						d.Resource = lease.ResourceID{Limit: "l", Key: fmt.Sprint(i)}
					}
					r.Demands = append(r.Demands, d)
				}
				c.Step(now, r)
				now = now.Add(2 * time.Millisecond)
				for _, g := range c.Step(now, lease.Tick{}) {
					acked[g.To] = g.Number
					for _, s := range g.Shares {
						leases[g.To][s.Handle] = s.Lease
					}
				}
			}
		}
	}
	if s := c.Stats(); s.Resources != n || s.Instances != 2 || s.Expired != 0 {
		tb.Fatalf("%+v", s)
	}
	return c, now
}

// BenchmarkSweep is what a coordinator does four times a second when nothing happens,
// with 100,000 resources of two instances each; and the memory of one of these.
func BenchmarkSweep(b *testing.B) {
	const n = 100_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	c, now := largeCoordinator(b, n)
	runtime.GC()
	runtime.ReadMemStats(&after)
	for b.Loop() {
		now = now.Add(c.sweepInterval())
		c.Step(now, &lease.Report{Member: anna, Epoch: 1, Number: uint64(now), Stamp: time.Duration(now)})
		c.Step(now, &lease.Report{Member: bert, Epoch: 1, Number: uint64(now), Stamp: time.Duration(now)})
	}
	b.ReportMetric(float64(after.HeapAlloc-before.HeapAlloc)/n, "B/resource")
	if s := c.Stats(); s.Resources != n || s.Expired != 0 {
		b.Fatalf("%+v", s)
	}
}

// BenchmarkExpireAll is the expiry of 10,000 instances of one resource at once, as after
// a pause of the coordinator.
func BenchmarkExpireAll(b *testing.B) {
	const n = 10_000
	for b.Loop() {
		b.StopTimer()
		now := limit.Time(time.Hour)
		c := New(Options{Epoch: 1, Resolve: func(lease.ResourceID) (lease.Terms, lease.Status) { return hundred, lease.StatusOK }}, now)
		for i := range n {
			c.Step(now, &lease.Report{Member: lease.Member{Instance: fmt.Sprint(i), Session: 1}, Number: 1, Stamp: 1, Demands: []lease.Demand{asks(1)}})
		}
		now = now.Add(2 * lease.DefaultLease)
		b.StartTimer()
		c.Step(now, lease.Tick{})
		b.StopTimer()
		if s := c.Stats(); s.Instances != 0 || s.Expired != n {
			b.Fatalf("%+v", s)
		}
		b.StartTimer()
	}
}

// BenchmarkWaitingResources is a renewal while 100,000 resources wait for a token each.
func BenchmarkWaitingResources(b *testing.B) {
	const n = 100_000
	c, now := largeCoordinator(b, n)
	for _, r := range c.list {
		c.scheduleRound(r, now)
		r.due = now.Add(time.Hour)
	}
	for b.Loop() {
		c.Step(now, &lease.Report{Member: anna, Epoch: 1, Number: 1 << 40, Stamp: 1})
		c.Next()
	}
}
