package override

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// ErrTerms is wrapped by the errors of terms that no bucket can have.
var ErrTerms = errors.New("bad limit")

// longest is how long a bucket may take to fill: some 73 years, as much as a word of the store in memory has.
const longest = 1<<61 - 1

// Buckets are the buckets of limits that come with requests: one for each key, whatever terms its requests bring. A
// bucket knows time alone, as a key of the generic cell rate algorithm does: it is until when the key is used. One
// token is worth the period divided by the count, rounded up to a nanosecond. So terms may change with each request,
// and what was used stays used.
//
// The store must honour [store.Charge.Quota] for buckets. Buckets are safe for concurrent use.
type Buckets struct {
	store    store.Store
	counters store.Counters
}

// NewBuckets binds the counters.
func NewBuckets(st store.Store) (*Buckets, error) {
	p := limit.Policy{Rate: limit.Rate{Count: 1, Period: 1}, Burst: longest}
	c, err := st.Bind(store.Spec{ID: Name + " bucket", Policy: p})
	if err != nil {
		return nil, fmt.Errorf("override: cannot bind the buckets: %w", err)
	}
	return &Buckets{st, c}, nil
}

// Terms are a limit that comes with a request: Count tokens per Period, and Burst of them at once. All are above 0.
type Terms struct {
	Burst, Count int64
	Period       time.Duration
}

// interval is what one token is worth.
func (t *Terms) interval() (int64, error) {
	if t.Burst < 1 || t.Count < 1 || t.Period < 1 {
		return 0, fmt.Errorf("%w: the burst, the count and the period want to be above 0", ErrTerms)
	}
	one := (int64(t.Period)-1)/t.Count + 1
	switch {
	case t.Count > int64(t.Period):
		return 0, fmt.Errorf("%w: the rate is above one per nanosecond: make the period longer, or the count smaller", ErrTerms)
	case t.Burst >= longest/one:
		return 0, fmt.Errorf("%w: the bucket fills in more than 73 years: make the burst smaller, or the rate higher", ErrTerms)
	}
	return one, nil
}

// Call is what one caller needs for his calls, one after the other. The zero value is ready.
type Call struct{ charges [1]store.Charge }

// Take takes cost, from 0 (which changes nothing), from the bucket of a key. Nothing is allocated once the key is
// known. The error wraps [ErrTerms] if there can be no such bucket, and then nothing was taken.
func (b *Buckets) Take(ctx context.Context, call *Call, key []byte, t Terms, cost int64) (limit.Verdict, error) {
	one, err := t.interval()
	if err != nil {
		return limit.Verdict{}, err
	}
	if cost < 0 {
		return limit.Verdict{}, fmt.Errorf("%w: the cost is negative", ErrTerms)
	}
	c := &call.charges[0]
	*c = store.Charge{Counters: b.counters, Key: key, Cost: min(cost, t.Burst+1) * one, Quota: t.Burst * one, HasQuota: true}
	if _, err := b.store.Take(ctx, call.charges[:]); err != nil {
		return limit.Verdict{}, err
	}
	v := c.Verdict
	if over := v.ResetAfter - time.Duration(c.Quota); cost == 0 && over > 0 {
		v.Allowed, v.RetryAfter = false, over // other terms have taken more than these hold
	}
	v.Remaining /= one
	return v, nil
}

// Reset drops the bucket of a key, and reports whether anything of it was used.
func (b *Buckets) Reset(ctx context.Context, call *Call, key []byte) (used bool, err error) {
	c := &call.charges[0]
	*c = store.Charge{Counters: b.counters, Key: key, Quota: longest, HasQuota: true}
	if _, err := b.store.Take(ctx, call.charges[:]); err != nil {
		return false, err
	}
	return c.Verdict.ResetAfter > 0, b.store.Reset(ctx, call.charges[:])
}
