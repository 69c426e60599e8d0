package redis

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// lane is a line of operations to one server, or to a part of a Cluster. Its senders
// have batches under way; what arrives meanwhile makes the next. No key is in two
// batches at a time: requests for a key that is under way wait for its answer and
// then go together, so a key costs one call for each round trip however many ask for
// it.
type lane struct {
	store   *Store
	breaker *breaker

	mu      sync.Mutex
	ready   []*operation
	busy    map[string]claim // the keys that are under way
	senders int              // that are at work
	resting []*sender
	clocks  map[uint16]serverClock // by slot
	trips   trips
}

// claim says which sender has a key under way, by which rule, and who waits for it.
type claim struct {
	by      *sender
	rule    *rule
	waiting []*operation
}

// clusterLanes is how many lanes share the slots of a Cluster. Not fewer: those of
// a lane share a breaker and their batches wait for the slowest slot, so few should
// have two masters among them. Not more: the fewer operations meet in a batch.
const clusterLanes = 64

func (s *Store) laneCount() int {
	if s.opts.Topology == Cluster {
		return clusterLanes
	}
	return 1
}

// laneOf returns the lane of a key, and its slot: 0 where there is one server.
func (s *Store) laneOf(key string) (*lane, uint16) {
	if s.opts.Topology == Cluster {
		n := slot(key)
		return &s.lanes[n/(slots/clusterLanes)], n
	}
	return &s.lanes[0], 0
}

// serverClock relates the server's clock to this process's.
type serverClock struct {
	server int64 // microseconds, when it ran the script
	sent   int64 // nanoseconds, before that
}

// enqueue lets operations be decided. It ends them, sooner or later.
func (l *lane) enqueue(ops ...*operation) {
	l.mu.Lock()
	for _, o := range ops {
		if !l.park(o, nil) {
			l.ready = append(l.ready, o)
		}
	}
	var x *sender
	if len(l.ready) > 0 && l.senders < l.trips.atOnce() {
		x = l.wake()
	}
	l.mu.Unlock()
	if x != nil && !l.store.start(x.work) {
		x.work() // the store is closed: all of it fails at once
	}
}

// wake returns a sender that is to work. mu is held.
func (l *lane) wake() *sender {
	l.senders++
	if n := len(l.resting); n > 0 {
		x := l.resting[n-1]
		l.resting = l.resting[:n-1]
		return x
	}
	return &sender{lane: l}
}

// park lets an operation wait for a key of it that is under way, unless by x
// itself and the same rule. It reports false when there is none. mu is held.
func (l *lane) park(o *operation, x *sender) bool {
	if len(l.busy) == 0 {
		return false
	}
	for i := range o.parts {
		p := &o.parts[i]
		if c, ok := l.busy[p.key]; ok && (c.by != x || c.rule != p.rule) {
			c.waiting = append(c.waiting, o)
			l.busy[p.key] = c
			return true
		}
	}
	return false
}

// sender has a lane's batches under way, one after the other.
type sender struct {
	lane    *lane
	ops     []*operation
	keys    []string // claimed
	batches []*batch
}

// work sends batches until there is nothing to send.
func (x *sender) work() {
	l := x.lane
	for l.mu.Lock(); ; l.mu.Lock() {
		if x.choose(); len(x.ops) == 0 {
			l.senders--
			l.resting = append(l.resting, x)
			l.mu.Unlock()
			return
		}
		var y *sender
		if len(l.ready) > 0 && l.senders < l.trips.atOnce() {
			y = l.wake() // for what one run does not bear
		}
		l.mu.Unlock()
		if y != nil && !l.store.start(y.work) {
			y.work()
		}
		x.serve()
		clear(x.ops)
	}
}

// choose takes what is ready, up to what one run of the script bears, and claims
// the keys. Operations that nobody waits for any more go. mu is held.
func (x *sender) choose() {
	l := x.lane
	x.ops = x.ops[:0]
	buckets, n := 0, 0
	for _, o := range l.ready {
		if o.stage.Load() == stageAbandoned {
			n++
			o.release()
			continue
		}
		if len(x.ops) > 0 && (buckets+len(o.parts) > maxBuckets || len(x.ops) >= maxOperations) {
			break
		}
		n++
		if l.park(o, x) {
			continue
		}
		if !o.begin() {
			o.release()
			continue
		}
		x.ops = append(x.ops, o)
		buckets += x.claim(o)
	}
	rest := copy(l.ready, l.ready[n:])
	clear(l.ready[rest:])
	l.ready = l.ready[:rest]
}

// claim claims the keys of an operation and returns how many it has added. Keys
// that another rule of the same operation claims are parted by batch.accept.
func (x *sender) claim(o *operation) (added int) {
	l := x.lane
	if l.busy == nil {
		l.busy = make(map[string]claim)
	}
	for i := range o.parts {
		p := &o.parts[i]
		if _, ok := l.busy[p.key]; !ok {
			l.busy[p.key] = claim{by: x, rule: p.rule}
			x.keys = append(x.keys, p.key)
			added++
		}
	}
	return added
}

// free ends the claims; who waited comes first.
func (x *sender) free() {
	l := x.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	var waited []*operation
	for _, key := range x.keys {
		if c := l.busy[key]; len(c.waiting) > 0 {
			waited = append(waited, c.waiting...)
		}
		delete(l.busy, key)
	}
	clear(x.keys)
	x.keys = x.keys[:0]
	if len(waited) > 0 {
		l.ready = append(waited, l.ready...)
	}
}

// serve decides the chosen operations and ends them.
func (x *sender) serve() {
	l := x.lane
	if err := l.store.down(l.breaker); err != nil {
		for _, o := range x.ops {
			o.err = err
		}
	} else {
		x.exchange(x.fill(), true)
	}
	// The keys are free before the callers hear, or what they ask next would
	// wait for nothing.
	x.free()
	for _, o := range x.ops {
		o.end()
	}
}

// fill makes a batch for each slot.
func (x *sender) fill() []*batch {
	cluster := x.lane.store.opts.Topology == Cluster
	used := 0
	for _, o := range x.ops {
		var n uint16
		if cluster {
			n = slot(o.parts[0].key)
		}
		var b *batch
		for _, have := range x.batches[:used] {
			if have.slot == n {
				b = have
			}
		}
		if b == nil {
			if used == len(x.batches) {
				x.batches = append(x.batches, new(batch))
			}
			b = x.batches[used]
			b.reset()
			b.slot = n
			used++
		}
		if !b.accept(o) {
			// The claims keep from a batch what does not fit into it.
			o.err = errAnswer
		}
	}
	return x.batches[:used]
}

// exchange runs the script for each batch and gives its operations their results. With again,
// batches that another policy's states, or a clock, stood in the way of run once
// more, and one that failed for a reason of its own runs operation by operation, so
// that a key which is not ours does not spoil the others.
func (x *sender) exchange(batches []*batch, again bool) {
	l := x.lane
	s := l.store
	for _, b := range batches {
		b.arrange()
	}
	left := append(make([]*batch, 0, 8), batches...)
	deadline := time.Now().Add(s.opts.Timeout)
	ctx, cancel := context.WithDeadline(s.ctx, deadline)
	defer cancel()
	const attempts = 4 // another process may convert the same states at the same time
	for attempt := 0; len(left) > 0; attempt++ {
		sent := s.clock()
		results := l.run(ctx, left, sent)
		unfinished := left[:0]
		for i, b := range left {
			out, err := l.take(b, results[i], sent)
			switch {
			case err == nil && out == decided:
			case err == nil && attempt < attempts && ctx.Err() == nil:
				unfinished = append(unfinished, b)
			case err == nil:
				b.fail(fmt.Errorf("redis: %w: other processes keep changing the policy of its states", store.ErrUnavailable))
			case again && len(b.ops) > 1 && !infrastructure(err) && !errors.Is(err, errAnswer) && !errors.Is(err, errDisagree):
				// The script stopped before it wrote.
				x.separate(b)
			default:
				b.fail(l.blame(err, sent, b.buckets[0].key))
			}
		}
		left = unfinished
	}
}

// run runs the script for each batch.
func (l *lane) run(ctx context.Context, batches []*batch, sent int64) []rueidis.RedisResult {
	s := l.store
	keys, args := make([][]string, len(batches)), make([][]string, len(batches))
	for i, b := range batches {
		var void int64
		l.mu.Lock()
		c, ok := l.clocks[b.slot]
		if !ok {
			// Another slot of the lane is at the same server, most likely. If
			// not, and the clocks differ, the script runs twice.
			for _, c = range l.clocks {
				ok = true
				break
			}
		}
		l.mu.Unlock()
		if ok && s.now == nil {
			// The server's clock shows at most this when the time-out is over.
			// A call that it runs later, because it stood still, has been
			// answered by then and must not count.
			void = c.server + (sent-c.sent+int64(s.opts.Timeout))/1000
		}
		var now limit.Time
		if s.now != nil {
			now = s.now()
		}
		keys[i], args[i] = b.encode(now, void, s.hold, s.channel())
		s.stats.called(len(b.ops))
	}
	return runScript(ctx, *s.client.Load(), keys, args)
}

// take reads the answer for one batch.
func (l *lane) take(b *batch, r rueidis.RedisResult, sent int64) (outcome, error) {
	s := l.store
	answer, err := r.ToArray()
	if err != nil {
		return 0, err
	}
	received := s.clock()
	l.breaker.succeeded(received)
	s.stats.trip(time.Duration(received - sent))
	now, out, err := b.read(answer)
	if err != nil {
		return 0, err
	}
	l.mu.Lock()
	if l.clocks == nil {
		l.clocks = make(map[uint16]serverClock)
	}
	l.clocks[b.slot] = serverClock{now, sent}
	l.trips.note(sent, received)
	l.mu.Unlock()
	switch out {
	case decided:
		s.denials.learn(b, now, sent, received)
	case late:
		s.stats.late.Add(1)
	}
	return out, nil
}

// fail fails every operation of a batch.
func (b *batch) fail(err error) {
	for _, o := range b.ops {
		o.err = err
	}
}

// separate runs each operation of a batch on its own, in one exchange.
func (x *sender) separate(b *batch) {
	ones := make([]*batch, 0, len(b.ops))
	for _, o := range b.ops {
		one := new(batch)
		one.slot = b.slot
		one.reset()
		one.accept(o)
		ones = append(ones, one)
	}
	x.exchange(ones, false)
}

// blame makes a call's failure an error for its callers, and the breaker's affair
// when it is not that of a single key.
func (l *lane) blame(err error, sent int64, key string) error {
	l.store.stats.failures.Add(1)
	if errors.Is(err, context.DeadlineExceeded) {
		l.store.stats.timeouts.Add(1)
	}
	server := infrastructure(err)
	err = describe(err, l.store.opts)
	if server {
		l.breaker.failed(err, sent, key)
	} else {
		l.store.health.odd(l.store, err)
	}
	return fmt.Errorf("redis: %w: %w", store.ErrUnavailable, err)
}

// trips knows the shortest round trip of the last second or two: what the network
// takes, without the work.
type trips struct {
	now, before int64 // shortest of this second and of the one before; 0 = none
	second      int64
}

func (t *trips) note(sent, received int64) {
	d := max(received-sent, 1)
	if s := received / int64(time.Second); s != t.second {
		t.second, t.before, t.now = s, t.now, d
	}
	t.now = min(t.now, d)
}

// atOnce is how many batches may be under way: one for each 0.1 ms of a round trip.
// Then a request that finds all of them under way waits 0.1 ms or so for its own,
// and not for a whole round trip. Not more: each is a call, which costs the server
// as much as several requests do.
func (t *trips) atOnce() int {
	shortest := t.now
	if t.before > 0 {
		shortest = min(shortest, t.before)
	}
	return int(min(max(shortest/int64(100*time.Microsecond), 1), 16))
}

// infrastructure says whether an error concerns the server rather than what one
// key holds.
func infrastructure(err error) bool {
	if errors.Is(err, errAnswer) || errors.Is(err, errDisagree) {
		return false
	}
	e, ok := rueidis.IsRedisErr(err)
	if !ok {
		return true
	}
	for _, word := range []string{"LOADING", "READONLY", "OOM", "MASTERDOWN", "CLUSTERDOWN", "NOAUTH", "NOPERM", "WRONGPASS", "MISCONF", "NOREPLICAS", "BUSY", "TRYAGAIN", "UNKILLABLE"} {
		if strings.HasPrefix(e.Error(), word) {
			return true
		}
	}
	// What the ACL denies within a script, in Redis before 7.2's words.
	return strings.Contains(e.Error(), "The user executing the script")
}
