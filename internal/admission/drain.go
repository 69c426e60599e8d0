package admission

import "math"

// bucket drains a queue at a rate of CPU time. It is kept as one time, at which it is or was
// empty: before that time it is in debt, and after it it holds what has come in since. Costs
// are rounded up and refunds down to the nanosecond, so that no rounding ever admits more.
//
// A debt is never forgotten, while refunds are capped at the burst.
type bucket struct {
	rate  float64 // 0 = no bound
	burst int64   // most CPU nanoseconds at once
	empty int64
}

// span is the time in which cost comes in, rounded up; within is rounded down.
func (b *bucket) span(cost int64) int64 { return nanoseconds(math.Ceil(float64(cost) / b.rate)) }

func (b *bucket) within(cost int64) int64 { return nanoseconds(math.Floor(float64(cost) / b.rate)) }

// nanoseconds is t, bounded so that sums with a few others do not overflow.
func nanoseconds(t float64) int64 { return int64(min(t, math.MaxInt64/4)) }

// trim drops what is above the burst.
func (b *bucket) trim(now int64) { b.empty = max(b.empty, now-b.within(b.burst)) }

// ready is when cost may start. What is dearer than the burst starts when the bucket is full.
func (b *bucket) ready(cost int64) int64 {
	if b.rate == 0 {
		return math.MinInt64
	}
	return b.empty + min(b.span(cost), b.within(b.burst))
}

// charge takes cost, which may be below 0 for a refund.
func (b *bucket) charge(now, cost int64) {
	if b.rate == 0 {
		return
	}
	b.trim(now)
	if cost >= 0 {
		b.empty = min(b.empty+b.span(cost), math.MaxInt64/2)
	} else {
		b.empty -= b.within(-cost)
		b.trim(now)
	}
}
