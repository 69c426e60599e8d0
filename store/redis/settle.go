package redis

import (
	"context"
	"math"
	"math/bits"
	"sort"
	"sync"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// localCharges is what counters in this process admitted while Redis did not answer. It is
// charged to Redis afterwards. Otherwise each outage would add the local share to the limit, and
// with a server that stands still for a part of each second nearly twice the limit would be
// admitted.
//
// A bucket refills during an outage, and so do the shares. Let A be what a share admitted, and U
// what its own bucket lacks at the end. A - U is what the share refilled: Redis is charged with
// that at once, as its bucket has refilled as well, and by more than all shares together. U is
// the burst of the share. It is owed: the share opens the next outage without it, and Redis is
// charged with it when it has tokens left over. So the shares admit their bursts once, however
// often Redis comes and goes, and no request is refused to pay for them.
//
// When Redis answered other instances meanwhile, they have spent the refill, and A - U finds no
// tokens. Charged as debt it would refuse everybody for as long as the outage has lasted, so it is
// forgiven: that is the excess that docs/explanation/failures.md states.
//
// When Redis was away for all of them, nothing is lost by that. Let H be what the bucket in Redis
// lacks of its burst. For each share let D be what it admitted and Redis is not charged with, L what its
// bucket lacks, and E = max(0, D - L) what it refilled. Let
//
//	P = min(burst, H + the sum of E) + the sum of min(D, L)
//
// P is between 0 and the burst and the bursts of the shares. A decision of a share adds its cost to D and
// to L, and so to P. A second takes the rate from P at most. A settlement moves E to H as far as there is room
// and leaves P as it is. A request that Redis admits adds its cost to P if each E is 0. So if Redis
// decides only then, no T admits more than rate x T and the largest P. Therefore
//
//   - no request goes to Redis before the settlements are answered, and one that is not answered
//     opens the breaker again: see breaker.close and lane.blame; for other instances there is breaker.grace;
//   - shares refill in outages alone: before its first decision in one, and before each outside of one, a
//     share lacks D: see open;
//   - an answer of Redis that comes after shares began to decide is not used: see Store.ask.
//
// Windows that do not slide are charged at once and as far as they have room; sliding ones owe
// as buckets do. Counters that count refused requests, or
// ban, are charged with everything: let S be the state of a bucket and L the state in which its
// charges at their times would have left a full one, then the script sets it to max(S + A, L).
type localCharges struct {
	mu   sync.Mutex
	keys map[string]*localCharge
}

// localCharge is what was admitted for one key.
type localCharge struct {
	counters *Counters
	rule     *rule
	counts   bool              // everything is charged, whether it fits or not
	cost     int64             // admitted and to be settled at once
	full     limit.BucketState // L, by this process's wall clock
	window   int64             // of windows that do not slide: charges count in no other

	owed   int64 // of the share's burst; see localCharges
	outage int64 // in which the share was opened; 0 = Redis has decided since
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

// owes reports whether charges by this rule come back little by little, so that a share owes its
// burst.
func (r *rule) owes() bool {
	switch r.policy.Algorithm {
	case limit.TokenBucket, limit.LeakyBucket:
		return r.n > 0
	case limit.SlidingWindowCounter, limit.SlidingWindowLog:
		return true
	default:
		return false
	}
}

// owes reports whether a part of the charges, as much as the share lacks, is owed.
func (c *localCharge) owes() bool { return c.rule.owes() && !c.counts }

// charged records what the local counters took for a part, in an outage or else 0. mu is held.
func (s *Store) charged(p *part, outage int64) {
	if p.cost > 0 && p.rule.kind != kindPermits {
		c := &localCharge{counters: p.counters, rule: p.rule, cost: p.cost, counts: p.terms.counts || p.rule.policy.Ban > 0, outage: outage}
		if c.owes() && outage == 0 {
			c.cost, c.owed = 0, p.cost
		}
		s.localCharges.add(p.key, c, s.wall())
	}
}

// add adds c, charged now unless it was recorded before. mu is held.
func (l *localCharges) add(key string, c *localCharge, now limit.Time) {
	switch {
	case c.rule.kind == kindBucket:
		if c.counts && c.full == (limit.BucketState{}) {
			owe := c.rule.bucket.CountingRefused()
			owe.Refuse(&c.full, now, c.cost)
		}
	case !c.rule.owes() || c.counts:
		c.window = c.rule.window(now)
	}
	e := l.keys[key]
	if e == nil || e.rule != c.rule || e.window != c.window {
		switch {
		case e != nil:
			c.owed += min(e.owed, math.MaxInt64-c.owed)
		case len(l.keys) >= maxLocalCharges:
			return
		case l.keys == nil:
			l.keys = make(map[string]*localCharge)
		}
		l.keys[key] = c
		return
	}
	e.counts = e.counts || c.counts
	e.cost = min(e.cost, math.MaxInt64-c.cost) + c.cost
	e.owed = min(e.owed, math.MaxInt64-c.owed) + c.owed
	if e.rule.kind == kindBucket && e.counts {
		owe := e.rule.bucket.CountingRefused()
		owe.Refuse(&e.full, now, c.cost)
	}
}

// refunded removes what was refunded to the local counters.
func (l *localCharges) refunded(key string, cost int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	e := l.keys[key]
	if e == nil {
		return
	}
	e.rule.bucket.Refund(&e.full, 0, cost)
	for _, of := range []*int64{&e.cost, &e.owed} {
		back := min(*of, cost)
		*of, cost = *of-back, cost-back
	}
}

// open prepares the share of a key for its first use in an outage, or for a use outside of one: it lacks what
// it owes. ask is a charge of the share. mu is held.
func (s *Store) open(ctx context.Context, key string, outage int64, ask store.Charge) error {
	e := s.localCharges.keys[key]
	if e == nil || outage != 0 && e.outage == outage {
		return nil
	}
	e.outage = outage
	if e.owed == 0 {
		return nil
	}
	ask.Cost, ask.CountRefused, ask.Shadow = 0, false, true
	one := []store.Charge{ask}
	if _, err := s.opts.Local.Peek(ctx, one); err != nil {
		return err
	}
	share := ask.Counters.Spec().Policy
	lacks := float64(share.Quota() - one[0].Verdict.Remaining)
	if e.rule.kind == kindBucket {
		// Remaining is rounded; this is not, but for the last digits.
		lacks = one[0].Verdict.ResetAfter.Seconds()/share.Rate.Period.Seconds()*float64(share.Rate.Count) + 1e-6
	}
	if more := e.owed - int64(lacks); more > 0 {
		one[0].Cost, one[0].CountRefused = more, true
		_, err := s.opts.Local.Take(ctx, one)
		return err
	}
	return nil
}

// lacks returns what the share of an entry lacks, which is the part of its charges that is owed.
func (s *Store) lacks(key string, e *localCharge) int64 {
	local := &e.counters.local
	local.mu.Lock()
	counters := local.counters
	local.mu.Unlock()
	if counters == nil || !e.owes() {
		return 0
	}
	one := []store.Charge{{Counters: counters, Key: []byte(key), Shadow: true}}
	if _, err := s.opts.Local.Peek(s.ctx, one); err != nil {
		return 0
	}
	return counters.Spec().Policy.Quota() - one[0].Verdict.Remaining
}

// settle charges to Redis what is due for the keys of a breaker, and does not wait for the answer. Charges
// that fail are sent again with the next heartbeat or when the breaker closes.
func (s *Store) settle(b *breaker) {
	l := &s.localCharges
	l.mu.Lock()
	var ops map[*lane][]*operation
	if s.client.Load() != nil && !b.open.Load() {
		ops = s.collect(b, "", b.outage())
	}
	l.mu.Unlock()
	s.enqueue(ops)
}

func (s *Store) enqueue(ops map[*lane][]*operation) {
	for to, some := range ops {
		to.enqueue(some...)
	}
}

// charge settles and waits, past requests that are queued. The error is the first that concerns the server.
func (s *Store) charge(ops map[*lane][]*operation) (failed error) {
	for to, some := range ops {
		x := &sender{lane: to}
		for len(some) > 0 {
			n := min(len(some), maxBuckets)
			x.ops, some = append(x.ops[:0], some[:n]...), some[n:]
			before := failed
			if before == nil {
				x.exchange(x.fill(), true)
			}
			for _, o := range x.ops {
				if before != nil {
					o.err = before
				} else if o.err != nil && infrastructure(o.err) {
					failed = o.err
				}
				o.end()
			}
		}
	}
	return failed
}

// collect returns the operations that charge what is due. only is one of the keys of a breaker, or "" for all.
// mu is held.
func (s *Store) collect(b *breaker, only string, outage int64) map[*lane][]*operation {
	now := s.wall()
	l := &s.localCharges
	var byLane map[*lane][]*operation
	one := func(key string, c *localCharge) {
		to := s.laneOf(key)
		if c == nil || to.breaker != b {
			return
		}
		if c.cost > 0 {
			if !c.owes() || outage != 0 && c.outage == outage {
				all := min(c.cost, math.MaxInt64-c.owed) + c.owed
				c.owed = min(s.lacks(key, c), all)
				c.cost = all - c.owed
			}
			if over := c.window != 0 && c.rule.window(now) != c.window; c.cost > 0 && !over {
				o := s.settlement(key, c, c.cost)
				if c.counts && c.rule.kind == kindBucket && c.rule.n > 0 {
					wait := c.rule.bucket.Peek(c.full, now, 0).ResetAfter
					o.owed = min(int64(wait/step)+1, maxSpan)
				}
				if byLane == nil {
					byLane = make(map[*lane][]*operation)
				}
				byLane[to] = append(byLane[to], o)
			}
			c.cost, c.full = 0, limit.BucketState{}
		}
		if c.owed == 0 {
			delete(l.keys, key)
		}
	}
	if only != "" {
		one(only, l.keys[only])
	} else {
		for key, c := range l.keys {
			one(key, c)
		}
	}
	return byLane
}

// settlement is the operation that charges a cost to the key of c.
func (s *Store) settlement(key string, c *localCharge, cost int64) *operation {
	o := newOperation(verbSettle, s.clock())
	s.laneOf(key).breaker.settling.Add(1)
	o.unattended = true
	o.settles = &localCharge{counters: c.counters, rule: c.rule, counts: c.counts, cost: cost, full: c.full}
	o.parts = append(o.parts, part{counters: c.counters, rule: c.rule, key: key, cost: cost, terms: terms{counts: c.counts}})
	return o
}

// settled puts back what could not be charged. It may have been, if the answer was lost:
// then the limit is stricter by that much, and not exceeded.
func (o *operation) settled() {
	if o.settles == nil {
		return
	}
	s := o.parts[0].counters.store
	s.localCharges.mu.Lock()
	defer s.localCharges.mu.Unlock()
	s.laneOf(o.parts[0].key).breaker.settling.Add(-1)
	if o.err != nil {
		s.localCharges.add(o.parts[0].key, o.settles, s.wall())
	}
}

// repaidAtOnce bounds the keys whose bursts are paid in one exchange, and repaidPerHeartbeat those
// of one heartbeat.
const (
	repaidAtOnce       = maxBuckets / 2
	repaidPerHeartbeat = 8 * repaidAtOnce
)

// repay pays bursts that shares owe, as far as Redis has tokens left over for their keys: one stays, so
// that a limit of a few tokens an hour admits each as it comes.
func (s *Store) repay(b *breaker) {
	if b.outage() != 0 || s.clock() < b.rejoin.Load()+int64(b.grace()) {
		return // Other instances that were cut off as well may not have settled what their shares refilled.
	}
	l := &s.localCharges
	var keys []string
	var parts []part
	l.mu.Lock()
	for key, c := range l.keys {
		if len(keys) == repaidPerHeartbeat {
			break
		}
		if c.owed > 0 && c.cost == 0 && s.laneOf(key).breaker == b {
			keys = append(keys, key)
			parts = append(parts, part{counters: c.counters, rule: c.rule, key: key, shadow: true})
		}
	}
	l.mu.Unlock()
	for len(keys) > 0 && !b.open.Load() {
		n := min(len(keys), repaidAtOnce)
		s.repaySome(keys[:n], parts[:n])
		keys, parts = keys[n:], parts[n:]
	}
}

func (s *Store) repaySome(keys []string, parts []part) {
	l := &s.localCharges
	look := newOperation(verbPeek, s.clock())
	look.parts = append(look.parts, parts...)
	if look = s.perform(s.ctx, look); look == nil {
		return
	}
	defer look.release()
	pay := newOperation(verbTake, s.clock())
	l.mu.Lock()
	for i, key := range keys {
		p, c := parts[i], l.keys[key]
		left := look.parts[i].verdict.Remaining - 1
		if look.err != nil || look.parts[i].failed || c == nil || left <= 0 || c.owed == 0 {
			continue
		}
		p.cost = min(c.owed, left)
		pay.parts = append(pay.parts, p)
	}
	l.mu.Unlock()
	if len(pay.parts) == 0 {
		pay.release()
		return
	}
	if pay = s.perform(s.ctx, pay); pay == nil {
		return
	}
	defer pay.release()
	if pay.err != nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := range pay.parts {
		p := &pay.parts[i]
		c := l.keys[p.key]
		if p.failed || !p.verdict.Allowed || c == nil {
			continue
		}
		if c.owed -= min(c.owed, p.cost); c.owed == 0 && c.cost == 0 {
			delete(l.keys, p.key)
		}
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

// settle charges a scalar bucket with what was admitted in an outage; see the script's settle.
func (r *rule) settle(s *state, now limit.Time, cost, owed int64, counts bool) {
	if r.kind != kindBucket {
		if counts {
			r.refuse(s, now, cost, terms{counts: true})
		} else if fits := sort.Search(int(min(cost, r.policy.Quota())), func(n int) bool {
			return !r.peek(*s, now, int64(n)+1, terms{}).Allowed
		}); fits > 0 {
			r.take(s, now, int64(fits), terms{})
		}
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
	least, empty := limit.BucketState{}, r.join(r.numbers[1], uint64(r.numbers[2]))
	if r.n > 0 {
		least = r.join(float64(int64(now)/1000+owed), 0)
		empty = r.join(float64(int64(now)/1000)+r.numbers[1], uint64(r.numbers[2]))
	}
	if after(least, sum) {
		sum = least
	}
	if !counts && after(sum, empty) {
		if sum = empty; after(s.bucket, sum) {
			return
		}
	}
	s.bucket = sum
}
