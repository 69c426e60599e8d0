package coordinator

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// Used is what a coordinator that hands over says of the buckets that are not full, so that its successor
// neither lends what was spent nor withholds what was not. It holds for the moment of the hand-over: who
// makes it lends nothing from then on. nil = nothing is known, and every bucket counts as empty.
//
// Buckets are known by a hash of their limit and key. Two of one hash count as used both, which is
// never too much.
type Used struct {
	// others says since when all other buckets refill from empty; below 0 = they are full.
	others time.Duration
	of     map[uint64]usedBucket
}

// usedBucket is one that had so many tokens that were not lent, that long before the hand-over. Tokens
// may be below 0, after a limit was reduced.
type usedBucket struct {
	tokens fixed.Amount
	age    time.Duration
}

// maxUsed bounds the buckets: 24 bytes each in the record, which a Kubernetes object bounds to 256 KiB.
const maxUsed = 4096

func resourceHash(id lease.ResourceID) uint64 {
	h := fnv.New64a()
	h.Write([]byte(id.Limit)) // a hash never fails
	h.Write([]byte{0})
	h.Write([]byte(id.Key))
	return h.Sum64()
}

// usedVersion is the first byte of a record with buckets.
const usedVersion = 2

// EncodeHandOver returns the last record of a coordinator: the holders, and what is known of the buckets.
func EncodeHandOver(h *Holders, u *Used) []byte {
	holders := h.Encode()
	if u == nil {
		return holders
	}
	b := binary.BigEndian.AppendUint32([]byte{usedVersion}, uint32(len(holders)))
	b = append(b, holders...)
	b = binary.BigEndian.AppendUint64(b, uint64(u.others))
	for hash, one := range u.of {
		b = binary.BigEndian.AppendUint64(b, hash)
		b = binary.BigEndian.AppendUint64(b, uint64(one.tokens))
		b = binary.BigEndian.AppendUint64(b, uint64(one.age))
	}
	return b
}

var errUsed = errors.New("lease: the record of a hand-over cannot be read: it is damaged")

// DecodeHandOver reads what [EncodeHandOver] returned, or [Holders.Encode].
func DecodeHandOver(b []byte) (Holders, *Used, error) {
	if len(b) == 0 || b[0] != usedVersion {
		h, err := DecodeHolders(b)
		return h, nil, err
	}
	unknown := Holders{Unknown: true}
	if len(b) < 5 {
		return unknown, nil, errUsed
	}
	n := uint64(binary.BigEndian.Uint32(b[1:]))
	if b = b[5:]; uint64(len(b)) < n+8 || (uint64(len(b))-n-8)%24 != 0 {
		return unknown, nil, errUsed
	}
	h, err := DecodeHolders(b[:n])
	if err != nil {
		return h, nil, err
	}
	u := &Used{others: time.Duration(binary.BigEndian.Uint64(b[n:])), of: map[uint64]usedBucket{}}
	for b = b[n+8:]; len(b) > 0; b = b[24:] {
		one := usedBucket{fixed.Amount(binary.BigEndian.Uint64(b[8:])), time.Duration(binary.BigEndian.Uint64(b[16:]))}
		if one.age < 0 || one.tokens > fixed.MaxAmount || one.tokens < -fixed.MaxAmount {
			return unknown, nil, errUsed
		}
		u.of[binary.BigEndian.Uint64(b)] = one
	}
	return h, u, nil
}
