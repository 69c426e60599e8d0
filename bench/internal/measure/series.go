package measure

import (
	"fmt"
	"slices"
)

// Series is one figure over the rounds, in their order.
type Series []float64

// Figures extracts a figure from each sample.
func Figures[S any](samples []S, figure func(S) float64) Series {
	s := make(Series, len(samples))
	for i, x := range samples {
		s[i] = figure(x)
	}
	return s
}

// Median returns the middle figure, or the mean of the two middle ones; 0 for an
// empty series.
func (s Series) Median() float64 {
	if len(s) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(s))
	mid := len(sorted) / 2
	if len(sorted)%2 == 1 {
		return sorted[mid]
	}
	return (sorted[mid-1] + sorted[mid]) / 2
}

// Over returns the series divided by another, round by round. The median of
// these ratios stands where the ratio of medians does not: when the machine was
// fast in some rounds and slow in others.
func (s Series) Over(o Series) Series {
	r := make(Series, min(len(s), len(o)))
	for i := range r {
		r[i] = s[i] / o[i]
	}
	return r
}

// Format writes median [min–max], each with verb.
func (s Series) Format(verb string) string {
	if len(s) == 0 {
		return "–"
	}
	return fmt.Sprintf(verb+" ["+verb+"–"+verb+"]", s.Median(), slices.Min(s), slices.Max(s))
}
