package spending

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/limit"
)

// taker takes from a lease of either kind in two phases.
type taker struct {
	lease interface {
		limit.Preparer
		Remaining() int64
		Lease() client.Lease
		Close()
	}
	doubt doubt
}

// prepare takes cost for p, tentatively, and makes the verdict of p.
func (t *taker) prepare(ctx context.Context, p *part, cost int64, wait bool) error {
	req, r := limit.Request{Cost: cost}, &p.result
	h, err := t.lease.Prepare(ctx, req, wait, r)
	if err != nil {
		return err
	}
	full := h.Cost == 0 && !h.More && (r.Reason == limit.ReasonRate || r.Reason == limit.ReasonConcurrency)
	doubtful := full && !p.charge.Shadow && (p.doubtful || t.doubt.worth(cost))
	if doubtful && wait {
		var fault error
		_, err = await(ctx, pollFull, func() bool {
			if t.lease.Remaining() >= cost {
				h, fault = t.lease.Prepare(ctx, req, false, r)
			}
			return fault != nil || h.Cost > 0
		})
		if err == nil {
			err = fault
		}
		if err != nil {
			return err
		}
	}
	p.held, p.prepared, p.more, p.doubtful = h.Cost > 0, h, !wait && (h.More || doubtful), !wait && doubtful
	p.verdict()
	return nil
}

// peek makes the verdict of p say how the lease stands, cost apart.
func (t *taker) peek(p *part) error {
	r := &p.result
	if _, err := t.lease.Prepare(context.Background(), limit.Request{Cost: p.charge.Cost, Peek: true}, false, r); err != nil {
		return err
	}
	if !r.Allowed && (p.charge.Cost == 0 || r.Reason != limit.ReasonRecovering && !t.lease.Lease().Full) {
		// More may come.
		p.allow()
	}
	p.verdict()
	return nil
}

func (t *taker) close() { t.lease.Close() }

const (
	// pollEvery is how often a lease is checked for tokens that have come. Not longer: the
	// answer arrives within a fraction of a millisecond. Not shorter: a check takes the
	// lease's lock.
	pollEvery = 250 * time.Microsecond
	// pollFull is how long a lease is checked where the limit is said to be saturated. Not
	// longer: most likely it is. Not shorter: a report may wait 10 ms for the answer to the
	// one before, and the coordinator gathers reports for a moment.
	pollFull = 25 * time.Millisecond
)

// await polls until f holds, and reports whether it did before d had passed.
func await(ctx context.Context, d time.Duration, f func() bool) (bool, error) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for begin := time.Now(); time.Since(begin) < d; {
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-tick.C:
		}
		if f() {
			return true, nil
		}
	}
	return false, nil
}

// doubt says whether to check for a while a lease of a limit that is said to be saturated. That is
// what the coordinator said last, of the rate: what is left of the burst may be enough for a cost
// that was not requested recently.
type doubt struct {
	largest atomic.Int64
	until   atomic.Int64 // Unix nanoseconds; then largest is forgotten
}

// worth says whether to wait for an answer about n, for which the coordinator is then asked.
func (d *doubt) worth(n int64) bool {
	now := time.Now().UnixNano()
	if until := d.until.Load(); now >= until && d.until.CompareAndSwap(until, now+int64(time.Second)) {
		d.largest.Store(0)
	}
	was := d.largest.Load()
	return n > was && d.largest.CompareAndSwap(was, n)
}
