package memory

import (
	"context"
	"fmt"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Preparer returns k as a [limit.Preparer], which can be a part of [limit.All]: limits for
// each connection or channel that are kept in this process. It is as Taker otherwise.
//
// The policy is a token or leaky bucket that a word holds, as nearly all that people
// write: what was taken of another could not be given back exactly. Under any other
// policy this is an error, and so is a Hold if [Keyed.SetPolicy] puts one in force later.
func (k *Keyed) Preparer(name string, names ...string) (limit.Preparer, error) {
	if _, err := k.holdable(); err != nil {
		return nil, err
	}
	return keyedPreparer{keyedTaker{k, name, names}}, nil
}

// holdable returns the table in force, if what is taken from it can be given back.
func (k *Keyed) holdable() (*wordTable, error) {
	t, ok := k.counters.current().(*wordTable)
	if !ok || t.counts {
		p := k.Policy()
		return nil, fmt.Errorf("memory: a %v of %v cannot be prepared: want a token or leaky bucket with a rate above 0 whose terms fit a word, such as 100/s; or make it the one limit.Scope that is no Preparer", p.Algorithm, p.Rate)
	}
	return t, nil
}

type keyedPreparer struct{ keyedTaker }

var _ limit.Preparer = keyedPreparer{}

// What the marks of a Hold are.
const (
	markHash   = iota // of the key
	markBefore        // the word before it was taken
	markAfter         // the word after
	markTick          // when
)

// usualKey is how long a key may be before it takes memory of its own. Not longer: it is
// cleared for each request. Not shorter: an account, a channel and a path fit.
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
	key := room[:0]
	for _, name := range h.names {
		value, _ := req.Get(name)
		key = store.AppendKey(key, value)
	}
	cost, c := max(1, req.Cost), h.keyed.counters
	hash := c.hash(key)
	p := c.policy.Load()
	*r = limit.Result{Limit: h.name, Algorithm: p.Algorithm, Quota: p.Quota(), Window: p.Window(), Cost: cost}
	for {
		t, err := h.keyed.holdable()
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
		} else if hold, v, done := t.hold(hash, cost); done {
			r.Verdict = v
			return hold, nil
		}
		c.store.awaitMove() // to a later beginning, or to another policy
	}
}

// hold takes cost so that it can be given back. What new keys share, when the table is
// full, is taken as usual: others change it all the time.
func (t *wordTable) hold(h uint64, cost int64) (hold limit.Prepared, v limit.Verdict, done bool) {
	p, over := t.place(h, false)
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
			return hold, t.refusal(was, tick, cost, false), true
		}
		if p.CompareAndSwap(w, next) {
			return limit.Prepared{Cost: cost, Of: t, Mark: [6]uint64{h, was, next, tick}}, t.admission(was, next, tick), true
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

// undo gives back what was held, unless another policy is in force by now. Nobody else
// came in between: the word is what it was. Otherwise, had it not been taken, the bucket
// would have been full from the tick on that was in the word before, or from the Hold on
// if it was full then, and what would have overflowed since is not given back.
func (t *wordTable) undo(h limit.Prepared) {
	full := max(h.Mark[markBefore], h.Mark[markTick])
	owed := h.Mark[markAfter] - full
	t.change(h.Mark[markHash], func(w uint64) uint64 {
		switch {
		case w == 0:
			return 0
		case w == h.Mark[markAfter]:
			return max(h.Mark[markBefore], 1) // 0 would mean never written
		default:
			tick := t.tick() // not before w was there
			back := owed - min(owed, tick-min(tick, full))
			return max(w-min(w, back), 1)
		}
	})
}
