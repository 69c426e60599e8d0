package quantile

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stint-io/stint/internal/seeding"
)

// Every value lies in its bucket, buckets follow each other, and the middle is off by no more than was promised.
func TestBuckets(t *testing.T) {
	for b := range buckets {
		low, high := bounds(b)
		if b < buckets-1 {
			if next, _ := bounds(b + 1); next != high || bucketOf(high-1) != b {
				t.Fatalf("bucket %d is %v to %v, the next from %v", b, low, high, next)
			}
		}
		if bucketOf(low) != b {
			t.Fatalf("bucket %d begins with %v, which is in %d", b, low, bucketOf(low))
		}
		middle := low + (high-low)/2
		if off := max(middle-low, high-1-middle); b >= subBuckets && float64(off) > RelativeError*float64(low) {
			t.Fatalf("bucket %d is %v to %v: its middle is off by %v", b, low, high, off)
		}
	}
	if bucketOf(math.MaxInt64) != buckets-1 || bucketOf(math.MinInt64) != 0 {
		t.Error("values out of range are not in the last and first bucket")
	}
}

// Of random samples of random weights, the value is the exact quantile of the weighted samples, but for the width of a
// bucket; and the memory that it takes is that of the largest octave.
func TestValueIsTheQuantile(t *testing.T) {
	type sample struct {
		value  int64
		weight float64
	}
	for seed := range seeding.Draw(t, 40) {
		r := rand.New(rand.NewPCG(seed, 3))
		var h Histogram
		if !h.Empty() || h.Value() != 0 || h.Max() != 0 {
			t.Fatal("a new one is not empty")
		}
		q, halfLife, place := 0.05+0.94*r.Float64(), 8+r.IntN(300), math.Exp(40*r.Float64())
		growth, weight := Growth(halfLife), 1.0
		var all []sample
		for i := range 1000 {
			samples := 1.0
			if r.IntN(20) == 0 {
				samples = 20 * r.Float64()
			}
			v := int64(place * math.Exp(r.NormFloat64()))
			h.Add(v, samples, growth, q)
			all = append(all, sample{v, samples * weight})
			weight *= growth
			if i%53 != 0 {
				continue
			}
			sorted := slices.SortedFunc(slices.Values(all), func(a, b sample) int { return cmp.Compare(a.value, b.value) })
			total := 0.0
			for _, s := range sorted {
				total += s.weight
			}
			find := func(q float64) int64 {
				sum := 0.0
				for _, s := range sorted {
					if sum += s.weight; sum >= q*total {
						return s.value
					}
				}
				return sorted[len(sorted)-1].value
			}
			low, high := float64(find(q-1e-9)), float64(find(q+1e-9))
			if top := float64(h.Top()); top < low || top > high*(1+2*RelativeError) {
				t.Fatalf("seed %d, sample %d: at most %v, the %.3f quantile is %v to %v", seed, i, top, q, low, high)
			}
			if got := float64(h.Value()); got < low*(1-RelativeError)-1 || got > high*(1+RelativeError)+1 {
				t.Fatalf("seed %d, sample %d: %v, the %.3f quantile is %v to %v", seed, i, got, q, low, high)
			}
		}
		largest := slices.MaxFunc(all, func(a, b sample) int { return cmp.Compare(a.value, b.value) }).value
		if len(h.weight) > bucketOf(largest)+subBuckets {
			t.Errorf("%d buckets for samples up to %d", len(h.weight), largest)
		}
	}
}
