package limit

import (
	"math"
	"time"

	"github.com/stint-io/stint/internal/fixed"
)

// forecast is what a refusal says about the waiters behind it: a time before which they cannot
// be admitted. The zero value knows of none.
type forecast struct {
	at      Time  // when the Taker was called, which is not after it decided
	lag     Time  // from then until the answer was known
	cost    int64 // of the request that was refused
	loose   bool  // that request left unserved, so smaller ones may have passed before it
	results []Result
}

// known reports whether the refusal says when the same request may pass. A permit in flight is
// given back whenever its holder finishes, and a store answers again whenever it does.
func (r *Result) known() bool {
	switch r.Reason {
	case ReasonConcurrency, ReasonTableFull, ReasonStoreFailure:
		return false
	default:
		return !r.StoreFailed && r.RetryAfter > 0
	}
}

// of sets f to the forecast of a refusal. asked is when the Taker was called, known when the
// answer came. f keeps a copy of the Results.
func (f *forecast) of(d *Decision, asked, known Time, cost int64) {
	f.at, f.lag, f.cost, f.loose = asked, known-asked, cost, false
	f.results = append(f.results[:0], d.Results...)
}

// earliest returns a time before which not all of sum can have been taken; sum is the cost in
// line from the refused request on.
func (f *forecast) earliest(sum int64) Time {
	earliest := Time(0)
	for i := range f.results {
		if r := &f.results[i]; !r.Allowed && !r.Shadow && r.known() {
			earliest = max(earliest, f.passes(r, sum))
		}
	}
	return earliest
}

// never reports whether cost is above what a limit that refused ever admits.
func (f *forecast) never(cost int64) bool {
	for i := range f.results {
		if r := &f.results[i]; !r.Allowed && !r.Shadow && r.known() && r.Cost == f.cost && cost > r.Quota && r.Quota >= f.cost {
			return true
		}
	}
	return false
}

// passes is earliest by one limit that refused.
//
// A bucket is empty when the refused cost is taken as soon as it fits; each token behind it
// takes Window/Quota to refill. A fixed window grants Quota at its edge, which is when the
// refused cost fits; a log no more than Quota in any Window, and a sliding counter no more than
// Quota in any aligned Window. What a window had left for less than the refused cost goes to
// nobody while that request is first.
func (f *forecast) passes(r *Result, sum int64) Time {
	at, cost, first := f.at, f.cost, f.at.Add(r.RetryAfter)
	if r.Cost != cost || r.Quota <= 0 || r.Window <= 0 {
		if f.loose && sum < cost {
			return at
		}
		return first // it counts in other units
	}
	switch r.Algorithm {
	case TokenBucket, LeakyBucket:
		if sum >= cost {
			return first.Add(share(sum-cost, r.Window, r.Quota))
		}
		return max(at, first-Time(min(share(cost-sum, r.Window, r.Quota), time.Duration(first-at)))-1)
	case FixedWindow, SlidingWindowLog, SlidingWindowCounter:
		if sum < cost {
			return at // a smaller cost may fit already
		}
		behind := sum - 1
		if f.loose {
			behind = sum - cost // less than cost may have passed before
		}
		windows := behind / r.Quota
		if r.Algorithm == SlidingWindowCounter || r.Reason == ReasonBanned {
			windows = max(0, windows-1)
		}
		if f.loose && r.Algorithm == SlidingWindowCounter && cost > 1 {
			first = at // a cost taken in pieces weighs less than one taken at once
		}
		return first.Add(saturated(windows, r.Window))
	default:
		return first
	}
}

// share is n/quota of a window, rounded down, at most the longest Duration.
func share(n int64, window time.Duration, quota int64) time.Duration {
	return time.Duration(min(fixed.Product(uint64(n), uint64(window)).Div(uint64(quota)), uint64(Never)))
}

// least is the smallest Remaining of the enforced limits.
func (d *Decision) least() int64 {
	least := int64(math.MaxInt64)
	for i := range d.Results {
		if r := &d.Results[i]; !r.Shadow {
			least = min(least, r.Remaining)
		}
	}
	return least
}
