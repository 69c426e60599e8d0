package overload

import (
	"math"
	"time"
)

// Result is what a system did in a scenario.
type Result struct {
	Scenario *Scenario
	Requests int64 // that clients made, from the start
	Attempts int64
	All      Group
	Classes  [maxClass + 1]Group
	Loads    []Group
	Delay    Histogram // in a server before it begins, of each call

	Goodput    float64 // requests answered well and in time, per second
	Useful     float64 // CPU time of these over all CPU time of a server, of the server where that is most
	Wasted     float64 // the part of CPU time that was spent for others
	Settled    float64 // seconds until queue delays stay within the band; infinite = never
	Steady     float64 // seconds until they stay about what they are in the end
	Inversions int64   // calls turned away for want of room while a less important one waited there
	Timeline   []Bin
}

// Group is some requests.
type Group struct {
	Offered int64
	Good    int64 // answered well and in time
	Ended   [outcomes]int64
	Latency Histogram // of those that were answered well
}

// Part is a part of those offered.
func (g *Group) Part(n int64) float64 {
	if g.Offered == 0 {
		return 0
	}
	return float64(n) / float64(g.Offered)
}

// Bin is a part of the time of a run.
type Bin struct {
	At                        time.Duration
	Offered, Good, Bad, Begun int64
	DelaySum                  float64 // of calls that have begun, ns
}

// Histogram keeps durations in steps of one per cent.
type Histogram struct {
	counts []int64
	n      int64
	sum    float64
}

const steps = 100 // per factor of e

// Add counts a duration in nanoseconds.
func (h *Histogram) Add(ns int64) {
	i := 0
	if ns > 1 {
		i = 1 + int(math.Log(float64(ns))*steps)
	}
	if i >= len(h.counts) {
		h.counts = append(h.counts, make([]int64, i+1-len(h.counts))...)
	}
	h.counts[i]++
	h.n++
	h.sum += float64(ns)
}

// Quantile is in seconds; 0 without any.
func (h *Histogram) Quantile(q float64) float64 {
	if h.n == 0 {
		return 0
	}
	want := int64(math.Ceil(q * float64(h.n)))
	for i, n := range h.counts {
		if want -= n; want <= 0 {
			if i == 0 {
				return 0
			}
			return math.Exp((float64(i)-0.5)/steps) / float64(time.Second)
		}
	}
	return 0
}

// Mean is in seconds; 0 without any.
func (h *Histogram) Mean() float64 {
	if h.n == 0 {
		return 0
	}
	return h.sum / float64(h.n) / float64(time.Second)
}
