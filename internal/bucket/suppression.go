package bucket

import (
	"github.com/stint-io/stint/internal/fixed"
)

// Suppression is what a coordinator sends to an instance: to refuse the fraction Reject of its
// requests, 0 to 1, and to admit no more than Rate and Burst until the next grant, whatever its
// traffic. A Reject of 0 ends it.
type Suppression struct {
	Reject      float64
	Rate, Burst fixed.Amount
}
