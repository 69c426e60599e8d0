package client

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/keytable"
	"github.com/stint-io/stint/internal/leasewire"
	"github.com/stint-io/stint/limit"
)

// The defaults of [KeyedOptions].
const (
	// DefaultMaxKeys bounds the keys that one instance holds leases for at a time.
	// Not more: the protocol ends there. Not fewer: each takes some two kilobytes.
	DefaultMaxKeys = leasewire.MaxDemands
	// DefaultIdle is how long a key that nobody asks for keeps its lease. Not longer:
	// the table fills with those who came once. Not shorter: a new lease costs its
	// first request a round trip.
	DefaultIdle = time.Minute
)

// KeyedOptions are how an instance uses the keys of one limit.
type KeyedOptions struct {
	LimitOptions

	Semaphore bool          // the limit is of what is in flight
	MaxKeys   int           // 0 = DefaultMaxKeys
	Idle      time.Duration // 0 = DefaultIdle

	// RefuseMissing refuses requests that lack an attribute of the key. Otherwise no
	// limit applies to them.
	RefuseMissing bool
}

// Keyed is a limit with a key: one lease for each combination of the key's values. It
// is a [limit.Taker] that takes the values from the request's attributes.
//
// Keys that nobody asks for are closed and their leases given back. When the table is
// full of keys in use, new ones are refused: [limit.ReasonTableFull]. It is safe for
// concurrent use; [Client.Keyed] makes one.
type Keyed struct {
	client *Client
	name   string
	names  []string
	opts   KeyedOptions

	skipped atomic.Bool // it was logged that a request lacks an attribute

	table *keytable.Table[keyLease]
}

type entry = keytable.Entry[keyLease]

// keyLease is the lease of one key: of a Limiter or of a Semaphore.
type keyLease struct {
	limiter   *Limiter
	semaphore *Semaphore
}

func (v keyLease) lease() *leasedLimit {
	if v.semaphore != nil {
		return &v.semaphore.lease
	}
	return &v.limiter.lease
}

// Idle implements keytable.Value: nobody waits and no permit is in use.
func (v keyLease) Idle(now limit.Time) bool {
	r := v.lease().spender.Observe(now)
	return r.Waiting == 0 && r.InUse == 0
}

// Close implements keytable.Value.
func (v keyLease) Close() { v.lease().close(ErrClosed) }

// Keyed opens a limit whose key has the attributes named, in the order of its
// declaration.
func (c *Client) Keyed(name string, key []string, o KeyedOptions) (*Keyed, error) {
	if len(key) == 0 || len(key) > leasewire.MaxKeyValues {
		return nil, fmt.Errorf("client: limit %q: the key has %d attributes, want 1 to %d; without key use Limit or Semaphore", name, len(key), leasewire.MaxKeyValues)
	}
	if o.MaxKeys < 0 || o.MaxKeys > DefaultMaxKeys || o.Idle < 0 {
		return nil, fmt.Errorf("client: limit %q: max keys is %d and idle %v, want 0 to %d and at least 0", name, o.MaxKeys, o.Idle, DefaultMaxKeys)
	}
	o.MaxKeys, o.Idle = cmp.Or(o.MaxKeys, DefaultMaxKeys), cmp.Or(o.Idle, DefaultIdle)
	k := &Keyed{client: c, name: name, names: append([]string(nil), key...), opts: o, table: keytable.New[keyLease](o.MaxKeys, o.Idle)}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return nil, ErrClosed
	}
	c.tables = append(c.tables, k)
	return k, nil
}

// Attributes implements [limit.AttributeReader].
func (k *Keyed) Attributes() []string { return k.names }

// Take implements [limit.Taker]; see [Limiter.Take] and [Semaphore.Take].
func (k *Keyed) Take(ctx context.Context, req limit.Request) (limit.Decision, error) {
	var room [usualKey]byte
	key, err := k.key(room[:0], req)
	if errors.Is(err, errMissing) {
		if err := k.misnamed(); err != nil {
			return limit.Decision{}, err
		}
		if !k.opts.RefuseMissing {
			k.skip()
			return limit.Decision{Allowed: true}, nil
		}
		return k.refuse(req, limit.ReasonMissing, limit.Never), nil
	}
	if err != nil {
		return limit.Decision{}, err
	}
	e, err := k.entry(key)
	if errors.Is(err, keytable.ErrFull) {
		return k.refuse(req, limit.ReasonTableFull, k.opts.Idle), nil
	}
	if err != nil {
		return limit.Decision{}, err
	}
	defer e.Done()
	if e.Value.semaphore != nil {
		return e.Value.semaphore.Take(ctx, req)
	}
	return e.Value.limiter.Take(ctx, req)
}

// Finish implements [limit.Finisher], for semaphores.
func (k *Keyed) Finish(ctx context.Context, req limit.Request, permit uint64) error {
	var room [usualKey]byte
	key, err := k.key(room[:0], req)
	if err != nil {
		return nil //nolint:nilerr // such a request holds nothing
	}
	e := k.table.Find(key)
	if e == nil {
		return nil
	}
	defer e.Done()
	if e.Value.semaphore == nil {
		return nil
	}
	return e.Value.semaphore.Finish(ctx, req, permit)
}

// Demand says how much of the key that req selects the application wants; see
// [Limiter.Demand] and [Semaphore.Demand]. It opens the key if need be, and counts as a use:
// a key that is wanted all the time has to be demanded once per [KeyedOptions.Idle]. A
// request that lacks an attribute of the key, and a table that is full, are errors.
func (k *Keyed) Demand(req limit.Request, wanted float64) error {
	var room [usualKey]byte
	key, err := k.key(room[:0], req)
	var e *entry
	if err == nil {
		e, err = k.entry(key)
	}
	switch {
	case errors.Is(err, errMissing):
		return fmt.Errorf("client: demand on limit %q: the request lacks an attribute of the key %q", k.name, k.names)
	case errors.Is(err, keytable.ErrFull):
		return fmt.Errorf("client: demand on limit %q: %d keys are in use, which is all: raise MaxKeys, or demand later", k.name, k.opts.MaxKeys)
	case err != nil:
		return err
	}
	defer e.Done()
	return e.Value.lease().demand(wanted)
}

var errMissing = errors.New("missing")

// usualKey is how long a key may be before it takes memory of its own. Not longer: it
// is cleared for each request. Not shorter: an account, an address and a path fit.
const usualKey = 128

// key appends the request's key to dst.
func (k *Keyed) key(dst []byte, req limit.Request) ([]byte, error) {
	var room [leasewire.MaxKeyValues]string
	values := room[:0]
	for _, name := range k.names {
		v, ok := req.Get(name)
		if !ok {
			return nil, errMissing
		}
		values = append(values, v)
	}
	return leasewire.AppendKey(dst, values...)
}

// entry returns the entry of a key, and makes it if need be. It stays open until Done.
func (k *Keyed) entry(key []byte) (*entry, error) {
	return k.table.Get(k.client.now(), key, k.open)
}

func (k *Keyed) open(key string) (v keyLease, err error) {
	if k.opts.Semaphore {
		v.semaphore, err = k.client.openSemaphore(k.name, key, k.names, k.opts.LimitOptions)
	} else {
		v.limiter, err = k.client.open(k.name, key, k.names, k.opts.LimitOptions)
	}
	return v, err
}

// Keys is how many keys have a lease, or ask for one.
func (k *Keyed) Keys() int { return k.table.Len() }

// Err is why nothing is lent of the limit, whatever the key; see [Limiter.Err]. It asks the
// coordinator by a key that stands for no request, so the first call, and one after
// [KeyedOptions.Idle], is nil, and later ones have the answer.
func (k *Keyed) Err() error { return k.misnamed() }

// Close gives all leases back.
func (k *Keyed) Close() { k.table.Close(ErrClosed) }

// skip notes that the limit does not apply to a request. That one lacks the key's
// attribute is usual for some limits, and for others a name that is wrong: it is logged
// once.
func (k *Keyed) skip() {
	k.client.opts.Hooks.Skipped(k.name)
	if !k.skipped.Swap(true) {
		k.client.log.LogAttrs(context.Background(), slog.LevelWarn, "a request lacks an attribute of a limit's key, so the limit does not apply to it: are the names right? This is logged once",
			slog.String("limit", k.name), slog.Any("key", k.names))
	}
}

// misnamed is why no request at all can have the limit's key, or nil: the coordinator
// does not know the limit, or its key has other attributes. No lease was asked for by a
// request that lacks an attribute, so one is opened for a key that stands for none.
func (k *Keyed) misnamed() error {
	var room [usualKey]byte
	var values [leasewire.MaxKeyValues]string
	for i := range k.names {
		values[i] = noValue
	}
	key, err := leasewire.AppendKey(room[:0], values[:len(k.names)]...)
	if err != nil {
		return err
	}
	e, err := k.entry(key)
	if err != nil {
		return nil //nolint:nilerr // the table is full: there are requests that have the attributes
	}
	defer e.Done()
	return e.Value.lease().fault()
}

// noValue is a value that each attribute may have, an address too.
const noValue = "0.0.0.0"

func (k *Keyed) refuse(req limit.Request, reason limit.Reason, after time.Duration) limit.Decision {
	if !req.Peek {
		k.client.opts.Hooks.Refused(k.name, max(1, req.Cost), reason)
	}
	var r limit.Result
	k.refuseTo(&r, req, reason, after)
	return refusal(r)
}

func (k *Keyed) refuseTo(r *limit.Result, req limit.Request, reason limit.Reason, after time.Duration) {
	*r = limit.Result{Limit: k.name, Cost: max(1, req.Cost), Verdict: limit.Verdict{Reason: reason, RetryAfter: after}}
	if k.opts.Semaphore {
		r.Algorithm = limit.Concurrency
	}
}
