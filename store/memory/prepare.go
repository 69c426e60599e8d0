package memory

import (
	"context"
	"fmt"

	"github.com/stint-io/stint/limit"
)

// Preparer returns k as a [limit.Preparer] for [limit.All]: a limit for each connection or
// channel, kept in this process. Otherwise it is like Taker.
//
// The policy must be a token or leaky bucket that fits in a word, as nearly all do: of another,
// a cost could not be given back exactly. Any other policy is an error here, and in Prepare if
// [Keyed.SetPolicy] puts it in force later.
func (k *Keyed) Preparer(name string, names ...string) (limit.Preparer, error) {
	if _, err := k.preparable(); err != nil {
		return nil, err
	}
	return keyedPreparer{keyedTaker{k, name, names}}, nil
}

// preparable returns the table in force, if costs taken from it can be given back exactly.
func (k *Keyed) preparable() (*wordTable, error) {
	t, ok := k.counters.current().(*wordTable)
	if !ok || t.counts {
		p := k.Policy()
		return nil, fmt.Errorf("memory: a %v of %v cannot be prepared: want a token or leaky bucket with a rate above 0 whose terms fit a word, such as 100/s; or make it the one limit.Scope that is no Preparer", p.Algorithm, p.Rate)
	}
	return t, nil
}

type keyedPreparer struct{ keyedTaker }

var _ limit.Preparer = keyedPreparer{}

// The marks of a Prepared.
const (
	markHash   = iota // of the key
	markBefore        // the word before the Take
	markAfter         // the word after
	markTick          // when
)

// usualKey is the length up to which a key needs no memory of its own, in bytes. Not longer: the
// array is cleared for each request. Not shorter: an account, a channel and a path fit.
const usualKey = 128

// Shared implements [limit.Preparer].
func (keyedPreparer) Shared() bool { return false }

// Prepare implements [limit.Preparer].
func (h keyedPreparer) Prepare(ctx context.Context, req limit.Request, _ bool, r *limit.Result) (limit.Prepared, error) {
	if req.Cost < 0 {
		return limit.Prepared{}, fmt.Errorf("%w, it is %d", limit.ErrNegativeCost, req.Cost)
	}
	if err := checkCost(req.Cost); err != nil {
		return limit.Prepared{}, err
	}
	if err := ctx.Err(); err != nil {
		return limit.Prepared{}, fmt.Errorf("memory: nothing taken: %w", err)
	}
	var room [usualKey]byte
	cost, c := max(1, req.Cost), h.keyed.counters
	hash := c.hash(h.key(room[:0], req))
	p := c.policy.Load()
	*r = limit.Result{Limit: h.name, Algorithm: p.Algorithm, Quota: p.Quota(), Window: p.Window(), Cost: cost}
	for {
		t, err := h.keyed.preparable()
		if err != nil {
			return limit.Prepared{}, err
		}
		if req.Peek {
			if v, done := t.peek(hash, costing(cost)); done {
				if r.Verdict = v; v.Allowed {
					r.Remaining += cost // which was not taken
				}
				return limit.Prepared{}, nil
			}
		} else if hold, v, done := t.prepare(hash, cost); done {
			r.Verdict = v
			return hold, nil
		}
		c.store.awaitMove() // the table moves to a later beginning or another policy
	}
}

// prepare takes cost so that it can be given back. A Take on the overflow bucket is final: other
// keys change that bucket all the time.
func (t *wordTable) prepare(h uint64, cost int64) (hold limit.Prepared, v limit.Verdict, done bool) {
	p, over := t.obtain(h, false)
	if p == nil {
		return
	}
	if over {
		v, done = t.take(h, costing(cost))
		return hold, v, done
	}
	tick := t.tick()
	for w, ok := settled(p); ok; w, ok = settled(p) {
		was := t.effective(w)
		next, fits := t.bucket.Take(was, tick, cost)
		if !fits {
			return hold, refusal(&t.bucket, was, tick, cost, false), true
		}
		if p.CompareAndSwap(w, next) {
			return limit.Prepared{Cost: cost, Of: t, Mark: [6]uint64{h, was, next, tick}}, admission(&t.bucket, was, next, tick), true
		}
	}
	return
}

// Commit implements [limit.Preparer].
func (keyedPreparer) Commit(limit.Prepared) {}

// Rollback implements [limit.Preparer].
func (h keyedPreparer) Rollback(hold limit.Prepared) {
	if t, ok := hold.Of.(*wordTable); ok {
		t.undo(hold)
	}
}

// undo gives back what was prepared, unless another policy is in force by now.
func (t *wordTable) undo(h limit.Prepared) {
	t.change(h.Mark[markHash], func(w uint64) uint64 {
		switch back := h.Mark[markBefore]; w {
		case 0:
			return 0
		case h.Mark[markAfter]: // nobody else came in between
			return max(back, 1) // 0 would mean never written
		default:
			// The clock is read after w was: others have taken nothing later.
			return max(t.bucket.Undo(w, t.tick(), back, h.Mark[markAfter], h.Mark[markTick]), 1)
		}
	})
}
