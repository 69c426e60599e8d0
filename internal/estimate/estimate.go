// Package estimate learns what requests to language models cost, by model, tenant and the most that they declare, from
// what they have cost, so that less than the most has to be reserved. It decides nothing.
package estimate

import (
	"fmt"
	"math/bits"
	"sync"
	"time"

	"github.com/stint-io/stint/internal/costs"
)

// Options set up an Estimator. The zero value has the defaults.
type Options struct {
	// Quantile of the recent costs that is estimated, above 0 and below 1; 0 = 0.9.
	Quantile float64
	// Start is the estimate of what nothing is known of; 0 = the declared most.
	Start int64
	// MaxKeys bounds the models, tenants and sizes that have an estimate of their own; 0 = 1,024. Others share one.
	MaxKeys int
}

// unit is what one token is to the running quantiles, which are of durations from a microsecond to a minute.
const unit = time.Microsecond

// fading halves the weight of what was settled after some 700 further requests.
const fading = 0.999

// Estimator estimates. It is safe for concurrent use; New makes it.
type Estimator struct {
	start int64
	costs *costs.Estimator

	mu                 sync.Mutex
	exceeded, declared float64 // above estimates: what was used, and what was declared, each by its cost; fading
}

// New returns an estimator that knows nothing.
func New(o Options) (*Estimator, error) {
	if o.Start < 0 {
		return nil, fmt.Errorf("estimate: a start of %d: it is not negative", o.Start)
	}
	c, err := costs.New(costs.Options{Quantile: o.Quantile, MaxSignatures: o.MaxKeys, Default: unit, Min: unit, Max: 1 << 40})
	if err != nil {
		return nil, fmt.Errorf("estimate: %w", err)
	}
	return &Estimator{start: o.Start, costs: c}, nil
}

// signature puts declared mosts of one power of two together: most callers have a few of them.
func signature(model, tenant string, declared int64) string {
	return fmt.Sprintf("%q %q %d", model, tenant, bits.Len64(uint64(max(declared, 0))))
}

// Estimate returns what a request is expected to cost: at least 1, and at most what it declares; declared 0 = it
// declares nothing.
func (e *Estimator) Estimate(now time.Duration, model, tenant string, declared int64) int64 {
	n := int64(e.costs.PredictAt(now, signature(model, tenant, declared)) / unit)
	if n <= 1 { // nothing is known
		if n = e.start; n == 0 {
			n = declared
		}
	}
	if declared > 0 {
		n = min(n, declared)
	}
	return max(n, 1)
}

// Prudent returns what to reserve for a request: what is estimated, or all that it declares when what is left of the
// budget would not do for what open requests are likely to owe as well. open is the sum, over the requests that
// run, of what each declares above what was reserved for it. To hold for certain, left would have to cover all of
// open, which is to reserve what is declared from the beginning.
func (e *Estimator) Prudent(estimated, declared, left, open int64) int64 {
	if declared <= estimated || float64(left-estimated) >= e.owed()*float64(open+declared-estimated) {
		return estimated
	}
	return declared
}

// owed is the share of what requests declare above their estimates that those in flight at a time will use. A
// request is in flight for as long as it is long, so each counts by what it has cost.
func (e *Estimator) owed() float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.declared <= 0 {
		return 1
	}
	return e.exceeded / e.declared
}

// Settle learns what a request has cost for which so much was estimated.
func (e *Estimator) Settle(now time.Duration, model, tenant string, declared, estimated, actual int64) {
	e.costs.ObserveAt(now, signature(model, tenant, declared), time.Duration(estimated)*unit, time.Duration(max(actual, 2))*unit)
	if declared <= estimated || actual <= 0 {
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	weight := float64(actual)
	e.exceeded = e.exceeded*fading + weight*float64(max(actual-estimated, 0))
	e.declared = e.declared*fading + weight*float64(declared-estimated)
}

// Error is the sum of the differences between estimates and costs, in terms of the costs.
func (e *Estimator) Error() float64 {
	s := e.costs.Stats()
	if s.Actual <= 0 {
		return 0
	}
	return float64(s.Error) / float64(s.Actual)
}
