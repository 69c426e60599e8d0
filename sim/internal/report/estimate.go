// Package report writes what simulations have found: means with their intervals, tables and charts.
package report

import (
	"fmt"
	"math"
)

// Estimate is the mean of some runs and the half width of its 95 % interval, by
// Student's t. Half is 0 for a single run.
type Estimate struct {
	Mean, Half float64
	Min, Max   float64
	Runs       int
}

// String writes the mean, and the interval where there is one.
func (e Estimate) String() string {
	if e.Runs < 2 || e.Half == 0 {
		return fmt.Sprintf("%.4g", e.Mean)
	}
	return fmt.Sprintf("%.4g ± %.2g", e.Mean, e.Half)
}

// quantiles are the 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom.
var quantiles = [...]float64{
	12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
	2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
	2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
}

// EstimateOf returns the mean of values and its interval.
func EstimateOf(values []float64) Estimate {
	n := len(values)
	e := Estimate{Min: math.Inf(1), Max: math.Inf(-1), Runs: n}
	for _, x := range values {
		e.Mean += x / float64(n)
		e.Min, e.Max = min(e.Min, x), max(e.Max, x)
	}
	if n < 2 || e.Min == e.Max || math.IsInf(e.Mean, 0) {
		if e.Min == e.Max {
			e.Mean = e.Min
		}
		return e
	}
	squares := 0.0
	for _, x := range values {
		squares += (x - e.Mean) * (x - e.Mean)
	}
	t := 1.96
	if n-2 < len(quantiles) {
		t = quantiles[n-2]
	}
	e.Half = t * math.Sqrt(squares/float64(n-1)/float64(n))
	return e
}
