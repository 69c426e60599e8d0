package bucket

import (
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// Reading is what an observation of a Bucket or a Semaphore returns. Attempted and Admitted are
// running totals of cost.
type Reading struct {
	Level     fixed.Amount // tokens in the bucket; free permits of a semaphore
	InUse     fixed.Amount // permits in use
	Attempted fixed.Amount // admitted, refused and waiting
	Admitted  fixed.Amount
	Last      limit.Time   // when the latest request arrived that was admitted without waiting; 0 = not known
	Waiting   fixed.Amount // cost of the waiters
	// Waited is the total time with a patient waiter, which sends its next request only when
	// this one is served: attempts in that time show what was granted, not the demand.
	Waited  time.Duration
	Patient bool // the waiters are patient
	// WaitUntil is when the last waiter gives up; 0 = not known.
	WaitUntil limit.Time
	Largest   fixed.Amount // cost of the largest recent request; 0 = one token
	Declared  fixed.Amount // declared demand, per second or in permits; 0 = none
}
