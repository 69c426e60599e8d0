package redis

import (
	"slices"
	"sync"
	"time"
)

// lane is a queue of operations to one server, or to a part of a Cluster. Its senders have
// batches under way; operations that arrive meanwhile make the next batch. No key is in two
// batches at a time: requests for a key that is under way wait for its answer and are then sent
// together, so a key costs one call per round trip however many requests there are.
type lane struct {
	store   *Store
	breaker *breaker

	mu      sync.Mutex
	ready   []*operation
	busy    map[string]*claim // the keys that are under way
	spare   []*claim
	working []*sender
	resting []*sender
	clocks  map[uint16]serverClock // by slot
	trips   trips
	back    int64               // by how many microseconds the server's clock was set back
	backTo  int64               // on the store's clock, when the server's clock has caught up
	stepped map[string]struct{} // keys whose states were corrected for that

	watcher  *time.Timer
	watching bool
}

// claim says which sender has a key under way, by which rule, and which operations wait for it.
type claim struct {
	by      *sender
	rule    *rule
	key     string
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

// laneOf returns the lane of a key.
func (s *Store) laneOf(key string) *lane {
	if s.opts.Topology == Cluster {
		return &s.lanes[slot(key)/(slots/clusterLanes)]
	}
	return &s.lanes[0]
}

// serverClock relates the server's clock to this process's. It is the reading that was sent the
// shortest time before the server read its clock: a later call that was in transit for longer would
// place the server's clock later than it is, and calls of a server that stands still would count for so
// long after their time-out.
type serverClock struct {
	server int64 // microseconds, when it ran the script
	sent   int64 // nanoseconds, before that
}

// enqueue has operations decided. Each is ended sooner or later.
func (l *lane) enqueue(ops ...*operation) {
	l.mu.Lock()
	l.watch()
	for _, o := range ops {
		if !l.park(o, nil) {
			l.ready = append(l.ready, o)
		}
	}
	var x *sender
	if len(l.ready) > 0 && len(l.working) < l.trips.atOnce() {
		x = l.wake()
	}
	l.mu.Unlock()
	if x != nil && !l.store.start(x.work) {
		x.work() // the store is closed: everything fails at once
	}
}

// wake returns a sender, to be started by the caller. mu is held.
func (l *lane) wake() *sender {
	var x *sender
	if n := len(l.resting); n > 0 {
		x, l.resting = l.resting[n-1], l.resting[:n-1]
	} else {
		x = &sender{lane: l}
	}
	l.working = append(l.working, x)
	return x
}

// rest ends a sender's work. mu is held.
func (l *lane) rest(x *sender) {
	l.working = slices.DeleteFunc(l.working, func(y *sender) bool { return x == y })
	l.resting = append(l.resting, x)
}

// park makes an operation wait for one of its keys that is under way, except by x itself with
// the same rule. It returns false when there is none. mu is held.
func (l *lane) park(o *operation, x *sender) bool {
	if len(l.busy) == 0 {
		return false
	}
	for i := range o.parts {
		p := &o.parts[i]
		if c := l.busy[p.key]; c != nil && (c.by != x || c.rule != p.rule) {
			if o.parked++; o.parked == 1 {
				c.waiting = append(c.waiting, o)
				return true
			}
			// It was first in the queue once and parked again. Operations on single keys
			// could keep it from ever finding all of its keys free: it is queued before them,
			// and its other keys are claimed for it.
			at := 0
			for at < len(c.waiting) && c.waiting[at].parked > 1 {
				at++
			}
			c.waiting = slices.Insert(c.waiting, at, o)
			if c.by != x {
				c.by.claim(o)
			}
			return true
		}
	}
	return false
}

// watch starts the timer that ends operations at their deadlines, whatever the connection does.
// One timer serves all callers: one for each would cost as much as the rest of the wait. mu is
// held.
func (l *lane) watch() {
	if l.watching {
		return
	}
	l.watching = true
	if l.watcher == nil {
		l.watcher = time.AfterFunc(l.store.glance(), l.abandonLate)
	} else {
		l.watcher.Reset(l.store.glance())
	}
}

// glance is how often a lane checks for operations past their deadlines: an answer is late by a
// sixteenth of the time-out at most.
func (s *Store) glance() time.Duration { return max(s.opts.Timeout/16, 250*time.Microsecond) }

// abandonLate ends operations past their deadlines, and sets the timer again while there are
// others.
func (l *lane) abandonLate() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now, left := int64(time.Since(l.store.begin)), false
	through := func(ops []*operation) {
		for _, o := range ops {
			switch {
			case o.unattended:
			case now < o.deadline:
				left = true
			case o.abandon():
				o.done <- struct{}{}
			}
		}
	}
	through(l.ready)
	for _, c := range l.busy {
		through(c.waiting)
	}
	for _, x := range l.working {
		through(x.ops)
	}
	l.watching = left
	if left {
		l.watcher.Reset(l.store.glance())
	}
}

// trips is the shortest round trip of the last second or two, which is what the network takes
// without the server's work.
type trips struct {
	now, before int64 // shortest of this second and of the one before; 0 = none
	second      int64
}

func (t *trips) note(sent, received int64) {
	d := max(received-sent, 1)
	if s := received / int64(time.Second); s != t.second {
		t.second, t.before, t.now = s, t.now, d
	}
	if t.now == 0 || d < t.now {
		t.now = d
	}
}

// atOnce is how many batches may be under way: one for each 0.1 ms of a round trip. A request
// that finds all of them under way then waits 0.1 ms or so, not a whole round trip. Not more:
// each batch is a call, which costs the server as much as several requests.
func (t *trips) atOnce() int {
	shortest := t.now
	if t.before > 0 {
		shortest = min(shortest, t.before)
	}
	return int(min(max(shortest/int64(100*time.Microsecond), 1), 16))
}
