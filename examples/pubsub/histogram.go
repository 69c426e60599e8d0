package main

import (
	"math"
	"time"
)

// histogram counts durations in buckets of which each is a tenth wider than the one before:
// a quantile is off by less than that. The zero value is empty.
type histogram struct {
	Counts [buckets]uint64
}

const (
	buckets = 200 // up to three minutes
	growth  = 1.1
	finest  = float64(time.Microsecond)
)

func bucketOf(d time.Duration) int {
	if d <= time.Microsecond {
		return 0
	}
	return min(buckets-1, int(math.Log(float64(d)/finest)/math.Log(growth)))
}

func (h *histogram) add(d time.Duration) { h.Counts[bucketOf(d)]++ }

func (h *histogram) merge(o *histogram) {
	for i, n := range o.Counts {
		h.Counts[i] += n
	}
}

// quantile is the duration that a part q of all did not exceed; 0 if there are none.
func (h *histogram) quantile(q float64) time.Duration {
	total := uint64(0)
	for _, n := range h.Counts {
		total += n
	}
	rank, seen := uint64(math.Ceil(q*float64(total))), uint64(0)
	for i, n := range h.Counts {
		if seen += n; n > 0 && seen >= rank {
			return time.Duration(finest * math.Pow(growth, float64(i)+0.5))
		}
	}
	return 0
}
