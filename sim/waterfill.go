package sim

import (
	"cmp"
	"slices"
)

// waterfill is the weighted max-min division of capacity: no instance gets more than wanted,
// and all who get less have the same per weight. It stands here by itself so that
// no system is measured by its own arithmetic.
func waterfill(capacity float64, wants, weights []float64) []float64 {
	order := make([]int, len(wants))
	weight := 0.0
	for i := range order {
		order[i] = i
		weight += weights[i]
	}
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(wants[a]*weights[b], wants[b]*weights[a]) })
	got := make([]float64, len(wants))
	for _, i := range order {
		got[i] = min(wants[i], capacity*weights[i]/weight)
		capacity -= got[i]
		weight -= weights[i]
	}
	return got
}
