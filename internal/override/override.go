// Package override has the counters of limits that come with requests: one table for each period. It decides nothing.
package override

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Name is the name of limits that come with requests, in decisions and metrics.
const Name = "request-override"

// DefaultMax bounds the number of different periods of limits that come with requests.
// Not larger: each is a table of counters, and a proxy that derives limits from what its clients
// send must not fill the memory. Not smaller: each tariff may have a period of its own.
const DefaultMax = 4096

// grace is how much longer than its window an unused override is kept: longer than any
// decision that uses it takes.
const grace = 10 * time.Second

// ErrTooMany is wrapped by the error of a period that has no room.
var ErrTooMany = errors.New("too many")

// Tables hold the counters of limits that come with requests, one table for each period:
// what a client has used in a window stays used when its next request has another count, as in
// Envoy's service, whose counters are named by the descriptor and the window. A table is dropped
// only when it was not used for longer than its window: then all its windows are empty.
type Tables struct {
	store         store.Store
	max           int
	CountAdmitted bool // as in rules.Options

	mu       sync.RWMutex
	byPeriod map[time.Duration]*Table
	sweepAt  time.Time // no sweep before: it visits all tables under the lock
}

// Table has the counters of one period.
type Table struct {
	Counters store.Counters
	Window   time.Duration
	lastUsed atomic.Int64 // Unix nanoseconds
}

// New returns no tables yet, and at most so many.
func New(st store.Store, most int, countAdmitted bool) *Tables {
	o := &Tables{CountAdmitted: countAdmitted}
	o.store, o.max = st, most
	o.byPeriod = make(map[time.Duration]*Table)
	return o
}

// Get returns the counters for the period of a valid rate. The count is in the charges.
func (o *Tables) Get(period time.Duration, now time.Time) (*Table, error) {
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
		return nil, fmt.Errorf("%w: limit overrides of %d different periods are in use, the most there may be: send fewer different ones or configure limits", ErrTooMany, o.max)
	}
	p := limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.Rate{Period: period}, CountRefused: !o.CountAdmitted}
	c, err := o.store.Bind(store.Spec{ID: fmt.Sprintf("%s %d", Name, int64(period)), Policy: p})
	if err != nil {
		return nil, fmt.Errorf("engine: cannot bind the counters of a limit override: %w", err)
	}
	v = &Table{Counters: c, Window: period}
	v.touch(now)
	o.byPeriod[period] = v
	return v, nil
}

func (o *Tables) sweepLocked(now time.Time) error {
	for period, v := range o.byPeriod {
		idle := now.Sub(time.Unix(0, v.lastUsed.Load()))
		if idle <= grace || idle-grace <= v.Window {
			continue
		}
		if err := o.store.Unbind(v.Counters); err != nil {
			return fmt.Errorf("engine: cannot drop an unused limit override: %w", err)
		}
		delete(o.byPeriod, period)
	}
	return nil
}

// touch records a use, at most once a second: lastUsed is shared by all processors.
func (v *Table) touch(now time.Time) {
	if t := now.UnixNano(); t-v.lastUsed.Load() > int64(time.Second) {
		v.lastUsed.Store(t)
	}
}

// AppendKey appends an injective encoding of a domain and a descriptor.
func AppendKey(dst []byte, domain string, attrs []limit.Attribute) []byte {
	dst = store.AppendKey(dst, domain)
	for i := range attrs {
		dst = store.AppendKey(store.AppendKey(dst, attrs[i].Name), attrs[i].Value)
	}
	return dst
}
