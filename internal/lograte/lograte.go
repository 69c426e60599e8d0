// Package lograte keeps a log readable while something fails again and again.
package lograte

import (
	"sync/atomic"
	"time"
)

// Minute lets the first event through, and then one a minute. The zero value is ready for use. It is safe for
// concurrent use.
type Minute struct {
	last atomic.Int64 // Unix nanoseconds; 0 = never
}

// Allow reports whether an event at now is to be logged.
func (m *Minute) Allow(now time.Time) bool {
	last, at := m.last.Load(), now.UnixNano()
	return (last == 0 || at-last >= int64(time.Minute)) && m.last.CompareAndSwap(last, at)
}
