package sim

import (
	"math/bits"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/stint-io/stint/limit"
)

// pushSum gives each of n processes the sum of a value that each has, by gossip: in
// each interval a process sends equal parts of a pair (sum, weight) to a few random
// peers and keeps one part; sum/weight nears the mean everywhere (Kempe and others,
// 2003). It counts in epochs, each of which begins anew with the values of the
// moment: what was lost with a message or a process is forgotten with the epoch. The
// sum is the mean times the number of instances in [Setup], those that are down included. When the
// peers are all others, each sends its value to all directly.
type pushSum struct {
	env    Env
	peers  int // how many get a message in each interval
	n      int
	self   int
	rounds int // intervals in an epoch
	picked []int

	value       float64 // the own, of this moment
	epoch       uint64
	round       int
	sum, weight float64
	began       float64 // own value at the start of the epoch

	others float64 // the sum of all but this one, of the last whole epoch

	direct []pushSumDirect // by instance; nil unless each sends to all
}

type pushSumDirect struct {
	value float64
	at    limit.Time
	known bool
}

// Messages. 48 bytes are an IPv4 and a UDP header and 20 bytes of content: at three
// peers and 50 ms that makes the published 23 Kbps for each limiter.
type (
	pushSumPart struct {
		epoch       uint64
		sum, weight float64
	}
	pushSumValue struct{ value float64 }
)

const pushSumBytes = 48

// pushSumSilence is after how many intervals a directly known peer counts as gone.
const pushSumSilence = 20

// newPushSum begins with others as what the others have.
func newPushSum(env Env, setup Setup, self, peers int, interval time.Duration, value, others float64) *pushSum {
	n := max(1, setup.Instances)
	g := &pushSum{env: env, peers: min(peers, n-1), n: n, self: self, value: value, others: others}
	if n-1 <= peers {
		g.direct = make([]pushSumDirect, n)
		return g
	}
	// Enough to bring the worst skew, all of it at one process, within a percent,
	// while messages take whole intervals to arrive.
	g.rounds = (5 + bits.Len(uint(n))) * (1 + int(setup.RoundTrip/2/interval))
	g.begin(0)
	return g
}

func (g *pushSum) begin(epoch uint64) {
	g.epoch, g.round = epoch, 0
	g.sum, g.weight, g.began = g.value, 1, g.value
}

// tick is called once in each interval, with the own value.
func (g *pushSum) tick(value float64, interval time.Duration) {
	g.value = value
	if g.direct != nil {
		g.tickDirect(interval)
		return
	}
	if g.round >= g.rounds {
		g.finish()
		g.begin(g.epoch + 1)
	}
	g.round++
	part := 1 / float64(g.peers+1)
	g.sum *= part
	g.weight *= part
	for _, peer := range g.pick() {
		g.env.Send(Address(peer), pushSumPart{g.epoch, g.sum, g.weight}, pushSumBytes)
	}
}

func (g *pushSum) finish() {
	g.others = max(0, float64(g.n)*g.sum/g.weight-g.began)
}

func (g *pushSum) tickDirect(interval time.Duration) {
	now := g.env.Now()
	any, sum := false, 0.0
	for i := range g.direct {
		if i == g.self {
			continue
		}
		g.env.Send(Address(i), pushSumValue{g.value}, pushSumBytes)
		d := &g.direct[i]
		if !d.known {
			continue
		}
		any = true
		if d.at.Add(pushSumSilence*interval) > now {
			sum += d.value
		}
	}
	if any {
		g.others = sum
	}
}

// pick returns distinct random peers.
func (g *pushSum) pick() []int {
	g.picked = g.picked[:0]
	for len(g.picked) < g.peers {
		if peer := g.other(g.env.Rand()); !slices.Contains(g.picked, peer) {
			g.picked = append(g.picked, peer)
		}
	}
	return g.picked
}

// other is a random process that is not this one.
func (g *pushSum) other(r *rand.Rand) int {
	peer := r.IntN(g.n - 1)
	if peer >= g.self {
		peer++
	}
	return peer
}

func (g *pushSum) receive(from Address, message any) {
	switch m := message.(type) {
	case pushSumValue:
		if g.direct != nil && from >= 0 && int(from) < g.n {
			g.direct[from] = pushSumDirect{m.value, g.env.Now(), true}
		}
	case pushSumPart:
		if g.direct != nil || m.epoch < g.epoch {
			return
		}
		if m.epoch > g.epoch {
			// A peer is ahead. What this epoch found counts when it was near its end.
			if g.round >= g.rounds*3/4 {
				g.finish()
			}
			g.begin(m.epoch)
		}
		g.sum += m.sum
		g.weight += m.weight
	}
}
