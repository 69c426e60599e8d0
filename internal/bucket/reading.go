package bucket

import (
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// Reading is how a Spender stands. Attempted and Admitted are running totals.
type Reading struct {
	Level     fixed.Amount // tokens in the bucket; free places of a gauge
	InUse     fixed.Amount // places of a gauge in use
	Attempted fixed.Amount // asked for: admitted, refused and waiting
	Admitted  fixed.Amount
	Last      limit.Time   // when the last one came that was admitted at once; 0 = not known
	Waiting   fixed.Amount // cost of those who wait at this moment
	// Waited is for how long somebody waited who asks again only when it was served: a
	// running total. What is asked for in that time tells what was given, and not
	// what is wanted.
	Waited  time.Duration
	Patient bool // those who wait are such
	// WaitUntil is when the last of those who wait goes away; 0 = not known.
	WaitUntil limit.Time
	Largest   fixed.Amount // cost of the largest request of late; 0 = one token
	Declared  fixed.Amount // what the application says it wants, per second or in places; 0 = nothing
}
