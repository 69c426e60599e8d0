package pool

import (
	"crypto/sha256"

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
