package memory

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Keyed is one limit over many keys, in its own store: the keyed form of
// [limit.Limiter] for programs that need no files and no server. It is safe for
// concurrent use. Use [NewKeyed]; the zero value is not ready.
type Keyed struct {
	counters *Counters
}

// NewKeyed returns a limit with policy for each key. It returns an error for a policy that is
// not valid, and for Concurrency: a Keyed cannot give permits back, a [Store] has Finish.
func NewKeyed(policy limit.Policy, o Options) (*Keyed, error) {
	if policy.Algorithm == limit.Concurrency {
		return nil, errors.New("memory: a Keyed cannot give permits in flight back, use a Store, or stint.Parse and its Finish")
	}
	c, err := New(o).bind(store.Spec{ID: "keyed", Policy: policy})
	if err != nil {
		return nil, err
	}
	return &Keyed{c}, nil
}

// Allow takes one for key and says whether it fitted. It does not allocate; a
// refusal writes nothing.
//
// It is [wordTable.take] for the common case: the table is of that kind, its clock is the
// system's, the key has a slot, and the slot's word is neither new nor locked nor moved. It is
// one function because calls would cost more than the work. The key is hashed before the clock
// is read: reading the clock waits for earlier loads, so a key or slot fetched after it would be
// a second wait for memory.
func (k *Keyed) Allow(key string) bool {
	c := k.counters
	t := c.words.Load()
	if t == nil {
		return c.take(c.hashString(key), costing(1)).Allowed
	}
	h := c.hashString(key)
	moment := uint64(time.Since(t.start))
	a := t.shards[shardOf(h)].slots.Load()
	if a == nil || moment > rebaseAfter {
		return c.take(h, costing(1)).Allowed
	}
	tick := t.bucket.TickWithin(moment)
	for i := h; ; i++ {
		s := &a.slots[i&a.mask]
		switch s.hash.Load() {
		case h:
			for {
				w := s.word.Load()
				if int64(w) <= 0 {
					return c.take(h, costing(1)).Allowed
				}
				next, fits := t.bucket.TakeOne(w, tick)
				if !fits {
					return false
				}
				if s.word.CompareAndSwap(w, next) {
					return true
				}
			}
		case 0, slotClosed:
			return c.take(h, costing(1)).Allowed
		}
	}
}

// AllowN takes n for key and reports whether it fitted; nothing is taken when it did not. A
// negative n, or one above limit.MaxCount, never fits. n = 0 takes nothing and always fits.
func (k *Keyed) AllowN(key string, n int64) bool {
	v, err := k.Take(key, n)
	return err == nil && v.Allowed
}

// Take takes cost for key if it fits and says how the limit stands for that key.
// It returns an error for a cost that is negative or above limit.MaxCount.
func (k *Keyed) Take(key string, cost int64) (limit.Verdict, error) {
	if err := checkCost(cost); err != nil {
		return limit.Verdict{}, err
	}
	return k.counters.take(k.counters.hashString(key), costing(cost)), nil
}

// Count takes cost for key whether it fits or not, and says whether it did; see
// [limit.Request.CountRefused]. It returns an error as Take does.
func (k *Keyed) Count(key string, cost int64) (limit.Verdict, error) {
	if err := checkCost(cost); err != nil {
		return limit.Verdict{}, err
	}
	return k.counters.take(k.counters.hashString(key), ask{cost: cost, counts: true}), nil
}

// Peek answers as Take would and takes nothing.
func (k *Keyed) Peek(key string, cost int64) (limit.Verdict, error) {
	if err := checkCost(cost); err != nil {
		return limit.Verdict{}, err
	}
	return k.counters.peek(k.counters.hashString(key), costing(cost)), nil
}

// standing says whether cost would be admitted, and how the limit stands without it.
func (k *Keyed) standing(key string, cost int64) (limit.Verdict, error) {
	v, err := k.Peek(key, cost)
	if err != nil || !v.Allowed {
		return v, err
	}
	is, err := k.Peek(key, 0)
	v.Remaining, v.ResetAfter = is.Remaining, is.ResetAfter
	return v, err
}

// Refund gives back cost that an earlier Take took for key, as far as the bucket has room for
// it. Costs that Take would not accept are ignored.
func (k *Keyed) Refund(key string, cost int64) {
	if checkCost(cost) == nil {
		k.counters.refund(k.counters.hashString(key), 0, cost)
	}
}

// Reset drops the state of key, its ban included.
func (k *Keyed) Reset(key string) { k.counters.reset(k.counters.hashString(key)) }

// SetPolicy puts another policy in force. What each key has used stays used: the
// change neither refills nor forgets. It returns an error for a policy that
// [NewKeyed] would not take, and then changes nothing.
func (k *Keyed) SetPolicy(policy limit.Policy) error {
	if policy.Algorithm == limit.Concurrency {
		return errors.New("memory: a Keyed cannot give permits in flight back")
	}
	_, err := k.counters.store.bind(store.Spec{ID: k.counters.id, Policy: policy})
	return err
}

// Policy returns the policy in force.
func (k *Keyed) Policy() limit.Policy { return *k.counters.policy.Load() }

// Stats describes the store behind the limit.
func (k *Keyed) Stats() Stats { return k.counters.store.Stats() }

// Taker returns k as a [limit.Taker] whose key is the values of the attributes
// called names, and whose results bear the name of the limit. A request without
// one of the attributes counts under the empty value.
func (k *Keyed) Taker(name string, names ...string) limit.Taker {
	return keyedTaker{k, name, names}
}

type keyedTaker struct {
	keyed *Keyed
	name  string
	names []string
}

// Attributes makes it a [limit.AttributeReader].
func (t keyedTaker) Attributes() []string { return t.names }

// key appends the key of a request to dst.
func (t keyedTaker) key(dst []byte, req limit.Request) []byte {
	for _, name := range t.names {
		value, _ := req.Get(name)
		dst = store.AppendKey(dst, value)
	}
	return dst
}

func (t keyedTaker) Take(ctx context.Context, req limit.Request) (limit.Decision, error) {
	if err := ctx.Err(); err != nil {
		return limit.Decision{}, fmt.Errorf("memory: nothing taken: %w", err)
	}
	cost, op := cmp.Or(req.Cost, 1), t.keyed.Take
	switch {
	case req.Peek:
		op = t.keyed.standing
	case req.CountRefused:
		op = t.keyed.Count
	}
	v, err := op(string(t.key(nil, req)), cost)
	if err != nil {
		return limit.Decision{}, err
	}
	p := t.keyed.Policy()
	d := limit.Decision{
		Allowed: v.Allowed, Delay: v.Delay,
		Results: []limit.Result{{Limit: t.name, Algorithm: p.Algorithm, Quota: p.Quota(), Window: p.Window(), Cost: cost, Verdict: v}},
	}
	if !d.Allowed {
		d.Status = 429
	}
	return d, nil
}
