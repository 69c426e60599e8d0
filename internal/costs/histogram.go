package costs

import (
	"math"
	"math/bits"
	"time"
)

// Buckets are one microsecond wide below 16 us and a sixteenth of an octave above, so the middle
// of a bucket is off by at most 1/32 of the value (half a microsecond below 16 us).
//
// A histogram and not a sketch by samples (t-digest, P2, frugal streaming), because its error is
// bounded for every distribution, an update is a few machine words, and old samples can be
// discounted without touching them.
const (
	subBuckets = 16
	octaves    = 27 // up to 2^31 us, 36 minutes: no request is expected to cost more CPU
	buckets    = subBuckets * (octaves + 1)

	// RelativeError bounds how far a prediction is from the exact quantile of the same
	// weighted samples, relative to it. Below 16 us it is half a microsecond.
	RelativeError = 1.0 / (2 * subBuckets)
)

// histogram is a distribution of costs in which a sample's weight halves with every halfLife
// further samples. It tracks one quantile as samples come. The zero value has no samples.
//
// Newer samples are made heavier, rather than older ones lighter, so that a sample is one
// addition. All weights are divided before the newest is too large.
type histogram struct {
	weight [buckets]float64
	total  float64
	newest float64 // weight of the next sample

	at    int     // the bucket that the quantile is in
	below float64 // weight of the buckets before it
}

// bucketOf returns the bucket of a cost. Negative costs count as none.
func bucketOf(d time.Duration) int {
	us := uint64(max(d, 0)) / uint64(time.Microsecond)
	if us < subBuckets {
		return int(us)
	}
	shift := bits.Len64(us) - 5 // us>>shift is within 16 to 31
	return min(subBuckets*shift+int(us>>shift), buckets-1)
}

// bounds returns the bucket's lowest cost and the lowest of the next bucket.
func bounds(bucket int) (low, high time.Duration) {
	if bucket < subBuckets {
		return time.Duration(bucket) * time.Microsecond, time.Duration(bucket+1) * time.Microsecond
	}
	shift := bucket/subBuckets - 1
	us := time.Duration(bucket%subBuckets+subBuckets) << shift
	return us * time.Microsecond, (us + 1<<shift) * time.Microsecond
}

// middle returns the cost in the middle of a bucket.
func middle(bucket int) time.Duration {
	low, high := bounds(bucket)
	return low + (high-low)/2
}

// maxNewest is when weights are divided. Sums keep their precision far beyond it; a smaller one
// would divide more often.
const maxNewest = 1 << 32

// add adds a sample and moves the quantile. growth is 2^(1/halfLife).
func (h *histogram) add(cost time.Duration, growth, quantile float64) {
	if h.newest == 0 {
		h.newest = 1
	}
	b := bucketOf(cost)
	h.weight[b] += h.newest
	h.total += h.newest
	if b < h.at {
		h.below += h.newest
	}
	h.newest *= growth
	if h.newest > maxNewest {
		h.divide()
	}
	h.move(quantile)
}

// divide makes the next sample's weight 1 again. Buckets of no weight in comparison become empty.
func (h *histogram) divide() {
	h.total, h.below = 0, 0
	for b := range h.weight {
		w := h.weight[b] / h.newest
		if w < negligible {
			w = 0
		}
		h.weight[b] = w
		h.total += w
		if b < h.at {
			h.below += w
		}
	}
	h.newest = 1
}

// negligible is a weight, relative to the newest sample, that no quantile can depend on.
const negligible = 1e-12

// move walks to the first bucket up to which the quantile's weight lies. From one sample to the
// next it walks a few buckets, so it needs no search.
func (h *histogram) move(quantile float64) {
	target := quantile * h.total
	for h.at > 0 && h.below >= target {
		h.at--
		h.below -= h.weight[h.at]
	}
	for h.at < buckets-1 && (h.below+h.weight[h.at] < target || h.weight[h.at] == 0) {
		h.below += h.weight[h.at]
		h.at++
	}
	h.below = math.Max(h.below, 0)
}

// dearest returns the upper bound of the dearest cost that still has weight.
func (h *histogram) dearest() time.Duration {
	for b := buckets - 1; b >= 0; b-- {
		if h.weight[b] > negligible*h.newest {
			_, high := bounds(b)
			return high
		}
	}
	return 0
}
