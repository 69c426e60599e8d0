package client

import (
	"context"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// TestMovesPause: coordinators with two versions of the limits send a lease to and fro; after three moves it
// stays for a second.
func TestMovesPause(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	l, now := &leasedLimit{}, limit.Time(time.Hour)
	for i, step := range []struct {
		after time.Duration
		may   bool
	}{{0, true}, {0, true}, {time.Millisecond, true}, {0, false}, {999 * time.Millisecond, false}, {time.Millisecond, true}, {0, true}, {0, true}, {0, false}} {
		now = now.Add(step.after)
		if got := l.mayMove(now); got != step.may {
			t.Errorf("move %d: %v", i, got)
		}
	}
}

// TestStreamShard: a transport finds the shard that a lane is for.
func TestStreamShard(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, shard := range []int{0, 1, lease.MaxShards - 1} {
		if got := StreamShard(withShard(context.Background(), shard)); got != shard {
			t.Errorf("%d, want %d", got, shard)
		}
	}
}

// TestTooManyShards: what no coordinator may say makes no lanes, and fewer end none.
func TestTooManyShards(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	c, err := New(Options{Address: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c.group.ctx = ctx
	for _, step := range []struct{ say, want int }{{0, 1}, {1, 1}, {lease.MaxShards + 1, 1}, {3, 3}, {2, 3}, {-1, 3}} {
		if c.widen(step.say); len(c.lanes()) != step.want {
			t.Errorf("%d lanes after %d were said, want %d", len(c.lanes()), step.say, step.want)
		}
	}
	c.group.Wait()
	for i, a := range c.lanes() {
		if a.shard != i {
			t.Errorf("lane %d is of shard %d", i, a.shard)
		}
	}
}

// TestMovedLeaseEndsWithItsLane: what a lease may spend ends at the deadline of the lane that it is in, and
// what it may spend before the first answer is not spent again in the next lane.
func TestMovedLeaseEndsWithItsLane(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	c, err := New(Options{Address: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	c.group.ctx = ctx
	l, err := c.Limit("x", LimitOptions{Start: OptimisticStart(10)})
	if err != nil {
		t.Fatal(err)
	}
	lanes := []*lane{c.lanes()[0], newLane(c, 1)}
	c.all.Store(&lanes)
	for shard, a := range lanes {
		if shard > 0 {
			c.move([]move{{&l.lease, shard}})
			p := l.lease.place.Load()
			if start := a.agent.Options(p.handle).Start; p.lane != a || start != 0 || len(lanes[0].leases) != 0 || a.leases[p.handle] != &l.lease {
				t.Fatalf("it is in lane %d, and starts with %v", p.lane.shard, start)
			}
		}
		for _, other := range lanes {
			other.agent.Deadline().Store(0) // which lend nothing
		}
		now := c.now()
		l.lease.spender.Update(now, fixed.Token, fixed.Whole(10), fixed.Whole(10))
		if l.Allow() {
			t.Errorf("lane %d: it spends after the end of the lease", shard)
		}
		a.agent.Deadline().Store(int64(now.Add(time.Minute)))
		if !l.Allow() {
			t.Errorf("lane %d: it does not spend its lease", shard)
		}
	}
}
