// Package tenants divides one token bucket among tenants: by weighted max-min fairness with guarantees,
// without an estimate of what each wants.
//
// A bucket is like a queue that is served at its rate: what was taken and is not refilled yet is what
// waits. Refill is divided among the tenants that have taken, and a tenant may take as long as it has taken
// no more than is left. So each has its share as soon as it asks, and nobody needs to give anything back.
//
// It says who may take; it does not count the limit itself, which the store does exactly. It starts no
// goroutine, keeps nothing after the process, and knows no request.
package tenants

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

const (
	// maxBuckets bounds the buckets of one limit, and with them memory: some 40 MB. Buckets beyond are not
	// divided: their limit holds, and whoever asks first has it.
	maxBuckets = 100_000
	// maxDebtors bounds the tenants of all buckets of one limit that are told apart: some 15 MB.
	maxDebtors = 100_000
	// swept is how many buckets are looked at when one begins. More than one, so that those that are idle go
	// faster than others come.
	swept = 4
)

// Options configure a [Table]. The zero value is ready to use.
type Options struct {
	// Now replaces the clock: nanoseconds since the Unix epoch, safe for concurrent use. nil = the system's.
	Now func() limit.Time
}

// Table keeps what tenants have taken in this process. It is safe for concurrent use. Use [New].
type Table struct {
	now func() limit.Time

	mu     sync.RWMutex
	limits map[string]*divided // by ShareTerms.ID

	undivided atomic.Int64
}

var _ store.Shares = (*Table)(nil)

// New returns an empty table.
func New(o Options) *Table {
	t := &Table{now: o.Now, limits: map[string]*divided{}}
	if t.now == nil {
		start := time.Now()
		t.now = func() limit.Time { return limit.At(start).Add(time.Since(start)) }
	}
	return t
}

// Undivided counts the takes of buckets that had no room in the table.
func (t *Table) Undivided() int64 { return t.undivided.Load() }

// divided are the buckets of one limit.
type divided struct {
	mu      sync.Mutex
	spec    *store.ShareTerms
	terms   terms
	buckets map[string]*bucket
	debtors int
}

// bucket is a meter, and the terms of its latest step.
type bucket struct {
	meter
	spec  *store.ShareTerms
	terms terms
}

func (t *Table) of(s *store.ShareTerms) *divided {
	t.mu.RLock()
	d := t.limits[s.ID]
	t.mu.RUnlock()
	if d != nil {
		return d
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if d = t.limits[s.ID]; d == nil {
		d = &divided{buckets: map[string]*bucket{}}
		t.limits[s.ID] = d
	}
	return d
}

// Keep forgets the limits whose IDs are not wanted.
func (t *Table) Keep(wanted func(id string) bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for id := range t.limits {
		if !wanted(id) {
			delete(t.limits, id)
		}
	}
}

// TakeShare implements [store.Shares]. It fails only when ctx has ended or the cost is negative.
func (t *Table) TakeShare(ctx context.Context, s *store.Share) error {
	return t.do(ctx, s, func(d *divided, b *bucket, c claimant) {
		stand, fits := b.take(&d.terms, b.at, c, float64(s.Cost), s.CountRefused)
		stand.answer(&d.terms, &b.meter, s, fits)
	})
}

// PeekShare implements [store.Shares].
func (t *Table) PeekShare(ctx context.Context, s *store.Share) error {
	return t.do(ctx, s, func(d *divided, b *bucket, c claimant) {
		stand := b.stand(&d.terms, c)
		stand.answer(&d.terms, &b.meter, s, stand.fits(float64(s.Cost)))
	})
}

// ReturnShare implements [store.Shares].
func (t *Table) ReturnShare(ctx context.Context, s *store.Share) error {
	return t.do(context.WithoutCancel(ctx), s, func(_ *divided, b *bucket, c claimant) { b.add(c, -float64(s.Cost)) })
}

// do calls f with the bucket of s at now.
func (t *Table) do(ctx context.Context, s *store.Share, f func(*divided, *bucket, claimant)) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("tenants: nothing taken: %w", err)
	}
	if s.Cost < 0 || s.Cost > limit.MaxCount {
		return fmt.Errorf("tenants: cost %d is not within 0 and %d", s.Cost, int64(limit.MaxCount))
	}
	d := t.of(s.Terms)
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.spec != s.Terms {
		d.spec, d.terms = s.Terms, termsOf(s.Terms)
	}
	at := t.now()
	now := float64(at/1000) + float64(at%1000)/1000 // whole microseconds exactly, as Redis has them
	b := d.buckets[string(s.Key)]
	if b == nil {
		d.sweep(now)
		if len(d.buckets) >= maxBuckets {
			t.undivided.Add(1)
			s.Verdict = limit.Verdict{Allowed: true, Remaining: s.Terms.Policy.Burst}
			s.Tenants, s.Taken, s.Rate = 0, 0, 0
			return nil
		}
		b = &bucket{spec: s.Terms, terms: d.terms}
		b.at, b.floors = now, make([]floor, len(d.terms.names))
		d.buckets[string(s.Key)] = b
	}
	before := len(b.debtors)
	b.advance(&b.terms, now)
	if b.spec != s.Terms {
		b.change(d.spec, d.terms)
	}
	c := d.terms.claimant(s.Terms, s.Tenant)
	if c.floor < 0 && b.index[c.name] == nil && (len(b.debtors) >= store.MaxShareTenants || d.debtors >= maxDebtors) {
		c = claimant{floor: -1, weight: 1} // one tenant for all that are too many
	}
	f(d, b, c)
	d.debtors += len(b.debtors) - before
	return nil
}

// change puts other terms in force. What each tenant has taken stays taken.
func (b *bucket) change(spec *store.ShareTerms, next terms) {
	before := b.meter
	names := b.terms.names
	b.spec, b.terms = spec, next
	b.floors = make([]floor, len(next.names))
	for i, name := range names {
		if f := before.floors[i]; f.taken > 0 || f.known {
			c := next.claimant(spec, []byte(name))
			b.taken -= f.taken
			b.add(c, f.taken)
			if c.floor >= 0 {
				b.floors[c.floor].asked, b.floors[c.floor].known = f.asked, f.known
			}
		}
	}
	for _, name := range next.names {
		if d := b.index[name]; d != nil {
			own := max((d.finish-b.virtual)*d.weight, 0)
			b.remove(d)
			b.taken -= own
			b.add(next.claimant(spec, []byte(name)), own)
		}
	}
	b.settle()
}

// sweep drops some buckets that are as new.
func (d *divided) sweep(now float64) {
	n := 0
	for key, b := range d.buckets {
		before := len(b.debtors)
		if b.advance(&b.terms, now); b.idle() {
			delete(d.buckets, key)
		}
		d.debtors += len(b.debtors) - before
		if n++; n >= swept {
			return
		}
	}
}
