package pool

import (
	"crypto/sha256"
	"math"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// BucketID is a hash of a limit and a key that nobody finds two of.
type BucketID [16]byte

// IDOf returns the BucketID of a resource.
func IDOf(id lease.ResourceID) BucketID {
	text := make([]byte, 0, 128)
	text = append(append(append(text, id.Limit...), 0), id.Key...)
	sum := sha256.Sum256(text)
	return BucketID(sum[:16])
}

// Forever is longer than any bucket takes to fill.
const Forever = time.Duration(math.MaxInt64)

// Fills is how long a rate takes for an amount, rounded up.
func Fills(amount, rate fixed.Amount) time.Duration {
	switch {
	case amount <= 0:
		return 0
	case rate <= 0 || amount.Scale(fixed.Amount(time.Second), rate) >= fixed.MaxAmount:
		return Forever
	}
	return time.Duration(amount.Scale(fixed.Amount(time.Second), rate)) + 1
}
