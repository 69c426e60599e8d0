// Package tally counts the answers of limits: admitted, refused and why, without taking a lock.
package tally

import (
	"sync/atomic"

	"github.com/stint-io/stint/limit"
)

const reasonCount = limit.ReasonCount

// Counter counts the answers of one limit. It is safe for concurrent use; its zero value has counted nothing.
type Counter struct {
	allowed       atomic.Uint64
	soft          atomic.Uint64
	near          atomic.Uint64
	refused       [reasonCount]atomic.Uint64
	shadowRefused [reasonCount]atomic.Uint64
	tagged        [reasonCount]atomic.Uint64
	unlimited     UnlimitedCounter
	despite       atomic.Uint64
	watcher       Watcher // nil = nobody is told
}

// Watcher is told of each answer of a limit, with the key of the bucket. It is safe for concurrent use and keeps neither.
type Watcher interface {
	Saw(key []byte, r *limit.Result)
}

// New returns the counter of the limit of that name, which tells what watch returns of each answer; nil = it tells nobody.
func New(watch func(limit string) Watcher, limit string) *Counter {
	c := new(Counter)
	if watch != nil {
		c.watcher = watch(limit)
	}
	return c
}

// Tally counts the answers of the limit of that name since the process began, or since the
// limit was configured. Peeks are not counted.
type Tally struct {
	Limit string
	// Allowed counts the requests that fitted this limit, and Soft those of them above its soft
	// threshold.
	Allowed, Soft uint64
	// NearLimit counts, for a rule in Envoy's format, the hits that were admitted
	// above the share that is called near.
	NearLimit uint64
	// Refused counts by limit.Reason the requests that this limit refused,
	// ShadowRefused those it would have refused were it enforced.
	Refused, ShadowRefused [reasonCount]uint64
	// Tagged counts by limit.Reason the requests over this limit that it let through with a
	// mark.
	Tagged [reasonCount]uint64
	// Unlimited counts by [Unlimited] the requests that were admitted without the limit. Those for which the
	// store failed are in the other counts as well.
	Unlimited [unlimitedReasons]uint64
	// Despite counts the requests to which the limit applied because its condition could not be evaluated.
	Despite uint64
}

// Read returns the counts, with the name of the limit.
func (t *Counter) Read(name string) Tally {
	r := Tally{
		Limit: name, Allowed: t.allowed.Load(), Soft: t.soft.Load(), NearLimit: t.near.Load(), Unlimited: t.unlimited.Read(), Despite: t.despite.Load(),
	}
	for i := range t.refused {
		r.Refused[i] = t.refused[i].Load()
		r.ShadowRefused[i] = t.shadowRefused[i].Load()
		r.Tagged[i] = t.tagged[i].Load()
	}
	return r
}

// CountNear counts the part of an admitted cost above near.
func (t *Counter) CountNear(r *limit.Result, taken, near int64) {
	if !r.Allowed || r.StoreFailed {
		return
	}
	if n := min(r.Quota-r.Remaining-near, taken); n > 0 {
		t.near.Add(uint64(n))
	}
}

// CountUnlimited counts a request that was admitted without the limit, and returns how many were for the same reason.
func (t *Counter) CountUnlimited(why Unlimited) uint64 { return t.unlimited.Count(why) }

// Applied reports whether the limit has ever applied to a request.
func (t *Counter) Applied() bool {
	n := t.allowed.Load()
	for i := range t.refused {
		n += t.refused[i].Load() + t.shadowRefused[i].Load() + t.tagged[i].Load()
	}
	return n > 0
}

// CountDespite counts a request to which the limit applied because its condition could not be evaluated.
func (t *Counter) CountDespite() { t.despite.Add(1) }

// Count counts an answer of the bucket of a key.
func (t *Counter) Count(key []byte, r *limit.Result) {
	if t.watcher != nil {
		t.watcher.Saw(key, r)
	}
	reason := int(r.Reason)
	if reason >= reasonCount {
		reason = 0
	}
	switch {
	case r.Allowed:
		t.allowed.Add(1)
		if r.Soft {
			t.soft.Add(1)
		}
	case r.Tagged:
		t.tagged[reason].Add(1)
	case r.Shadow:
		t.shadowRefused[reason].Add(1)
	default:
		t.refused[reason].Add(1)
	}
}
