package redis

import (
	"math"
	"math/bits"
	"sync"
	"time"

	"github.com/stint-io/stint/limit"
)

// localCharges is what counters in this process admitted while Redis did not answer. It is
// charged to Redis as soon as that answers, whether it fits or not. Otherwise each outage would
// add the local share to the limit, and with a server that stands still for a part of each
// second nearly twice the limit would be admitted.
//
// A bucket refills during an outage, and so do the shares: what is owed at the end is less than
// what was admitted, and depends on when it was. Let A be the sum of the charges, S the state of
// the bucket, and L the state in which these charges at their times would have left a full
// bucket of the whole limit. The script sets the state to max(S + A, L). The charges of other
// instances are added to that, in any order.
type localCharges struct {
	mu   sync.Mutex
	keys map[string]*localCharge
}

// localCharge is what was admitted for one key.
type localCharge struct {
	counters *Counters
	rule     *rule
	cost     int64
	full     limit.BucketState // L, by this process's wall clock
	window   int64             // for other kinds, the window of the charges: they count in no other
}

// maxLocalCharges bounds the keys; what further keys take locally is not charged afterwards. Not
// more: each takes some 300 bytes. Not fewer: a gateway has that many clients within an outage.
const maxLocalCharges = 1 << 16

// wall is the time by which charges are assigned to windows.
func (s *Store) wall() limit.Time {
	if s.now != nil {
		return s.now()
	}
	return limit.At(time.Now())
}

// charged records what the local counters took for a part.
func (s *Store) charged(p *part) {
	if p.cost > 0 && p.rule.kind != kindPermits {
		s.localCharges.add(p.key, &localCharge{counters: p.counters, rule: p.rule, cost: p.cost}, s.wall())
	}
}

// add adds c, charged now unless it was recorded before.
func (l *localCharges) add(key string, c *localCharge, now limit.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.rule.kind == kindBucket {
		if c.full == (limit.BucketState{}) {
			owe := c.rule.bucket.CountingRefused()
			owe.Refuse(&c.full, now, c.cost)
		}
	} else {
		c.window = c.rule.window(now)
	}
	e := l.keys[key]
	if e == nil || e.rule != c.rule || e.window != c.window {
		if e == nil && len(l.keys) >= maxLocalCharges {
			return
		}
		if l.keys == nil {
			l.keys = make(map[string]*localCharge)
		}
		l.keys[key] = c
		return
	}
	e.cost = min(e.cost, math.MaxInt64-c.cost) + c.cost
	if e.rule.kind == kindBucket {
		owe := e.rule.bucket.CountingRefused()
		owe.Refuse(&e.full, now, c.cost)
	}
}

// refunded removes what was refunded to the local counters.
func (l *localCharges) refunded(key string, cost int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.keys[key]; e != nil {
		e.cost -= min(e.cost, cost)
		e.rule.bucket.Refund(&e.full, 0, cost)
	}
}

// settle charges to Redis what was admitted without it for the keys of a breaker, and does not
// wait for the answer. Charges that fail are sent again with the next heartbeat.
func (s *Store) settle(b *breaker) {
	if b.open.Load() || s.client.Load() == nil {
		return
	}
	now := s.wall()
	l := &s.localCharges
	byLane := make(map[*lane][]*operation)
	l.mu.Lock()
	for key, c := range l.keys {
		to := s.laneOf(key)
		if to.breaker != b {
			continue
		}
		delete(l.keys, key)
		if c.cost == 0 || c.rule.kind != kindBucket && c.rule.window(now) != c.window {
			continue
		}
		o := newOperation(verbSettle, s.clock())
		o.unattended, o.settles = true, c
		o.parts = append(o.parts, part{counters: c.counters, rule: c.rule, key: key, cost: c.cost, terms: terms{counts: true}})
		if c.rule.kind == kindBucket && c.rule.n > 0 {
			wait := c.rule.bucket.Peek(c.full, now, 0).ResetAfter
			o.owed = min(int64(wait/step)+1, maxSpan)
		}
		byLane[to] = append(byLane[to], o)
	}
	l.mu.Unlock()
	for to, ops := range byLane {
		to.enqueue(ops...)
	}
}

// settled puts back what could not be charged. It may have been, if the answer was lost:
// then the limit is stricter by that much, and not exceeded.
func (o *operation) settled() {
	if o.err != nil && o.settles != nil {
		s := o.parts[0].counters.store
		s.localCharges.add(o.parts[0].key, o.settles, s.wall())
	}
}

// setBack takes a step back of the server's clock, in microseconds, out of a state of
// before. A bucket that is ahead of every state that it can be in is empty, and owes what
// it did, but not the step; a window that is still to come is the one that is open.
func (r *rule) setBack(s *state, now limit.Time, back int64) {
	us := int64(now) / 1000
	switch r.kind {
	case kindBucket:
		empty := r.join(float64(us)+r.numbers[1], uint64(r.numbers[2]))
		if r.n == 0 || r.outside(s) || !after(s.bucket, empty) {
			return
		}
		step := r.join(float64(back), 0)
		lo, borrow := bits.Sub64(s.bucket.Lo, step.Lo, 0)
		hi, borrow := bits.Sub64(s.bucket.Hi, step.Hi, borrow)
		if s.bucket = (limit.BucketState{Hi: hi, Lo: lo}); borrow != 0 || after(empty, s.bucket) {
			s.bucket = empty
		}
	case kindFixed:
		if s.fixed.Start > now {
			s.fixed.Start, _ = r.fixed.Window(now)
		}
	case kindSliding:
		s.sliding.Index = min(s.sliding.Index, us/int64(r.numbers[0]))
	}
}

// mostStepped bounds the keys whose states are known to be corrected for a step of the server's
// clock, some 10 MB. Further keys may be refused for the rest of the step.
const mostStepped = 65_536

// passStepped marks the buckets of b from which the step must not be subtracted again: a state
// may be ahead of the clock by debt since then, and a second subtraction would forget that. mu
// is held.
func (l *lane) passStepped(b *batch) {
	for i := range b.scalars {
		k := &b.buckets[i]
		_, k.stepped = l.stepped[k.key]
		k.stepped = k.stepped || len(l.stepped) >= mostStepped
	}
}

// noteStepped records from which buckets of b the step was subtracted.
func (l *lane) noteStepped(b *batch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range b.scalars {
		if k := &b.buckets[i]; k.stepped && len(l.stepped) < mostStepped {
			if l.stepped == nil {
				l.stepped = map[string]struct{}{}
			}
			l.stepped[k.key] = struct{}{}
		}
	}
}

// after reports whether a bucket of state a is full later than one of state b.
func after(a, b limit.BucketState) bool { return a.Hi > b.Hi || a.Hi == b.Hi && a.Lo > b.Lo }

// settle sets the state of a scalar bucket to what it would be with the charges of an outage;
// see localCharges.
func (r *rule) settle(s *state, now limit.Time, cost, owed int64) {
	if r.kind != kindBucket {
		r.refuse(s, now, cost, terms{counts: true})
		return
	}
	if r.outside(s) {
		return
	}
	whole, part := r.ticks(uint64(cost))
	sum := r.join(float64(whole), part)
	var carry uint64
	sum.Lo, carry = bits.Add64(sum.Lo, s.bucket.Lo, 0)
	sum.Hi += s.bucket.Hi + carry
	least := r.join(float64(int64(now)/1000+owed), 0)
	if r.n == 0 {
		least = limit.BucketState{}
	}
	if after(least, sum) {
		sum = least
	}
	s.bucket = sum
}
