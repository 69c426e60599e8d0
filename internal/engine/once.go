package engine

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// IdempotencyWindow is how long the key of an admitted request is remembered, from when it was charged. A client that
// lost an answer asks again within seconds, and a queue that delivers anew within minutes. A key takes some 20 bytes in
// memory and 150 in Redis, so a window of a day would cost 2 GB at a thousand such requests a second.
const IdempotencyWindow = 10 * time.Minute

// onceID is the ID of the counters that remember idempotency keys. No limit has a name with an exclamation mark.
const onceID = "!idempotency"

// ErrKeysFull is the error of a request whose idempotency key the store has no room to remember. Nothing was taken: to
// charge it without could charge it twice. It wraps [store.ErrUnavailable].
var ErrKeysFull = fmt.Errorf("no room to remember another idempotency key: send fewer requests with a key within %v, or give the store more memory: %w", IdempotencyWindow, store.ErrUnavailable)

// once are the counters that remember idempotency keys: a token bucket of 1 for each, which is empty for the window.
// The store takes it together with the charges of the request, so it has both or neither.
type once struct {
	bound atomic.Pointer[store.Counters]
	mu    sync.Mutex
}

// counters binds the counters at the first request that has a key.
func (o *once) counters(st store.Store) (store.Counters, error) {
	if c := o.bound.Load(); c != nil {
		return *c, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if c := o.bound.Load(); c != nil {
		return *c, nil
	}
	c, err := st.Bind(store.Spec{
		ID: onceID, Durable: true,
		Policy: limit.Policy{Rate: limit.Rate{Count: 1, Period: IdempotencyWindow}, Burst: 1},
	})
	if err != nil {
		return nil, fmt.Errorf("engine: cannot bind the counters of idempotency keys: %w", err)
	}
	o.bound.Store(&c)
	return c, nil
}

// identify sets the identity of q: a hash of its idempotency key and of all that makes it the same request, so that another
// request with the same key is another one. It hashes the attributes as they came, since those derived from them change.
func (q *Query) identify() error {
	q.identity = ""
	if q.IdempotencyKey == "" {
		return nil
	}
	if n := len(q.IdempotencyKey); n > limit.MaxIdempotencyKey {
		return fmt.Errorf("engine: %w: the idempotency key has %d bytes, want at most %d", ErrBadRequest, n, limit.MaxIdempotencyKey)
	}
	b := store.AppendKey(nil, q.IdempotencyKey)
	b = store.AppendKey(b, q.Domain)
	for i := range q.Descriptors {
		d := &q.Descriptors[i]
		if d.Refund {
			return fmt.Errorf("engine: %w: descriptor %d gives back: leave out the idempotency key", ErrBadRequest, i)
		}
		b = binary.AppendUvarint(b, uint64(d.Cost))
		if d.HasOverride {
			b = fmt.Appendf(b, "%v", d.Override)
		}
		attrs := d.Attributes
		if !d.Described {
			// A client that reads them from a map sends them in another order.
			attrs = slices.Clone(attrs)
			slices.SortStableFunc(attrs, func(x, y limit.Attribute) int { return cmp.Compare(x.Name, y.Name) })
		}
		b = binary.AppendUvarint(b, uint64(len(attrs)))
		for _, a := range attrs {
			b = store.AppendKey(store.AppendKey(b, a.Name), a.Value)
		}
	}
	sum := sha256.Sum256(b)
	q.identity = string(sum[:])
	return nil
}

// identify replaces the idempotency key of req by the identity of the request, and reports whether it was charged
// before, so that it need not wait.
func (e *Engine) identify(ctx context.Context, req *limit.Request, waits bool) (repeated bool, err error) {
	if req.IdempotencyKey == "" {
		return false, nil
	}
	q := e.queries.Get().(*Query)
	defer e.release(q)
	q.single(*req)
	q.IdempotencyKey = req.IdempotencyKey
	if err := q.identify(); err != nil {
		return false, err
	}
	req.IdempotencyKey = q.identity
	if !waits || req.Peek {
		return false, nil
	}
	q.reset()
	if err := e.remember(q); err != nil {
		return false, err
	}
	_, err = e.store.Peek(ctx, q.charges)
	v := &q.charges[len(q.charges)-1].Verdict
	return err == nil && !v.Allowed && v.Reason == limit.ReasonRate, err
}

// remember adds the charges of the idempotency key. Of a request that is charged also when it is refused the first of two
// remembers whether it was admitted.
func (e *Engine) remember(q *Query) error {
	c, err := e.once.counters(e.store)
	if err != nil {
		return err
	}
	key := store.Charge{
		Counters: c, Key: base64.RawURLEncoding.AppendEncode(nil, []byte(q.identity[:24])), Cost: 1, Once: true, OnFailure: store.FailAllow,
	}
	if q.CountRefused {
		admitted := key
		admitted.Key, admitted.Shadow = append(slices.Clone(key.Key), '+'), true
		q.charges = append(q.charges, admitted)
		key.CountRefused = true
	}
	q.charges = append(q.charges, key)
	return nil
}

// permitOf returns the number of a permit: that of a repeated request is the same.
func (q *Query) permitOf() uint64 {
	if q.identity == "" {
		return newPermit()
	}
	return binary.BigEndian.Uint64([]byte(q.identity[24:]))>>11 | 1
}

// takeQuery takes the charges of q, and its idempotency key if it has one, as a whole. If the key is known nothing is
// taken, and q is repeated.
func (e *Engine) takeQuery(ctx context.Context, q *Query) (allowed bool, err error) {
	if q.identity == "" {
		return e.takeCharges(ctx, q.charges)
	}
	if err := e.remember(q); err != nil {
		return false, err
	}
	if allowed, err = e.takeCharges(ctx, q.charges); err != nil {
		return false, err
	}
	switch v := &q.charges[len(q.charges)-1].Verdict; {
	case v.Allowed:
		return allowed, nil
	case v.Reason == limit.ReasonTableFull:
		return false, ErrKeysFull
	}
	q.Decision.Repeated = true
	return !q.CountRefused || !q.charges[len(q.charges)-2].Verdict.Allowed, nil
}

// counted returns charges without those of an idempotency key.
func counted(charges []store.Charge) []store.Charge {
	n := len(charges)
	for n > 0 && charges[n-1].Once {
		n--
	}
	return charges[:n]
}

// forget adds to charges that go back what gives back the idempotency key: a request that is refused after all is decided
// anew. The store finds the key by the charges that it was taken with, which come first and give nothing back.
func (q *Query) forget(back []store.Charge) []store.Charge {
	charges := counted(q.charges)
	if len(charges) == len(q.charges) {
		return back
	}
	all := slices.Clone(charges)
	for i := range all {
		all[i].Cost = 0
	}
	all = append(all, back...)
	for _, c := range q.charges[len(charges):] {
		if !c.CountRefused && !c.Failed {
			all = append(all, c)
		}
	}
	return all
}

// repeat makes the verdicts of a request that was admitted before those of one that is.
func (q *Query) repeat() {
	charges := counted(q.charges)
	for i := range charges {
		v := &charges[i].Verdict
		v.Allowed, v.Reason, v.RetryAfter = true, limit.ReasonNone, 0
	}
}
