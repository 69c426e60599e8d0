package redis

import (
	"hash/maphash"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/limit"
)

// denials remembers the states of keys that were refused. What others take only
// makes a key fuller, so a cost that such a state refuses is refused by Redis as
// well, until time has passed; nothing else ends a refusal but a refund or a reset,
// which every instance is told of, or another policy, under which states are not
// looked up. Kinds whose refusals change their state, since they count them or
// ban, always ask, and so do places in flight, which come back at any time.
type denials struct {
	seed   maphash.Seed
	on     atomic.Bool  // refunds and resets elsewhere are heard of
	since  atomic.Int64 // since then, on the store's clock
	shards [denialShards]denialShard
}

const (
	denialShards = 64
	// denialsPerShard bounds the memory: 64 x 1024 states of some 300 bytes.
	denialsPerShard = 1024
	// longestDenial is after how long a state is asked for again. Two clocks
	// that differ by 100 parts in a million are then apart by 0.1 ms.
	longestDenial = int64(time.Second)
)

type denialShard struct {
	mu     sync.Mutex
	states map[string]denial
	freed  int64 // states of this server time or before are of no use
}

// denial is a state as the server had it.
type denial struct {
	rule           *rule
	state          state
	server         int64 // microseconds on the server's clock
	sent, received int64 // the server's moment is between them on the store's clock
}

func (d *denials) init() {
	d.seed = maphash.MakeSeed()
	for i := range d.shards {
		d.shards[i].states = make(map[string]denial)
	}
}

func (d *denials) shard(key string) *denialShard {
	return &d.shards[maphash.String(d.seed, key)%denialShards]
}

// answer decides a Take that is refused by what is remembered, and reports whether
// it is.
func (d *denials) answer(s *Store, o *operation) bool {
	if o.verb != verbTake || len(o.parts) != 1 || !d.on.Load() {
		return false
	}
	p := &o.parts[0]
	if p.cost == 0 || p.shadow || !p.rule.kind.scalar() {
		return false
	}
	sh := d.shard(p.key)
	sh.mu.Lock()
	if len(sh.states) == 0 {
		sh.mu.Unlock()
		return false
	}
	known, ok := sh.states[p.key]
	sh.mu.Unlock()
	if !ok || known.rule != p.rule {
		return false
	}
	now := s.clock()
	if now-known.received > longestDenial {
		return false
	}
	// The server's clock shows at least earliest and at most latest. It must
	// refuse even at the latest; the wait counts from the earliest, so that
	// nobody who waits as long is early.
	earliest := limit.Time(known.server*1000 + now - known.received)
	latest := limit.Time(known.server*1000 + now - known.sent)
	after := known.state
	if v := p.rule.take(&after, latest, p.cost, p.terms); v.Allowed || v.Reason == limit.ReasonCost || after != known.state {
		return false
	}
	p.verdict = p.rule.peek(known.state, earliest, p.cost, p.terms)
	whole(&p.verdict)
	o.allowed = false
	s.stats.localRefusals.Add(1)
	return !p.verdict.Allowed
}

// learn remembers the states of the keys whose last request was refused.
func (d *denials) learn(b *batch, server, sent, received int64) {
	if !d.on.Load() || sent < d.since.Load() {
		return // what was freed meanwhile may not have been heard
	}
	for i := range b.scalars {
		k := &b.buckets[i]
		if !k.taken {
			continue
		}
		sh := d.shard(k.key)
		sh.mu.Lock()
		if !k.refused {
			if len(sh.states) > 0 {
				delete(sh.states, k.key)
			}
		} else if _, ok := sh.states[k.key]; server > sh.freed && d.on.Load() { // or deaf has been here
			if !ok && len(sh.states) >= denialsPerShard {
				for other := range sh.states {
					delete(sh.states, other) // any: it costs one call
					break
				}
			}
			sh.states[k.key] = denial{k.rule, k.state, server, sent, received}
		}
		sh.mu.Unlock()
	}
}

// free forgets what is known of a key up to the server's time, and lets nothing of
// before be learnt later.
func (d *denials) free(key string, server int64) {
	sh := d.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.freed = max(sh.freed, server)
	delete(sh.states, key)
}

// hear reads what another instance says on the channel: a time and a key.
func (d *denials) hear(message string) {
	at, key, ok := strings.Cut(message, " ")
	if server, err := strconv.ParseInt(at, 10, 64); ok && err == nil {
		d.free(key, server)
	}
}

// listens says that refunds and resets are heard of from now on.
func (d *denials) listens(now int64) {
	d.since.Store(now)
	d.on.Store(true)
}

// deaf forgets everything until refunds and resets are heard of again.
func (d *denials) deaf() {
	d.on.Store(false)
	for i := range d.shards {
		sh := &d.shards[i]
		sh.mu.Lock()
		clear(sh.states)
		sh.mu.Unlock()
	}
}
