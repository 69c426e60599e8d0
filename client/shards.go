package client

import (
	"context"
	"slices"
	"strconv"
	"time"

	"google.golang.org/grpc/metadata"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// This file divides the leases among the coordinators of a cluster. Each has a shard of all keys, and
// only the coordinator knows for certain which shard a key is in, since it alone knows by which rules
// two spellings are one key. The client guesses by the values that it was given, and the coordinator
// answers a wrong guess with the right shard.

// ShardHeader is the gRPC metadata in which a client says the shard whose coordinator a stream is
// for, as a decimal number; absent = 0.
const ShardHeader = "stint-shard"

// Sharder is a [Transport] that knows the shard of a resource, from 0 to shards-1.
type Sharder interface {
	Shard(limit, key string, shards int) int
}

// place is where a lease is: the lane, and its handle there.
type place struct {
	lane   *lane
	handle uint32
}

// lane returns the lane that the lease is in.
func (l *leasedLimit) lane() *lane { return l.place.Load().lane }

// demandNow signals to the lane that the lease was found short.
func (l *leasedLimit) demandNow() {
	p := l.place.Load()
	p.lane.starve(p.handle)
}

// lanes returns one lane for each shard.
func (c *Client) lanes() []*lane { return *c.all.Load() }

// laneOf returns the lane in which a resource most likely is. The client's mu is held.
func (c *Client) laneOf(id lease.ResourceID) *lane {
	lanes := c.lanes()
	if len(lanes) == 1 {
		return lanes[0]
	}
	if s, ok := c.opts.Transport.(Sharder); ok {
		return lanes[s.Shard(id.Limit, id.Key, len(lanes))]
	}
	return lanes[id.Shard(len(lanes))]
}

// maxShards bounds what a coordinator may say that there are: each is a stream.
const maxShards = lease.MaxShards

// widen makes lanes for all shards, once it is known how many there are.
func (c *Client) widen(shards int) {
	if shards <= len(c.lanes()) || shards > maxShards {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended || c.group.ctx == nil {
		return
	}
	all := slices.Clone(c.lanes())
	for shard := len(all); shard < shards; shard++ {
		a := newLane(c, shard)
		all = append(all, a)
		c.group.Go(func() { a.run(c.group.ctx) })
	}
	c.all.Store(&all)
}

// move is a lease that a coordinator has sent on to another shard.
type move struct {
	lease *leasedLimit
	shard int
}

const (
	// freeMoves is how often a lease is sent on before it pauses. More than one is not to be
	// expected, unless the coordinators have different versions of the limits.
	freeMoves = 3
	movePause = time.Second
)

// move opens leases in the shards that they were sent on to. They hold nothing.
func (c *Client) move(moves []move) {
	if len(moves) == 0 {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	lanes, now := c.lanes(), c.now()
	for _, m := range moves {
		l := m.lease
		if m.shard >= len(lanes) || c.named[l.id] != l || c.ended || !l.mayMove(now) {
			continue
		}
		from, to := l.lane(), lanes[m.shard]
		if from == to {
			continue
		}
		from.mu.Lock()
		options := from.agent.Options(l.place.Load().handle)
		options.Start = 0 // what it may spend before the first answer it has spent
		moved := from.shut(l)
		if l.touched {
			l.touched, from.touched = false, slices.DeleteFunc(from.touched, func(other *leasedLimit) bool { return other == l })
		}
		from.mu.Unlock()
		if !moved {
			continue
		}
		to.open(l, options)
		from.nudge()
		to.nudge()
	}
}

// mayMove says whether the lease may be sent on at now, and counts it. The client's mu is held.
func (l *leasedLimit) mayMove(now limit.Time) bool {
	if now >= l.moves.at.Add(movePause) {
		l.moves.n = 0
	}
	if l.moves.n == freeMoves {
		return false
	}
	l.moves.n++
	l.moves.at = now
	return true
}

// StreamShard returns the shard that a stream is for, from the context that [Transport.Connect] is
// given.
func StreamShard(ctx context.Context) int {
	md, _ := metadata.FromOutgoingContext(ctx)
	if said := md.Get(ShardHeader); len(said) > 0 {
		if shard, err := strconv.Atoi(said[0]); err == nil {
			return shard
		}
	}
	return 0
}

// withShard says to a transport which shard's coordinator a stream is for.
func withShard(ctx context.Context, shard int) context.Context {
	if shard == 0 {
		return ctx
	}
	return metadata.AppendToOutgoingContext(ctx, ShardHeader, strconv.Itoa(shard))
}
