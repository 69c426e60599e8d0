package costs

import (
	"fmt"
	"math"
	"time"
)

// CPU is the name of the resource that every cost is expressed in. Its unit is the millisecond
// of CPU time.
const CPU = "cpu"

// Usage is what one request used of each resource, by name, in units of the resource: CPU in
// milliseconds, others in whatever [Capacity] has per second (bytes, operations, byte-seconds of
// memory).
type Usage map[string]float64

// Capacity is what the server has of each resource in a second, in the units of [Usage]. CPU has
// 1,000 for each core; it is 1,000 where it is not given.
type Capacity map[string]float64

// Validate reports a capacity that is not a positive number.
func (c Capacity) Validate() error {
	for name, per := range c {
		if !(per > 0) || math.IsInf(per, 1) {
			return fmt.Errorf("costs: capacity of %q is %v a second: it must be a positive number", name, per)
		}
	}
	return nil
}

// Cost reduces what a request used to CPU time: of the resource of which it used the largest share
// of a second's capacity, its dominant share, it is as much CPU time as the same share of CPU is.
// A request that uses a tenth of a second's disk operations and little else counts as one that
// uses a tenth of a second of every core, because no more than ten of them fit into a second.
//
// A sum of the shares was rejected: requests that use different resources do not hinder each
// other. Resources without a capacity and amounts that are no positive number do not count.
// ok is false when nothing counts.
func (c Capacity) Cost(u Usage) (cost time.Duration, ok bool) {
	cores := 1000.0
	if given := c[CPU]; given > 0 {
		cores = given
	}
	share := 0.0
	for name, used := range u {
		per := c[name]
		if name == CPU {
			per = cores
		}
		if per > 0 && used >= 0 && !math.IsInf(used, 1) {
			share, ok = math.Max(share, used/per), true
		}
	}
	return time.Duration(math.Min(share*cores*float64(time.Millisecond), maxCost)), ok
}

// maxCost bounds a cost that somebody else reports: a day, far more than a request costs and far
// from where sums overflow.
const maxCost = float64(24 * time.Hour)
