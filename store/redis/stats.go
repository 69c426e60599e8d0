package redis

import (
	"math/bits"
	"sync/atomic"
	"time"
)

// Stats are figures of a store since it was made.
type Stats struct {
	Calls         uint64 // runs of the script
	Operations    uint64 // requests decided, however
	Failures      uint64 // calls that failed
	Timeouts      uint64 // requests and calls that took too long
	LocalRefusals uint64 // requests refused by a remembered state
	Fallbacks     uint64 // requests decided as on_store_failure says
	Late          uint64 // calls that the server ran too late to count

	BreakerOpen int // breakers that are open: their servers are not asked
	Breakers    int
	Instances   int // last seen at this prefix, this one included

	// RoundTrip is the moving average of the time of a call; 0 before the first.
	RoundTrip time.Duration

	// BatchSizes counts the calls that decided 1, 2, 3 to 4, 5 to 8 requests and
	// so on; the last those above 256.
	BatchSizes [10]uint64
}

type counts struct {
	calls, operations, failures, timeouts, localRefusals, fallbacks, late atomic.Uint64

	open      atomic.Int64
	roundTrip atomic.Int64
	sizes     [10]atomic.Uint64
}

// called notes a call that decides n requests.
func (c *counts) called(n int) {
	c.calls.Add(1)
	c.sizes[min(bits.Len(uint(max(n, 1)-1)), len(c.sizes)-1)].Add(1)
}

// trip records the time of a call: a moving average over about sixteen.
func (c *counts) trip(d time.Duration) {
	old := c.roundTrip.Load()
	if old == 0 {
		old = int64(d)
	}
	c.roundTrip.Store(old + (int64(d)-old)/16)
}

// Stats returns the figures.
func (s *Store) Stats() Stats {
	c := &s.stats
	st := Stats{
		Calls: c.calls.Load(), Operations: c.operations.Load(), Failures: c.failures.Load(),
		Timeouts: c.timeouts.Load(), LocalRefusals: c.localRefusals.Load(), Fallbacks: c.fallbacks.Load(),
		Late: c.late.Load(), BreakerOpen: int(c.open.Load()), Breakers: 1,
		Instances: int(s.instances.Load()), RoundTrip: time.Duration(c.roundTrip.Load()),
	}
	if s.opts.Topology == Cluster {
		st.Breakers = len(s.lanes)
	}
	for i := range c.sizes {
		st.BatchSizes[i] = c.sizes[i].Load()
	}
	return st
}
