package agent

import (
	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// Bucket is what the application spends from under a lease: a token bucket, or the permits
// of a semaphore. An Agent observes and updates it while the application takes from it.
type Bucket interface {
	// Observe returns its level, its totals and its waiters at now.
	Observe(now limit.Time) bucket.Reading
	// Update puts a rate (tokens per second) and a burst in force until the Agent's
	// Deadline, and adds tokens. It returns as surplus the tokens that exceed the burst:
	// they are taken out of the bucket. held is the burst in force: of a semaphore it is
	// above the one passed while more permits are in use.
	Update(now limit.Time, rate, burst, add fixed.Amount) (surplus, held fixed.Amount)
}

// noBucket is the Bucket of a handle that is forgotten, or closed with nothing in its bucket.
type noBucket struct{}

func (noBucket) Observe(limit.Time) bucket.Reading { return bucket.Reading{} }

func (noBucket) Update(limit.Time, fixed.Amount, fixed.Amount, fixed.Amount) (surplus, held fixed.Amount) {
	return 0, 0
}

// fallbackBucket is a Bucket that can be used without a lease.
type fallbackBucket interface {
	// UpdateFallback puts in force what may be spent without a lease, whatever the
	// deadline, until the next Update.
	UpdateFallback(now limit.Time, rate, burst fixed.Amount)
}

// suppressor is a Bucket that can refuse a fraction of the requests.
type suppressor interface {
	// Suppress puts s in force until the next call: see [bucket.Bucket.Suppress].
	Suppress(now limit.Time, s bucket.Suppression, independent bool)
}
