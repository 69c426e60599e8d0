package coordinator

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"slices"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// Seal signs leases, so that the next coordinator believes what an instance says it
// holds. A token is bound to the epoch, the instance and its run, the resource and
// the lease; it is believed once, by the next epoch. A Seal is not safe for concurrent
// use.
type Seal struct {
	macs []hash.Hash // the first one signs, and each of them is believed
	buf  []byte
}

// NewSeal returns a Seal with a secret key, of which 32 bytes are enough. What was signed by one of
// the others is believed as well, so that a key can be replaced while leases are in use.
func NewSeal(key []byte, others ...[]byte) *Seal {
	s := &Seal{macs: []hash.Hash{hmac.New(sha256.New, key)}}
	for _, k := range others {
		s.macs = append(s.macs, hmac.New(sha256.New, k))
	}
	return s
}

// tokenLength is four amounts and the first half of a MAC, which is as hard to
// guess as needed for something that lives for seconds.
const (
	tokenAmounts = 4 * 8
	tokenLength  = tokenAmounts + 16
)

// sign makes the token of a lease: what was granted under it in all, and what of it
// was held, without tokens.
func (s *Seal) sign(epoch uint64, m lease.Member, id lease.ResourceID, number uint64, granted, held lease.Capacity) []byte {
	token := make([]byte, 0, tokenLength)
	for _, a := range []fixed.Amount{granted.Rate, granted.Burst, held.Rate, held.Burst} {
		token = binary.BigEndian.AppendUint64(token, uint64(a))
	}
	return append(token, s.sum(s.macs[0], token, epoch, m, id, number)[:16]...)
}

// open returns what a token says, if it is what sign made for the same words.
func (s *Seal) open(token []byte, epoch uint64, m lease.Member, id lease.ResourceID, number uint64) (granted, held lease.Capacity, ok bool) {
	if len(token) != tokenLength || !slices.ContainsFunc(s.macs, func(mac hash.Hash) bool {
		return hmac.Equal(token[tokenAmounts:], s.sum(mac, token[:tokenAmounts], epoch, m, id, number)[:16])
	}) {
		return lease.Capacity{}, lease.Capacity{}, false
	}
	amount := func(i int) fixed.Amount { return fixed.Amount(binary.BigEndian.Uint64(token[8*i:])) }
	return lease.Capacity{Rate: amount(0), Burst: amount(1)}, lease.Capacity{Rate: amount(2), Burst: amount(3)}, true
}

// sum is a MAC of all words, each with its length before it.
func (s *Seal) sum(mac hash.Hash, amounts []byte, epoch uint64, m lease.Member, id lease.ResourceID, number uint64) []byte {
	b := append(s.buf[:0], amounts...)
	for _, n := range []uint64{epoch, m.Session, number, uint64(len(m.Instance)), uint64(len(id.Limit)), uint64(len(id.Key))} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	b = append(append(append(b, m.Instance...), id.Limit...), id.Key...)
	mac.Reset()
	mac.Write(b) // a hash never fails
	s.buf = mac.Sum(b)
	return s.buf[len(b):]
}
