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

// denials remembers the states of keys that were refused. Takes of other instances only use up
// more, so a cost that such a state refuses is refused by Redis as well until enough time has
// passed. Only a refund or a reset ends a refusal earlier, which are published to every
// instance, or another policy, under which states are not looked up. Policies under which a
// refusal changes the state, because they count it or ban, are always sent to Redis; so are
// permits in flight, which are given back at any time, and rising windows, where what others take
// now is what the next window admits.
type denials struct {
	seed   maphash.Seed
	on     atomic.Bool  // the subscription to refunds and resets of other instances is up
	since  atomic.Int64 // since when it is, on the store's clock
	shards [denialShards]denialShard
}

const (
	denialShards = 64
	// denialsPerShard bounds the memory: 64 x 1024 states of some 300 bytes.
	denialsPerShard = 1024
	// longestDenial is how long a state is used, in nanoseconds. In that time two clocks that
	// differ by 100 parts per million drift apart by 0.1 ms.
	longestDenial = int64(time.Second)
)

type denialShard struct {
	mu     sync.Mutex
	states map[string]denial
	freed  int64 // states of this server time or before must not be used
}

// denial is a state as the server had it.
type denial struct {
	rule           *rule
	state          state
	server         int64 // microseconds on the server's clock
	sent, received int64 // on the store's clock; the server's time was read between them
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

// answer refuses a Take by a remembered state, and reports whether it did.
func (d *denials) answer(s *Store, o *operation) bool {
	if o.verb != verbTake || len(o.parts) != 1 || !d.on.Load() {
		return false
	}
	p := &o.parts[0]
	if p.cost == 0 || p.shadow || !p.rule.kind.scalar() || p.rule.policy.Algorithm == limit.RisingWindow {
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
	// The server's clock shows at least earliest and at most latest. The state must refuse even
	// at latest; the wait counts from earliest, so that a caller that waits as long is not
	// early.
	earliest := limit.Time(known.server*1000 + now - known.received)
	latest := limit.Time(known.server*1000 + now - known.sent)
	after := known.state
	if v := p.rule.take(&after, latest, p.cost, p.terms); v.Allowed || v.Reason == limit.ReasonCost || after != known.state {
		return false
	}
	p.verdict = p.rule.peek(known.state, earliest, p.cost, p.terms)
	roundUp(&p.verdict)
	o.allowed = false
	s.stats.localRefusals.Add(1)
	return !p.verdict.Allowed
}

// remember remembers the states of the keys whose last request was refused.
func (d *denials) remember(b *batch, server, sent, received int64) {
	if !d.on.Load() || sent < d.since.Load() {
		return // a refund or reset since then may have been missed
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
		} else if _, ok := sh.states[k.key]; server > sh.freed && d.on.Load() { // or deaf was called
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

// free forgets the state of a key, and ignores states read at the server's time or before from
// now on.
func (d *denials) free(key string, server int64) {
	sh := d.shard(key)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	sh.freed = max(sh.freed, server)
	delete(sh.states, key)
}

// hear handles a message of another instance: a time and a key.
func (d *denials) hear(message string) {
	at, key, ok := strings.Cut(message, " ")
	if server, err := strconv.ParseInt(at, 10, 64); ok && err == nil {
		d.free(key, server)
	}
}

// listens says that the subscription is up from now on.
func (d *denials) listens(now int64) {
	d.since.Store(now)
	d.on.Store(true)
}

// deaf forgets everything until the subscription is up again.
func (d *denials) deaf() {
	d.on.Store(false)
	for i := range d.shards {
		sh := &d.shards[i]
		sh.mu.Lock()
		clear(sh.states)
		sh.mu.Unlock()
	}
}
