// Package quantile tracks one quantile of a stream of whole numbers in which newer samples weigh more. It knows neither
// what they count nor a clock.
package quantile

import (
	"math"
	"math/bits"
)

// Buckets are one wide below 16 and a sixteenth of an octave above, so the middle of a bucket is off by at most 1/32 of
// the value, and its end by 1/16; below 16 both are exact.
//
// A histogram and not a sketch by samples (t-digest, P2, frugal streaming), because its error is
// bounded for every distribution, an update is a few machine words, and old samples can be
// discounted without touching them.
const (
	subBuckets = 16
	octaves    = 59 // up to 2^63
	buckets    = subBuckets * (octaves + 1)

	// RelativeError bounds how far [Histogram.Value] is from the exact quantile of the same weighted samples, relative
	// to it. Below 16 it is exact.
	RelativeError = 1.0 / (2 * subBuckets)
)

// Histogram is a distribution in which a sample's weight is larger than that of the one before it by a factor. It
// tracks one quantile as samples come. The zero value has no samples. It is not safe for concurrent use. It takes 128
// bytes for each octave up to the largest sample, 7.5 kB at most.
//
// Newer samples are made heavier, rather than older ones lighter, so that a sample is one
// addition. All weights are divided before the newest is too large.
type Histogram struct {
	weight []float64 // by bucket, up to the largest that had a sample
	total  float64
	newest float64 // weight of the next sample

	at    int     // the bucket that the quantile is in
	below float64 // weight of the buckets before it
}

// Growth is the factor by which a sample weighs more than the one before it, for weights that halve with every halfLife
// further samples.
func Growth(halfLife int) float64 { return math.Exp2(1 / float64(halfLife)) }

// bucketOf returns the bucket of a value. Negative ones count as 0.
func bucketOf(value int64) int {
	v := uint64(max(value, 0))
	if v < subBuckets {
		return int(v)
	}
	shift := bits.Len64(v) - 5 // v>>shift is within 16 to 31
	return subBuckets*shift + int(v>>shift)
}

// bounds returns the bucket's lowest value and the lowest of the next bucket; for the last bucket that is too large by
// one for the type, and is its largest.
func bounds(bucket int) (low, high int64) {
	if bucket < subBuckets {
		return int64(bucket), int64(bucket) + 1
	}
	shift := bucket/subBuckets - 1
	v := uint64(bucket%subBuckets+subBuckets) << shift
	return int64(v), int64(min(v+1<<shift, math.MaxInt64))
}

// maxNewest is when weights are divided. Sums keep their precision far beyond it; a smaller one
// would divide more often.
const maxNewest = 1 << 32

// Add adds a sample of the weight of so many, and moves the quantile. growth is that of [Growth].
func (h *Histogram) Add(value int64, samples, growth, quantile float64) {
	if h.newest == 0 {
		h.newest = 1
	}
	b := bucketOf(value)
	if b >= len(h.weight) { // by octaves
		h.weight = append(make([]float64, 0, (b/subBuckets+1)*subBuckets), h.weight...)[:(b/subBuckets+1)*subBuckets]
	}
	w := samples * h.newest
	h.weight[b] += w
	h.total += w
	if b < h.at {
		h.below += w
	}
	h.newest *= growth
	if h.newest > maxNewest {
		h.divide()
	}
	h.move(quantile)
}

// Fade makes the samples so far count so many times less than the next.
func (h *Histogram) Fade(times float64) {
	if h.newest == 0 {
		return
	}
	h.newest *= min(times, maxNewest)
	if h.newest > maxNewest {
		h.divide()
	}
}

// divide makes the next sample's weight 1 again. Buckets of no weight in comparison become empty.
func (h *Histogram) divide() {
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
func (h *Histogram) move(quantile float64) {
	target := quantile * h.total
	for h.at > 0 && h.below >= target {
		h.at--
		h.below -= h.weight[h.at]
	}
	for h.at < len(h.weight)-1 && (h.below+h.weight[h.at] < target || h.weight[h.at] == 0) {
		h.below += h.weight[h.at]
		h.at++
	}
	h.below = math.Max(h.below, 0)
}

// Empty reports whether there has been no sample.
func (h *Histogram) Empty() bool { return h.newest == 0 }

// Value is the quantile: the middle of the bucket that it is in; 0 if there has been no sample.
func (h *Histogram) Value() int64 {
	low, high := bounds(h.at)
	return low + (high-low)/2
}

// Top is the largest value of the bucket that the quantile is in: at least the quantile, and at most 1/16 above it.
func (h *Histogram) Top() int64 {
	_, high := bounds(h.at)
	return high - 1
}

// Max returns the upper bound of the largest sample that still has weight.
func (h *Histogram) Max() int64 {
	for b := len(h.weight) - 1; b >= 0; b-- {
		if h.weight[b] > negligible*h.newest {
			_, high := bounds(b)
			return high
		}
	}
	return 0
}
