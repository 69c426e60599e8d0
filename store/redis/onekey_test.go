package redis

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// TestHistoriesOneKey: a few small costs, refunds, resets and ends of one key, several in
// one run of the script, at moments that are often the same: a state is then emptied,
// filled and changed again before it is written, and each answer is the book's.
func TestHistoriesOneKey(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	h := newHistory(t, seeding.Rand(t))
	r := h.r
	for n := range 140 {
		p := limit.Policy{Algorithm: limit.Algorithm(n % 6), Rate: limit.Rate{Count: 1 + r.Int64N(4), Period: time.Duration(1+r.Int64N(5)) * time.Millisecond}}
		switch p.Algorithm {
		case limit.TokenBucket, limit.LeakyBucket:
			p.Burst = 1 + r.Int64N(4)
		case limit.FixedWindow:
			p.Align, p.Ban = limit.Alignment(r.IntN(2)), time.Duration(r.Int64N(2))*time.Millisecond
		case limit.SlidingWindowCounter:
			p.Rounding = limit.Rounding(r.IntN(3))
		case limit.Concurrency:
			p.MaxInFlight, p.Timeout = 1+r.Int64N(4), p.Rate.Period
		}
		p.CountRefused = p.Algorithm != limit.Concurrency && r.IntN(4) == 0
		h.seed = uint64(n)
		h.forget()
		h.begin("one", p)
		var emptied []*request // twice at one moment, given back, and filled again
		for _, v := range []verb{verbTake, verbTake, verbRefund, verbRefund, verbTake, verbPeek} {
			emptied = append(emptied, h.ofOne(h.limits[0], v, 1))
		}
		h.atOnce(emptied)
		for range 12 {
			var all []*request
			for range 2 + r.IntN(6) {
				q := &request{verb: []verb{verbTake, verbTake, verbTake, verbTake, verbPeek, verbRefund, verbRefund, verbFinish, verbFinish, verbReset}[r.IntN(10)]}
				c := h.charge(h.limits[0], 0, 1+r.Int64N(3))
				if r.IntN(3) > 0 {
					c.Cost = 1
				}
				c.Permit, c.Shadow, c.CountRefused = r.Uint64N(3), r.IntN(8) == 0, r.IntN(8) == 0
				q.charges = []store.Charge{c}
				q.models = h.modelsOf(q.charges)
				all = append(all, q)
			}
			h.atOnce(all)
			if t.Failed() {
				t.Fatalf("history %d: %+v", n, p)
			}
			if r.IntN(3) > 0 {
				h.clock.Add(int64(p.Rate.Period) / 4 * r.Int64N(6) / 1000 * 1000)
			}
		}
	}
	if h.admitted < 1000 || h.refused < 1000 {
		t.Errorf("%d admitted and %d refused: the histories are one-sided", h.admitted, h.refused)
	}
}

// atOnce has requests decided in one run of the script. Requests are tried one by one where
// that stops, which none of these is a reason for.
func (h *history) atOnce(all []*request) {
	h.Helper()
	before := h.store.Stats()
	h.round(all)
	if after := h.store.Stats(); after.Calls != before.Calls+1 || after.Failures != before.Failures {
		h.Errorf("%d calls and %d failures, want one call: %v", after.Calls-before.Calls, after.Failures-before.Failures, all)
	}
}
