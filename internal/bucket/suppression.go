package bucket

import (
	"github.com/stint-io/stint/internal/fixed"
)

// Suppression is what an instance is told to do: to refuse the part Reject of what it
// is asked, 0 to 1, and to admit no more than Rate and Depth meanwhile, which is what it
// may use until it hears more, whatever it is asked. A Reject of 0 ends it.
type Suppression struct {
	Reject      float64
	Rate, Burst fixed.Amount
}
