package costs

import (
	"sync/atomic"
	"time"
)

// Stats say how good the predictions were. All counts are totals since the estimator was built.
type Stats struct {
	// Signatures that have statistics of their own.
	Signatures int

	// Observed requests; those of them that cost more than was predicted. With a quantile of
	// 0.9 one tenth are underestimated while the load is steady.
	Observed, Underestimated uint64

	// Predicted and Actual are sums over the observed requests; Error is the sum of the
	// absolute differences.
	Predicted, Actual, Error time.Duration

	// Unknown counts predictions by the default, Stale those by the dearest sample, Overflow
	// the samples that had to share an entry.
	Unknown, Stale, Overflow uint64
}

type counters struct {
	observed, underestimated  atomic.Uint64
	unknown, stale, overflow  atomic.Uint64
	predicted, actual, amount atomic.Int64
}

func (c *counters) observe(predicted, actual time.Duration) {
	c.observed.Add(1)
	c.predicted.Add(int64(predicted))
	c.actual.Add(int64(actual))
	c.amount.Add(int64((predicted - actual).Abs()))
	if actual > predicted {
		c.underestimated.Add(1)
	}
}

// Stats returns the figures of now. They are read one after the other, so requests that finish
// meanwhile may be in some of them.
func (e *Estimator) Stats() Stats {
	e.mu.Lock()
	count := e.count
	e.mu.Unlock()
	c := &e.stats
	return Stats{
		Signatures: count,
		Observed:   c.observed.Load(), Underestimated: c.underestimated.Load(),
		Predicted: time.Duration(c.predicted.Load()), Actual: time.Duration(c.actual.Load()),
		Error:   time.Duration(c.amount.Load()),
		Unknown: c.unknown.Load(), Stale: c.stale.Load(), Overflow: c.overflow.Load(),
	}
}
