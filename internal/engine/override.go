package engine

import (
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// OverrideName is the name of limits that come with requests, in decisions and metrics.
const OverrideName = "request-override"

// DefaultMaxOverrides bounds the number of different periods of limits that come with requests.
// Not larger: each is a table of counters, and a proxy that derives limits from what its clients
// send must not fill the memory. Not smaller: each tariff may have a period of its own.
const DefaultMaxOverrides = 4096

// overrideGrace is how much longer than its window an unused override is kept: longer than any
// decision that uses it takes.
const overrideGrace = 10 * time.Second

// overrides holds the counters of limits that come with requests, one table for each period:
// what a client has used in a window stays used when its next request has another count, as in
// Envoy's service, whose counters are named by the descriptor and the window. A table is dropped
// only when it was not used for longer than its window: then all its windows are empty.
type overrides struct {
	store         store.Store
	max           int
	countAdmitted bool // as in rules.Options

	mu       sync.RWMutex
	byPeriod map[time.Duration]*override
	sweepAt  time.Time // no sweep before: it visits all tables under the lock
}

type override struct {
	counters store.Counters
	window   time.Duration
	lastUsed atomic.Int64 // Unix nanoseconds
}

func (o *overrides) init(st store.Store, most int) {
	o.store, o.max = st, most
	o.byPeriod = make(map[time.Duration]*override)
}

// get returns the counters for the period of a valid rate. The count is in the charges.
func (o *overrides) get(period time.Duration, now time.Time) (*override, error) {
	o.mu.RLock()
	v := o.byPeriod[period]
	if v != nil {
		v.touch(now)
	}
	o.mu.RUnlock()
	if v != nil {
		return v, nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if v = o.byPeriod[period]; v != nil {
		v.touch(now)
		return v, nil
	}
	if len(o.byPeriod) >= o.max && !now.Before(o.sweepAt) {
		o.sweepAt = now.Add(time.Second)
		if err := o.sweepLocked(now); err != nil {
			return nil, err
		}
	}
	if len(o.byPeriod) >= o.max {
		return nil, fmt.Errorf("engine: %w: limit overrides of %d different periods are in use, the most there may be: send fewer different ones or configure limits", ErrBadRequest, o.max)
	}
	p := limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.Rate{Period: period}, CountRefused: !o.countAdmitted}
	c, err := o.store.Bind(store.Spec{ID: fmt.Sprintf("%s %d", OverrideName, int64(period)), Policy: p})
	if err != nil {
		return nil, fmt.Errorf("engine: cannot bind the counters of a limit override: %w", err)
	}
	v = &override{counters: c, window: period}
	v.touch(now)
	o.byPeriod[period] = v
	return v, nil
}

func (o *overrides) sweepLocked(now time.Time) error {
	for period, v := range o.byPeriod {
		idle := now.Sub(time.Unix(0, v.lastUsed.Load()))
		if idle <= overrideGrace || idle-overrideGrace <= v.window {
			continue
		}
		if err := o.store.Unbind(v.counters); err != nil {
			return fmt.Errorf("engine: cannot drop an unused limit override: %w", err)
		}
		delete(o.byPeriod, period)
	}
	return nil
}

// touch records a use, at most once a second: lastUsed is shared by all processors.
func (v *override) touch(now time.Time) {
	if t := now.UnixNano(); t-v.lastUsed.Load() > int64(time.Second) {
		v.lastUsed.Store(t)
	}
}

// appendOverrideKey appends an injective encoding of a domain and a descriptor.
func appendOverrideKey(dst []byte, domain string, attrs []limit.Attribute) []byte {
	dst = store.AppendKey(dst, domain)
	for i := range attrs {
		dst = store.AppendKey(store.AppendKey(dst, attrs[i].Name), attrs[i].Value)
	}
	return dst
}
