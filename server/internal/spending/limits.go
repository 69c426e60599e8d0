package spending

import (
	"encoding/binary"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/store"
)

// lent is a leased limit.
type lent struct {
	name      string
	key       []string // the attributes of its key
	semaphore bool
	ended     atomic.Bool  // no key is opened any more
	serial    uint64       // of this one in the keys of the table
	most      atomic.Int64 // no request that costs more fits, whatever the key
}

// tableKey appends what a key of this limit is called in the table to dst.
func (l *lent) tableKey(dst, key []byte) []byte {
	return append(binary.BigEndian.AppendUint64(dst, l.serial), key...)
}

// route says whose charges go where; nil = to the store behind.
type route struct{ to atomic.Pointer[lent] }

// counters are those that Bind returns.
type counters struct {
	exact   store.Counters
	route   *route
	quota   int64
	timeout time.Duration // of permits
}

// Spec implements store.Counters.
func (c *counters) Spec() store.Spec { return c.exact.Spec() }

// exact returns the counters in the store behind, which refuses those of another store.
func exact(c store.Counters) store.Counters {
	if own, ok := c.(*counters); ok {
		return own.exact
	}
	return c
}

// routed returns the counters of a charge by which it may be on a lease, and the leased limit; nil = it is not.
func routed(c *store.Charge) (own *counters, to *lent) {
	if own, _ = c.Counters.(*counters); own != nil {
		to = own.route.to.Load()
	}
	return own, to
}
