package agent

import (
	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// Bucket is the half of a lease that the application calls: a token bucket, or the
// places of a gauge. A Holder looks at it and amends it; the application takes from
// it at the same time.
type Bucket interface {
	// Observe says how it stands at now.
	Observe(now limit.Time) bucket.Reading
	// Update puts a rate and a depth in force until the time that until holds,
	// after which nothing may be taken, and adds tokens. It returns the tokens that
	// no longer fit the depth and are not in the bucket any more. For a gauge the
	// depth in force may be above the one asked for while places are in use; it is
	// returned as held.
	Update(now limit.Time, rate, depth, add fixed.Amount) (surplus, held fixed.Amount)
}
