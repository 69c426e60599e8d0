package engine

import (
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// OverrideName is the name under which limits that came with requests appear in
// decisions and metrics.
const OverrideName = "request-override"

// DefaultMaxOverrides is how many different limits may come with requests at a
// time. Not larger: each is a table of counters, and a proxy that derives limits
// from what its clients send must not fill the memory. Not smaller: one limit for
// each of a few thousand tariffs is in use.
const DefaultMaxOverrides = 4096

// overrideGrace is how much longer than its window an override is kept unused:
// more than any decision takes that got hold of it just before.
const overrideGrace = 10 * time.Second

// overrides holds the counters of limits that came with requests, one table for
// each different rate. A table is dropped only when it has not been used for
// longer than its window, for then all its windows are empty.
type overrides struct {
	store         store.Store
	max           int
	countAdmitted bool // as in rules.Options

	mu      sync.RWMutex
	byRate  map[limit.Rate]*override
	sweepAt time.Time // not before: it looks at all of them while everybody waits
}

type override struct {
	counters store.Counters
	window   time.Duration
	lastUsed atomic.Int64 // Unix nanoseconds
}

func (o *overrides) init(st store.Store, most int) {
	o.store, o.max = st, most
	o.byRate = make(map[limit.Rate]*override)
}

// get returns the counters for rate, which must be valid.
func (o *overrides) get(rate limit.Rate, now time.Time) (*override, error) {
	o.mu.RLock()
	v := o.byRate[rate]
	if v != nil {
		v.touch(now)
	}
	o.mu.RUnlock()
	if v != nil {
		return v, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if v = o.byRate[rate]; v != nil {
		v.touch(now)
		return v, nil
	}
	if len(o.byRate) >= o.max && !now.Before(o.sweepAt) {
		o.sweepAt = now.Add(time.Second)
		if err := o.sweepLocked(now); err != nil {
			return nil, err
		}
	}
	if len(o.byRate) >= o.max {
		return nil, fmt.Errorf("engine: %w: %d different limit overrides are in use, the most there may be: send fewer different ones or configure limits", ErrBadRequest, o.max)
	}
	p := limit.Policy{Algorithm: limit.FixedWindow, Rate: rate, CountRefused: !o.countAdmitted}
	if err := p.Validate(); err != nil {
		return nil, fmt.Errorf("engine: %w: limit override: %w", ErrBadRequest, err)
	}
	c, err := o.store.Bind(store.Spec{ID: fmt.Sprintf("%s %d/%d", OverrideName, rate.Count, int64(rate.Period)), Policy: p})
	if err != nil {
		return nil, fmt.Errorf("engine: cannot bind the counters of a limit override: %w", err)
	}
	v = &override{counters: c, window: rate.Period}
	v.touch(now)
	o.byRate[rate] = v
	return v, nil
}

func (o *overrides) sweepLocked(now time.Time) error {
	for rate, v := range o.byRate {
		idle := now.Sub(time.Unix(0, v.lastUsed.Load()))
		if idle <= overrideGrace || idle-overrideGrace <= v.window {
			continue
		}
		if err := o.store.Unbind(v.counters); err != nil {
			return fmt.Errorf("engine: cannot drop an unused limit override: %w", err)
		}
		delete(o.byRate, rate)
	}
	return nil
}

// touch notes the use, at most once a second: the number is shared by all
// processors.
func (v *override) touch(now time.Time) {
	if t := now.UnixNano(); t-v.lastUsed.Load() > int64(time.Second) {
		v.lastUsed.Store(t)
	}
}

// appendOverrideKey appends an injective encoding of a domain and a descriptor.
func appendOverrideKey(dst []byte, domain string, attrs []limit.Attribute) []byte {
	dst = appendString(dst, domain)
	for i := range attrs {
		dst = appendString(dst, attrs[i].Name)
		dst = appendString(dst, attrs[i].Value)
	}
	return dst
}

func appendString(dst []byte, s string) []byte {
	dst = binary.AppendUvarint(dst, uint64(len(s)))
	return append(dst, s...)
}
