package explore

import (
	"errors"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// The limits of these scenarios refill slowly, so that a bucket that is lent twice is not full again before
// somebody spends it twice.
var (
	// uneven: the second application has little of the bucket, and the first one wants all of it.
	uneven = rule{lease.Terms{Rate: fixed.Token / 2, Burst: 8 * fixed.Token}, [2]fixed.Amount{2 * fixed.Token, fixed.Token / 8}}
	// modest: both want less than there is, so that a part of the bucket is not lent.
	modest = rule{lease.Terms{Rate: fixed.Token / 4, Burst: 16 * fixed.Token}, [2]fixed.Amount{fixed.Token / 64, fixed.Token / 64}}
)

// replicaScenarios are those in which a process has a replica of what the leader knows.
func replicaScenarios() []Scenario {
	return []Scenario{
		{"replica: it is in sync, and nobody holds anything", from(uneven, even, budget{crashes: 1, cuts: 1, follows: 1, leaves: 1, pauses: 1}, inSync), false},
		{"replica, lent: it begins while an instance holds a part", from(modest, slowLeader, budget{crashes: 1, cuts: 1, slows: 1, follows: 1, leaves: 1, pauses: 1}, lentToOne), false},
		{"unconfirmed: a leader died that had told its replica of its first grants", from(uneven, even, budget{cuts: 1}, unconfirmed), false},
		{"drained: a leader died after it had lent all", from(modest, even, budget{cuts: 1}, drained), false},
		{"replica lost: a leader died after its stream to the replica, which the record names", from(modest, even, budget{cuts: 1}, replicaLost), false},
		{"being written: a leader died as it wrote the first record that names the replica", from(modest, even, budget{cuts: 1}, beingWritten), false},
		{"twice: a process leads again, by a record with the replica of the term before", from(uneven, even, budget{cuts: 1}, ledTwice), false},
		{"handed over: a leader resigned, and the next one died", from(modest, even, budget{cuts: 1}, handedOverOnce), false},
		{"bounded: a leader died after it had lent more, and its replica did not have to know it", from(modest, even, budget{cuts: 1}, bounded), false},
		{"risen: a leader died that had gone above a higher epoch, with a replica of before", from(uneven, even, budget{cuts: 1}, risen), false},
		{"known: the holder of all has not come to a successor that knows the buckets", from(uneven, even, budget{cuts: 1, restarts: 1, repeats: 1, asks: 1}, known), false},
		{"recovering: the same, and the successor died as well, before the holder came", from(uneven, even, budget{cuts: 1}, recovered), false},
		{"unclaimed: the leases of a former leader have ended, and nobody has asked since", from(uneven, even, budget{cuts: 1}, unclaimed), false},
	}
}

// inSync: the first process leads, and its record names the replica of the other one.
func inSync(p *play) {
	p.do(elect << 1)
	p.replicate()
	p.do(renew << 1)
}

// replicate has the replica of the first process know everything.
func (p *play) replicate() { p.do(follow<<1, learn<<1, confirm<<1) }

// lentToOne: the first instance holds a part, and the other has not come.
func lentToOne(p *play) {
	p.lead(0)
	p.until(func() bool {
		return p.fleet.spendable(p.instances[0].machine, p.local(p.World, 0)).tokens > 0 && p.quiet()
	}, connect<<1|1)
}

// Requests for a drain: those that get all, and those that get no more than the replica knows.
const (
	all    = 16
	within = 4
)

// drain has the first instance spend all that it can get in so many requests, without its coordinator hearing of
// the replica.
func (p *play) drain(requests int) {
	for range requests {
		p.do(take<<1, moment<<1) // of nothing: it asks for more
		p.quick(0)
	}
}

// unconfirmed: the replica was not told what is lent when the leader died.
func unconfirmed(p *play) {
	inSync(p)
	p.do(connect<<1|1, submit<<1|1, pass<<1, connect<<1, submit<<1, pass<<1, pass<<1)
	p.quick(0)
	p.do(take<<1, crash<<1)
	p.lead(1)
	p.do(restart << 1)
}

// drained: the replica knew what the first instance was lent. Then the other one came, and the first one asked
// for the rest.
func drained(p *play) {
	lentToOne(p)
	p.replicate()
	p.do(renew<<1, connect<<1|1, submit<<1|1, pass<<1, pass<<1)
	p.quick(1)
	p.do(take<<1 | 1)
	p.drain(all)
	p.do(crash << 1)
	p.lead(1)
}

// bounded: the replica began when the first instance held half of the bucket, and it was lent half of the rest
// since.
func bounded(p *play) {
	lentToOne(p)
	p.replicate()
	p.do(renew << 1)
	p.drain(within)
	if p.err == nil && len(p.processes[0].stream.sent) > 0 {
		p.err = errors.New("explore: the replica had to know what was lent")
	}
	p.do(crash << 1)
	p.lead(1)
}

// replicaLost: the instance asked for the rest when the stream had ended.
func replicaLost(p *play) {
	lentToOne(p)
	p.replicate()
	p.do(renew<<1, apart<<1, unfollow<<1)
	p.drain(all)
	p.do(crash << 1)
	p.lead(1)
}

// beingWritten: the instance asked for the rest before the leader knew that the record is written.
func beingWritten(p *play) {
	lentToOne(p)
	p.replicate()
	p.do(send << 1)
	p.drain(all)
	p.do(crash << 1)
	p.lead(1)
}

// ledTwice: what the replica knows is of the first term, in which nothing was sent. In the second one all was lent
// to an instance that is in the record of the first, so it was not written again.
func ledTwice(p *play) {
	inSync(p)
	p.do(connect<<1, submit<<1, pass<<1, pass<<1, crash<<1)
	p.lead(1)
	p.do(connect<<1, submit<<1, apart<<1|1, pass<<1)
	p.quick(0)
	p.do(take<<1, seconds<<1, apart<<1|1, elect<<1|1)
}

// handedOverOnce: the last record of the first leader says what was left, and the second one has lent it since.
func handedOverOnce(p *play) {
	lentToOne(p)
	p.do(resign<<1, elect<<1|1, connect<<1)
	p.quick(0)
	p.drain(all)
	p.do(crash<<1 | 1)
	p.lead(0)
}

// risen: the register lost its record, and a process that began anew leads, with a replica. Then an instance came
// that knows a higher epoch, and was lent everything when recovery was over. Instances that begin anew know no epoch.
func risen(p *play) {
	p.latest = 50
	p.until(func() bool { return p.record.epoch > 50 && p.settled(p.World) && p.quiet() })
	p.setBack()
	p.processes[0].first = true
	for i := range p.processes {
		p.processes[i].follows = false
	}
	inSync(p)
	p.do(connect << 1)
	for range 40 {
		if p.quick(0); !p.recorded(p.World, 0) {
			p.do(renew << 1)
			p.quick(0)
		}
		p.do(pass << 1)
	}
	p.do(take<<1, crash<<1, restart<<1, restart<<1|1)
	p.lead(1)
}

// known: the leader died, and the instance still has its lease.
func known(p *play) {
	lentToOne(p)
	p.replicate()
	p.do(renew<<1, crash<<1)
	p.lead(1)
}

// recovered: the successor died before the instance came to it. A process that would have followed it gets nothing
// from one that recovers.
func recovered(p *play) {
	known(p)
	for _, a := range [...]Action{follow<<1 | 1, learn<<1 | 1, confirm<<1 | 1, renew<<1 | 1} {
		if fault, _ := p.apply(p.World, a); p.err == nil && fault != "" {
			p.err = errors.New(fault)
		}
	}
	p.do(crash<<1 | 1)
	p.lead(0)
}

// unclaimed: the instance was cut off when its leader died, and spent what it had until its lease ended.
func unclaimed(p *play) {
	known(p)
	for n := range 24 {
		if p.do(pass << 1); n == 11 {
			p.do(take << 1)
		}
	}
}
