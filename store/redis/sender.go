package redis

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// sender sends batches of a lane, one after the other.
type sender struct {
	lane    *lane
	ops     []*operation // under way; changed with the lane's mutex held
	ended   []*operation // of the exchange before
	claims  []*claim
	batches []*batch
}

// work sends batches until there is nothing to send.
func (x *sender) work() {
	l := x.lane
	for l.mu.Lock(); ; l.mu.Lock() {
		if x.choose(); len(x.ops) == 0 {
			l.rest(x)
			l.mu.Unlock()
			return
		}
		var y *sender
		if len(l.ready) > 0 && len(l.working) < l.trips.atOnce() {
			y = l.wake() // for what does not fit in one run
		}
		l.mu.Unlock()
		if y != nil && !l.store.start(y.work) {
			y.work()
		}
		x.serve()
	}
}

// choose takes ready operations, as many as one run of the script may have, and claims their
// keys. Abandoned operations are dropped. mu is held.
func (x *sender) choose() {
	l := x.lane
	buckets, n := 0, 0
	for _, o := range l.ready {
		if len(x.ops) > 0 && (buckets+len(o.parts) > maxBuckets || len(x.ops) >= maxOperations) {
			break
		}
		n++
		if o.stage.Load() == stageAbandoned || l.park(o, x) || !o.begin() {
			continue
		}
		x.ops = append(x.ops, o)
		buckets += x.claim(o)
	}
	rest := copy(l.ready, l.ready[n:])
	clear(l.ready[rest:])
	l.ready = l.ready[:rest]
}

// claim claims the keys of an operation and returns how many it has added.
func (x *sender) claim(o *operation) (added int) {
	l := x.lane
	if l.busy == nil {
		l.busy = make(map[string]*claim)
	}
	for i := range o.parts {
		p := &o.parts[i]
		if l.busy[p.key] != nil {
			continue
		}
		c := new(claim)
		if n := len(l.spare); n > 0 {
			c, l.spare = l.spare[n-1], l.spare[:n-1]
		}
		c.by, c.rule, c.key = x, p.rule, p.key
		l.busy[p.key] = c
		x.claims = append(x.claims, c)
		added++
	}
	return added
}

// free ends the claims, queues the operations that waited for them first, and moves the
// operations to ended.
func (x *sender) free() {
	l := x.lane
	l.mu.Lock()
	defer l.mu.Unlock()
	x.ops, x.ended = x.ended[:0], x.ops
	waited := 0
	for _, c := range x.claims {
		waited += len(c.waiting)
	}
	if waited > 0 {
		l.ready = slices.Grow(l.ready, waited)[:len(l.ready)+waited]
		copy(l.ready[waited:], l.ready)
		waited = 0
	}
	for i, c := range x.claims {
		waited += copy(l.ready[waited:], c.waiting)
		delete(l.busy, c.key)
		clear(c.waiting)
		*c = claim{waiting: c.waiting[:0]}
		if cap(c.waiting) > maxOperations {
			c.waiting = nil // or each would grow to the size of the longest queue in time
		}
		l.spare = append(l.spare, c)
		x.claims[i] = nil
	}
	x.claims = x.claims[:0]
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
	// Free the keys before the callers go on: their next requests need not wait then.
	x.free()
	for i, o := range x.ended {
		x.ended[i] = nil
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
			// Cannot happen: claims prevent it.
			o.err = errAnswer
		}
	}
	return x.batches[:used]
}

// exchange runs the script for each batch and sets the results of its operations. Batches with
// states of another policy, or that ran too late, run again. With again, a batch that failed by
// a fault of one key runs operation by operation, so that a key of another type does not fail
// the others.
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
				err := errPolicies
				if out == late {
					err = errLate
				}
				b.fail(l.blame(err, sent, b))
			case again && len(b.ops) > 1 && !infrastructure(err) && !errors.Is(err, errAnswer) && !errors.Is(err, errDisagree):
				// The script stopped before it wrote.
				x.separate(b)
			default:
				b.fail(l.blame(err, sent, b))
			}
		}
		left = unfinished
	}
}

// run runs the script for each batch.
func (l *lane) run(ctx context.Context, batches []*batch, sent int64) []reply {
	s := l.store
	keys, args, voids := make([][]string, len(batches)), make([][]string, len(batches)), make([]int64, len(batches))
	for i, b := range batches {
		var void int64
		l.mu.Lock()
		c, ok := l.clocks[b.slot]
		if !ok {
			// Most likely another slot of the lane is at the same server. If not, and the
			// clocks differ, the script runs twice.
			for _, c = range l.clocks {
				ok = true
				break
			}
		}
		if b.back = l.back; b.back > 0 && sent >= l.backTo {
			l.back, b.back, l.stepped = 0, 0, nil
		}
		if b.back > 0 {
			l.passStepped(b)
		}
		l.mu.Unlock()
		if ok && s.now == nil {
			// The server's clock shows at most this at the time-out. A call that the server
			// runs later, because it stood still, was decided without it by then and must not
			// count.
			void = c.server + (sent-c.sent+int64(s.opts.Timeout))/1000
		}
		var now limit.Time
		if s.now != nil {
			now = s.now()
		} else if s.serverNow != nil {
			now = s.serverNow()
		}
		clock := now
		switch {
		case now != 0:
		case ok:
			clock = max(b.seen, limit.Time(c.server*1000+sent-c.sent))
		default:
			clock = max(b.seen, s.wall())
		}
		keys[i], args[i] = b.encode(now, clock, void, s.hold, s.channel())
		voids[i] = void
		s.stats.called(len(b.ops))
	}
	return s.runs(ctx, batches, keys, args, voids)
}

// runs runs the script for each batch.
func (s *Store) runs(ctx context.Context, batches []*batch, keys, args [][]string, void []int64) []reply {
	if s.server != nil {
		return s.server(ctx, batches, void)
	}
	replies := make([]reply, len(batches))
	for i, r := range runScript(ctx, *s.client.Load(), keys, args) {
		answer, err := r.ToArray()
		if replies[i].err = err; err == nil {
			replies[i].read(answer, batches[i].scalars)
		}
	}
	return replies
}

// take reads the answer for one batch.
func (l *lane) take(b *batch, r reply, sent int64) (outcome, error) {
	s := l.store
	if r.err != nil {
		return 0, r.err
	}
	received := s.clock()
	l.breaker.succeeded(received)
	s.stats.trip(time.Duration(received - sent))
	now := r.now
	out, err := b.accepts(r)
	if err != nil {
		return 0, err
	}
	l.mu.Lock()
	if l.clocks == nil {
		l.clocks = make(map[uint16]serverClock)
	}
	clock := serverClock{now, sent}
	if before, ok := l.clocks[b.slot]; ok && s.now == nil {
		expected := before.server + (sent-before.sent)/1000
		l.compare(expected, now, received)
		if ahead := now - expected; ahead >= 0 && ahead <= (received-sent)/1000 {
			// The server read its clock between sent and received, so the former reading still
			// holds, and it took less time to arrive.
			clock = before
		}
	}
	l.clocks[b.slot] = clock
	l.trips.note(sent, received)
	l.mu.Unlock()
	switch out {
	case decided:
		s.denials.remember(b, now, sent, received)
		if b.back > 0 {
			l.noteStepped(b)
		}
	case late:
		s.stats.late.Add(1)
	}
	return out, nil
}

// clockStep is by how many microseconds a server's clock has to be behind to count as set back.
// Not less: round trips and drift are no steps. Not more: keys are kept only that long after
// they could expire.
const clockStep = int64(time.Second / step)

// compare detects that the server's clock was set back: it shows now and should show expected,
// in microseconds. As long as older states may be ahead of it, the script subtracts the step
// from them; otherwise a key could be refused for the length of the step. mu is held.
func (l *lane) compare(expected, now, received int64) {
	behind := expected - now
	if behind <= clockStep {
		return
	}
	l.stepped = nil
	if l.back = max(l.back, behind); l.backTo < received+behind*1000 {
		l.backTo = received + behind*1000
	}
	l.store.opts.Logger.Warn("the store's clock was set back", "store", l.store.opts.String(), "by", time.Duration(behind)*step)
}

// settles reports whether a batch charges what was admitted without the server.
func (b *batch) settles() bool {
	return slices.ContainsFunc(b.ops, func(o *operation) bool { return o.verb == verbSettle })
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

// blame turns the failure of a call into an error for its callers, and reports it to the breaker
// unless it concerns a single key.
func (l *lane) blame(err error, sent int64, b *batch) error {
	l.store.stats.failures.Add(1)
	if errors.Is(err, context.DeadlineExceeded) {
		l.store.stats.timeouts.Add(1)
	}
	server := infrastructure(err)
	err = describe(err, l.store.opts)
	if server {
		if b.settles() {
			sent = math.MaxInt64 // no request goes to the server before what was admitted without it
		}
		l.breaker.failed(err, sent, b.buckets[0].key)
	} else {
		l.store.health.odd(l.store, err)
	}
	return fmt.Errorf("redis: %w: %w", store.ErrUnavailable, err)
}

// infrastructure reports whether an error concerns the server rather than the value of one key.
func infrastructure(err error) bool {
	if errors.Is(err, errAnswer) || errors.Is(err, errDisagree) || errors.Is(err, errPolicies) {
		return false
	}
	e := (*rueidis.RedisError)(nil)
	if !errors.As(err, &e) || e == rueidis.Nil {
		return true
	}
	for _, word := range []string{"LOADING", "READONLY", "OOM", "MASTERDOWN", "CLUSTERDOWN", "NOAUTH", "NOPERM", "WRONGPASS", "MISCONF", "NOREPLICAS", "BUSY", "TRYAGAIN", "UNKILLABLE"} {
		if strings.HasPrefix(e.Error(), word) {
			return true
		}
	}
	// What the ACL denies within a script, as Redis before 7.2 words it.
	return strings.Contains(e.Error(), "The user executing the script")
}
