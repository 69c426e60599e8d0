package redis

import (
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// lane is a line of operations of which one batch is under way at a time. What
// arrives meanwhile makes the next batch, so a key costs one call for each round
// trip however many requests it has, and a lone request waits for nothing.
//
// A key is always in the same lane, or its call would not be the only one.
type lane struct {
	store   *Store
	breaker *breaker

	mu      sync.Mutex
	pending []*operation
	busy    bool // a goroutine sends

	// The rest belongs to the goroutine that sends.
	taken   []*operation
	batches []*batch
	clocks  map[uint16]serverClock // by slot
}

// soloLanes is how many lanes there are to one server. Two: while one waits for
// the server the other can fill. Not more: a request over several limits goes by the
// lane of its first key, so a key may have as many calls under way.
const soloLanes = 2

// clusterLanes is how many lanes share the slots of a Cluster. Not fewer: those of
// a lane share a breaker and wait for each other, so few should have two masters
// among them. Not more: the fewer operations meet in a batch.
const clusterLanes = 64

func (s *Store) laneCount() int {
	if s.opts.Topology == Cluster {
		return clusterLanes
	}
	return soloLanes
}

var laneSeed = maphash.MakeSeed()

// laneOf returns the lane of a key, and its slot: 0 where there is one server.
func (s *Store) laneOf(key string) (*lane, uint16) {
	if s.opts.Topology == Cluster {
		n := slot(key)
		return &s.lanes[n/(slots/clusterLanes)], n
	}
	return &s.lanes[maphash.String(laneSeed, key)%soloLanes], 0
}

// serverClock relates the server's clock to this process's.
type serverClock struct {
	server int64 // microseconds, when it ran the script
	sent   int64 // nanoseconds, before that
}

// enqueue lets the operation be decided. It ends it, sooner or later.
func (l *lane) enqueue(o *operation) {
	l.mu.Lock()
	l.pending = append(l.pending, o)
	start := !l.busy
	l.busy = true
	l.mu.Unlock()
	if start && !l.store.start(l.send) {
		l.send() // the store is closed: all of it fails at once
	}
}

// send sends batches until nothing is pending.
func (l *lane) send() {
	for {
		l.mu.Lock()
		l.pending, l.taken = l.taken[:0], l.pending
		if len(l.taken) == 0 {
			l.busy = false
			l.mu.Unlock()
			return
		}
		l.mu.Unlock()
		l.serve(l.taken)
		clear(l.taken)
	}
}

// serve decides the operations, in as many batches as it takes.
func (l *lane) serve(ops []*operation) {
	for len(ops) > 0 {
		if err := l.store.down(l.breaker); err != nil {
			for _, o := range ops {
				o.err = err
				o.end()
			}
			return
		}
		used, rest := l.fill(ops)
		if used > 0 {
			l.exchange(l.batches[:used], true)
		}
		ops = ops[rest:]
	}
}

// fill makes a batch for each slot of as many operations as fit, and says how many
// batches and operations that are.
func (l *lane) fill(ops []*operation) (used, rest int) {
	cluster := l.store.opts.Topology == Cluster
	for i, o := range ops {
		var n uint16
		if cluster {
			n = slot(o.parts[0].key)
		}
		var b *batch
		for _, have := range l.batches[:used] {
			if have.slot == n {
				b = have
			}
		}
		if b == nil {
			b = l.batch(used)
			b.slot = n
			used++
		}
		if o.stage.Load() == stageAbandoned {
			o.release()
			continue
		}
		if !b.accept(o) {
			return l.compact(used), i
		}
		if !o.begin() {
			b.ops = b.ops[:len(b.ops)-1]
			o.release()
		}
	}
	return l.compact(used), len(ops)
}

// compact moves the batches that have operations to the front.
func (l *lane) compact(used int) (n int) {
	for i := range used {
		if len(l.batches[i].ops) > 0 {
			l.batches[i], l.batches[n] = l.batches[n], l.batches[i]
			n++
		}
	}
	return n
}

// batch returns the i-th batch, empty.
func (l *lane) batch(i int) *batch {
	if i == len(l.batches) {
		l.batches = append(l.batches, new(batch))
	}
	l.batches[i].reset()
	return l.batches[i]
}

// exchange runs the script for each batch and ends its operations. With again,
// batches that another policy's states, or a clock, stood in the way of run once
// more, and one that failed for a reason of its own runs operation by operation, so
// that a key which is not ours does not spoil the others.
func (l *lane) exchange(batches []*batch, again bool) {
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
				l.finish(b)
			case err == nil && attempt < attempts && ctx.Err() == nil:
				unfinished = append(unfinished, b)
			case err == nil:
				l.fail(b, fmt.Errorf("redis: %w: other processes keep changing the policy of its states", store.ErrUnavailable))
			case again && len(b.ops) > 1 && !infrastructure(err):
				l.separate(b)
			default:
				l.fail(b, l.blame(err, sent, b.buckets[0].key))
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
		if c, ok := l.clocks[b.slot]; ok && s.now == nil {
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
	if l.clocks == nil {
		l.clocks = make(map[uint16]serverClock)
	}
	l.clocks[b.slot] = serverClock{now, sent}
	switch out {
	case decided:
		s.denials.learn(b, now, sent, received)
	case late:
		s.stats.late.Add(1)
	}
	return out, nil
}

func (l *lane) finish(b *batch) {
	for _, o := range b.ops {
		o.end()
	}
}

func (l *lane) fail(b *batch, err error) {
	for _, o := range b.ops {
		o.err = err
		o.end()
	}
}

// separate runs each operation of a batch on its own.
func (l *lane) separate(b *batch) {
	one := new(batch)
	one.slot = b.slot
	for _, o := range b.ops {
		one.reset()
		one.accept(o)
		l.exchange([]*batch{one}, false)
	}
}

// blame makes a call's failure an error for its callers, and the breaker's affair
// when it is not that of a single key.
func (l *lane) blame(err error, sent int64, key string) error {
	l.store.stats.failures.Add(1)
	if errors.Is(err, context.DeadlineExceeded) {
		l.store.stats.timeouts.Add(1)
	}
	err = describe(err, l.store.opts)
	if infrastructure(err) {
		l.breaker.failed(err, sent, key)
	} else {
		l.store.health.odd(l.store, err)
	}
	return fmt.Errorf("redis: %w: %w", store.ErrUnavailable, err)
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
		if len(e.Error()) >= len(word) && e.Error()[:len(word)] == word {
			return true
		}
	}
	return false
}
