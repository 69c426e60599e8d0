package limit

import (
	"math"
	"math/bits"
	"time"
)

// forecast is what a refusal tells about all who are in line behind it: a time before
// which they cannot pass. The zero value knows of none.
type forecast struct {
	at      Time  // when it was asked for, which is not after it was decided
	lag     Time  // until it was known
	cost    int64 // of the request that was refused
	loose   bool  // which left unserved, so that smaller ones may have gone before
	results []Result
}

// known says whether the refusal tells when the same request may pass. A place in flight
// comes free when somebody finishes, a store answers again whenever it does.
func (r *Result) known() bool {
	switch r.Reason {
	case ReasonConcurrency, ReasonTableFull, ReasonStoreFailure:
		return false
	default:
		return !r.StoreFailed && r.RetryAfter > 0
	}
}

// of makes f the forecast of a refusal that was asked for at one time and known at
// another. What it refers to is its own.
func (f *forecast) of(d *Decision, asked, known Time, cost int64) {
	f.at, f.lag, f.cost, f.loose = asked, known-asked, cost, false
	f.results = append(f.results[:0], d.Results...)
}

// earliest returns a time before which not all of sum can have been taken, where sum is
// what is in line from the request that was refused on.
func (f *forecast) earliest(sum int64) Time {
	earliest := Time(0)
	for i := range f.results {
		if r := &f.results[i]; !r.Allowed && !r.Shadow && r.known() {
			earliest = max(earliest, f.passes(r, sum))
		}
	}
	return earliest
}

// never says whether a cost is above what a limit that refused ever admits.
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
// A bucket has nothing left when the cost that was refused is taken as soon as it
// fits; each cost behind it takes its time to come, Window/Quota for one. A window
// grants Quota at its edge, which is when the refused cost fits; a log no more than
// Quota in any Window, and a sliding counter no more in any that is aligned. What a
// window had left for less than the refused cost goes to nobody while that is first.
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
			return at // something smaller may fit already
		}
		behind := sum - 1
		if f.loose {
			behind = sum - cost // less than cost may have gone before
		}
		windows := behind / r.Quota
		if r.Algorithm == SlidingWindowCounter || r.Reason == ReasonBanned {
			windows = max(0, windows-1)
		}
		if f.loose && r.Algorithm == SlidingWindowCounter && cost > 1 {
			first = at // what goes in parts weighs less than what goes at once
		}
		return first.Add(saturated(windows, r.Window))
	default:
		return first
	}
}

// share is n/quota of a window, rounded down, at most the longest duration.
func share(n int64, window time.Duration, quota int64) time.Duration {
	hi, lo := bits.Mul64(uint64(n), uint64(window))
	if hi >= uint64(quota) {
		return Never
	}
	d, _ := bits.Div64(hi, lo, uint64(quota))
	return time.Duration(min(d, math.MaxInt64))
}

// least is the least that enforced limits have left after a Decision.
func (d *Decision) least() int64 {
	least := int64(math.MaxInt64)
	for i := range d.Results {
		if r := &d.Results[i]; !r.Shadow {
			least = min(least, r.Remaining)
		}
	}
	return least
}
