// Package admission decides which requests a server runs, which wait and which are turned away.
//
// It is a state machine: it has no clock, no goroutine and no lock. Its owner passes the time
// in, in nanoseconds of any clock, above 0 and never going back, tells it of each request's
// arrival and end, and steps it at the time that [Machine.Next] returns. Package throttle is the
// owner in a server, and the simulator in virtual time.
//
// What it holds:
//
//  1. A request is refused for want of room only if the eviction of all that are lower would not
//     make room, or if its key has its share of the queue (see share). It is evicted only for one
//     that is higher, while none lower waits. Higher is the class, then the level. Among equals
//     the newest goes.
//  2. Each request has exactly one outcome: it starts, is refused, is evicted, expires, or is
//     taken back by its caller.
//  3. The number and the cost of waiting requests never exceed their bounds. A request that is
//     dearer than the bound counts as the bound: it waits alone.
//  4. In any time T at most burst + rate x T of cost starts, what was refunded taken off and what
//     was surcharged added; a request that is dearer than the burst starts when the bucket is
//     full, and those behind it wait until its debt is paid.
//  5. A higher class is served first, inside it keys are served fairly by cost, and the requests
//     of a key in their order. A request whose cost the bucket has to save lets cheaper ones of
//     other keys pass, until they are ahead by that cost.
package admission

import (
	"math"

	"github.com/stint-io/stint/internal/waitline"
	"github.com/stint-io/stint/limit"
)

// Config says what a Machine holds. It is not checked: package throttle does that.
type Config struct {
	Rate        float64 // CPU nanoseconds per nanosecond; 0 = no bound
	Burst       int64   // CPU nanoseconds that may start at once
	Concurrency int     // most that run; 0 = no bound
	Floor       int     // the limit of running requests follows the server from here to Concurrency; 0 = it is constant
	MaxWaiting  int     // most that wait
	MaxCost     int64   // most cost that waits; 0 = no bound
	MaxWait     int64   // longest wait; 0 = no bound
	NewestFirst bool    // while overloaded the newest request of a key is served first
}

// Machine is the state. It is not safe for concurrent use.
type Machine struct {
	config  Config
	levels  levels
	classes [Classes]class
	waiting int
	cost    int64 // of those that wait, each at most MaxCost
	shares  int   // the square root of MaxWaiting: 1/shares of the queue is a key's in any case

	running  int
	bucket   bucket
	times    times
	follower follower

	expirations waitline.Alarms
	ended       []*Item
	overloaded  bool // somebody did not get in or waited too long since the queue was last empty
}

// New returns a Machine without requests.
func New(c Config) *Machine {
	if c.Concurrency <= 0 {
		c.Concurrency = math.MaxInt
	}
	if c.MaxCost <= 0 {
		c.MaxCost = math.MaxInt64
	}
	if c.MaxWait <= 0 {
		c.MaxWait = waitline.Never
	}
	m := &Machine{config: c, bucket: bucket{rate: c.Rate, burst: c.Burst, empty: math.MinInt64 / 2}}
	m.shares = max(1, int(math.Sqrt(float64(c.MaxWaiting))))
	m.times.routes = map[uint64]*routeTime{}
	m.follower.init(c.Floor, c.Concurrency)
	for i := range m.classes {
		m.classes[i].flows = map[uint64]*flow{}
	}
	return m
}

// Offer brings a request. It is Running, Waiting, Refused or Expired after it.
func (m *Machine) Offer(now int64, it *Item) {
	it.Cost, it.arrived, it.latest = max(it.Cost, 1), now, waitline.Never
	m.Step(now)
	if m.top() < int(it.Class) && m.fits(now, it.Cost) {
		m.start(now, it)
		return
	}
	if it.Deadline != waitline.Never {
		it.latest = it.Deadline - m.times.least(it)
	}
	switch {
	case it.latest != waitline.Never && m.earliest(now, it) > it.latest:
		it.end(Refused, limit.ReasonDeadline)
		m.lost()
		return
	case m.hasShare(it) || !m.makeRoom(it):
		it.end(Refused, limit.ReasonQueueFull)
		m.lost()
		return
	}
	m.push(now, it)
	m.serve(now, it)
}

// Step ends waits that have lasted too long and starts what may start.
func (m *Machine) Step(now int64) {
	for {
		at, of := m.expirations.First()
		if at > now {
			break
		}
		it := of.(*Item)
		m.remove(it)
		m.lost()
		if now-it.arrived >= m.config.MaxWait {
			it.end(Expired, limit.ReasonQueueTimeout)
		} else {
			it.end(Expired, limit.ReasonDeadline)
		}
		m.ended = append(m.ended, it)
	}
	m.follower.tick(now)
	m.serve(now, nil)
}

// Leave takes a request out that its caller does not wait for any more. It reports whether it
// was waiting.
func (m *Machine) Leave(now int64, it *Item) bool {
	if it.state != Waiting {
		return false
	}
	m.remove(it)
	it.end(Left, limit.ReasonNone)
	m.Step(now)
	return true
}

// Charge says what a running request has cost so far. What is above its prediction is charged
// at once.
func (m *Machine) Charge(now int64, it *Item, soFar int64) {
	if it.state == Running && soFar > it.charged {
		m.settle(now, it, soFar)
	}
}

// Finish ends a running request. cost is what it has cost: the difference to what was charged
// is refunded or surcharged. sound says that its service time is that of a request that ran to
// its end, and may teach the limit.
func (m *Machine) Finish(now int64, it *Item, cost int64, sound bool) {
	if it.state != Running {
		return
	}
	m.settle(now, it, max(cost, 0))
	it.end(Finished, limit.ReasonNone)
	var r *routeTime
	if sound {
		r = m.times.observe(it, now-it.started)
	}
	m.follower.observe(it, r, now-it.started, &m.times)
	m.running--
	m.Step(now)
}

// lost records that a request did not get in or waited too long.
func (m *Machine) lost() {
	m.overloaded = m.waiting > 0
	m.follower.lost = true
}

func (m *Machine) settle(now int64, it *Item, cost int64) {
	more := cost - it.charged
	m.bucket.charge(now, more)
	m.classes[it.Class].settle(it.Key, more, m.config.MaxWaiting)
	it.charged = cost
}

// Ended returns the requests whose wait has ended since the last call: they are Running, Evicted
// or Expired. The slice is valid until the Machine is used again. A request whose state is not
// Waiting after the Offer that brings it is not among them.
func (m *Machine) Ended() []*Item {
	ended := m.ended
	m.ended = m.ended[:0]
	return ended
}

// Next is when the Machine has to be stepped, if nothing happens before; waitline.Never without
// a time.
func (m *Machine) Next() int64 {
	at, _ := m.expirations.First()
	if m.follower.probing && m.waiting > 0 {
		at = min(at, m.follower.until)
	}
	if m.bucket.rate > 0 && m.running < m.follower.limit() {
		if it := m.next(); it != nil {
			at = min(at, m.bucket.ready(it.Cost))
			if other := m.passes(it); other != nil {
				at = min(at, m.bucket.ready(other.Cost))
			}
		}
	}
	return at
}

// top returns the highest class that has a waiting request; -1 without one.
func (m *Machine) top() int {
	if m.waiting == 0 {
		return -1
	}
	for i := Classes - 1; i >= 0; i-- {
		if m.classes[i].waiting > 0 {
			return i
		}
	}
	return -1
}

// next returns the request that is served next, or nil.
func (m *Machine) next() *Item {
	top := m.top()
	if top < 0 {
		return nil
	}
	return m.classes[top].next(m.newest())
}

func (m *Machine) newest() bool { return m.config.NewestFirst && m.overloaded }

// fits says whether a request of that cost may start.
func (m *Machine) fits(now, cost int64) bool {
	if m.running >= m.follower.limit() {
		m.follower.reached = true
		return false
	}
	if m.bucket.rate == 0 {
		return true
	}
	m.bucket.trim(now)
	return m.bucket.ready(cost) <= now
}

// passes returns the request that may pass first, or nil. The newest first is no order in which
// others could pass.
func (m *Machine) passes(first *Item) *Item {
	if m.bucket.rate == 0 || m.newest() {
		return nil
	}
	return m.classes[first.Class].passes(first)
}

// serve starts what may start. offered is being offered: its owner sees its state itself.
func (m *Machine) serve(now int64, offered *Item) {
	for m.waiting > 0 {
		it := m.next()
		if !m.fits(now, it.Cost) {
			if it = m.passes(it); it == nil || !m.fits(now, it.Cost) {
				return
			}
		}
		m.classes[it.Class].serve(it)
		m.remove(it)
		m.start(now, it)
		if it != offered {
			m.ended = append(m.ended, it)
		}
	}
}

func (m *Machine) start(now int64, it *Item) {
	m.bucket.charge(now, it.Cost)
	it.started, it.charged = now, it.Cost
	it.end(Running, limit.ReasonNone)
	m.running++
	m.follower.begin(it, m.running)
}

func (m *Machine) push(now int64, it *Item) {
	it.end(Waiting, limit.ReasonNone)
	cost := min(it.Cost, m.config.MaxCost)
	m.levels.push(it, cost)
	m.classes[it.Class].push(it, cost, m.newest())
	m.waiting++
	m.cost += cost
	expires := it.latest
	if m.config.MaxWait != waitline.Never {
		expires = min(expires, waitline.Sum(now, m.config.MaxWait))
	}
	m.expirations.Set(&it.expiration, it, expires)
}

func (m *Machine) remove(it *Item) {
	cost := min(it.Cost, m.config.MaxCost)
	m.levels.remove(it, cost)
	m.classes[it.Class].remove(it, cost, m.config.MaxWaiting)
	m.waiting--
	m.cost -= cost
	it.expiration.Unset()
	if m.waiting == 0 {
		m.overloaded = false
	}
}

// hasShare says whether the key of it has its share of the queue, so that it gets no more:
// otherwise a key that floods the queue shuts out all others of its class that are not of a
// higher level. A key may have as much as is free for its class (a dynamic threshold, as in the
// buffers of switches), so that n keys that flood leave the n+1st part to others. And it may have
// 1/sqrt(MaxWaiting) of the queue in any case: that is far more than one user has at a time, so
// that levels alone decide between ordinary users, and it takes sqrt(MaxWaiting) keys to fill the
// queue. Requests without a key, which is 0, have no share.
func (m *Machine) hasShare(it *Item) bool {
	f := m.classes[it.Class].flows[it.Key]
	if it.Key == 0 || f == nil || f.waiting == 0 {
		return false
	}
	count, cost := 0, int64(0)
	for i := int(it.Class); i < Classes; i++ {
		count += m.classes[i].waiting
		cost += m.classes[i].bounded
	}
	if f.waiting >= max(m.config.MaxWaiting/m.shares, m.config.MaxWaiting-count) {
		return true
	}
	c := m.config.MaxCost
	return c < math.MaxInt64 && f.bounded+min(it.Cost, c) > max(c/int64(m.shares), c-cost)
}

// makeRoom evicts what is lower than it until there is room for it. It evicts nothing and
// returns false where that would not be enough.
func (m *Machine) makeRoom(it *Item) bool {
	cost := min(it.Cost, m.config.MaxCost)
	full := m.waiting >= m.config.MaxWaiting
	if !full && m.cost <= m.config.MaxCost-cost {
		return true
	}
	lowest := m.levels.victim()
	if lowest == nil || lowest.rank() >= it.rank() || !m.levels.hasBelow(it.rank(), m.cost-(m.config.MaxCost-cost)) {
		return false
	}
	for m.waiting >= m.config.MaxWaiting || m.cost > m.config.MaxCost-cost {
		victim := m.levels.victim()
		m.remove(victim)
		victim.end(Evicted, limit.ReasonEvicted)
		m.ended = append(m.ended, victim)
	}
	m.lost()
	return true
}

// Waiting is how many wait.
func (m *Machine) Waiting() int { return m.waiting }

// WaitingCost is what waits, each request at most MaxCost.
func (m *Machine) WaitingCost() int64 { return m.cost }

// Running is how many run.
func (m *Machine) Running() int { return m.running }

// Limit is how many may run now; math.MaxInt without a bound.
func (m *Machine) Limit() int { return m.follower.limit() }
