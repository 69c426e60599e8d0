package redis

import (
	"math"
	"math/bits"
	"sync"
	"time"

	"github.com/stint-io/stint/limit"
)

// localCharges is what counters in this process admitted while Redis did not answer. It
// is charged to Redis as soon as that answers, fitting or not: else each outage would
// bring the local share once more, and a server that stands still for a part of each
// second would admit nearly twice the limit for as long as it does.
//
// A bucket refills while Redis is away, and so do the shares. What is owed at the end is
// therefore less than what was admitted, and depends on when it was. With A the sum and L
// the state in which the charges at their times would have left a bucket of the whole
// limit that was full before, the bucket of state S had to be at max(S + A, L): the
// script makes it that. The charges of other instances come on top, in any order.
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
	window   int64             // of other kinds, the window in which it was: it counts in no other
}

// maxLocalCharges bounds the keys. What more keys are admitted locally is not charged
// afterwards. Not more: each takes some 300 bytes. Not fewer: a gateway has as many
// clients within an outage.
const maxLocalCharges = 1 << 16

// wall is the time by which charges are put into windows.
func (s *Store) wall() limit.Time {
	if s.now != nil {
		return s.now()
	}
	return limit.At(time.Now())
}

// charged notes what the counters that stand in have taken for a part.
func (s *Store) charged(p *part) {
	if p.cost > 0 && p.rule.kind != kindPlaces {
		s.localCharges.add(p.key, &localCharge{counters: p.counters, rule: p.rule, cost: p.cost}, s.wall())
	}
}

// add adds c, of now unless it has been in the book before.
func (l *localCharges) add(key string, c *localCharge, now limit.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if c.rule.kind == kindBucket {
		if c.full == (limit.BucketState{}) {
			owe := c.rule.bucket.CountingRefused()
			owe.Refuse(&c.full, now, c.cost)
		}
	} else {
		c.window = int64(now) / 1000 / int64(c.rule.numbers[0])
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

// refunded takes back what was given back to the counters that stand in.
func (l *localCharges) refunded(key string, cost int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if e := l.keys[key]; e != nil {
		e.cost -= min(e.cost, cost)
		e.rule.bucket.Refund(&e.full, 0, cost)
	}
}

// settle charges to Redis what was admitted without it for the keys that a breaker
// guards, and does not wait for the answer. What fails is tried again with the next
// heartbeat.
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
		if c.cost == 0 || c.rule.kind != kindBucket && int64(now)/1000/int64(c.rule.numbers[0]) != c.window {
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
			s.fixed.Start = limit.Time(us-us%int64(r.numbers[0])) * 1000
			if r.policy.Align == limit.AlignFirstHit {
				s.fixed.Start = now
			}
		}
	case kindSliding:
		s.sliding.Index = min(s.sliding.Index, us/int64(r.numbers[0]))
	}
}

// mostStepped bounds the keys whose states are known to be without a step of the server's
// clock, some 10 MB. Keys beyond that are refused for the rest of the step.
const mostStepped = 65_536

// passStepped marks the buckets of b from which the step is not to be taken: once is
// enough. What was admitted since may be ahead as well, as debt, and a step that is taken
// out of that at each call forgets it. mu is held.
func (l *lane) passStepped(b *batch) {
	for i := range b.scalars {
		k := &b.buckets[i]
		_, k.stepped = l.stepped[k.key]
		k.stepped = k.stepped || len(l.stepped) >= mostStepped
	}
}

// noteStepped remembers from which buckets of b the step was taken.
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

// after says whether a bucket of state a is full later than one of state b.
func after(a, b limit.BucketState) bool { return a.Hi > b.Hi || a.Hi == b.Hi && a.Lo > b.Lo }

// settle makes the state of a scalar bucket what it would be had it been charged while
// the server was away; see localCharges.
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
