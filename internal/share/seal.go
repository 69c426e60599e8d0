package share

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"hash"
)

// Seal signs leases, so that the next coordinator believes what an instance says it
// holds. A token is bound to the epoch, the instance and its run, the resource and
// the lease; it is believed once, by the next epoch. A Seal is not safe for concurrent
// use.
type Seal struct {
	mac hash.Hash
	buf []byte
}

// NewSeal returns a Seal with a secret key, of which 32 bytes are enough.
func NewSeal(key []byte) *Seal { return &Seal{mac: hmac.New(sha256.New, key)} }

// tokenLength is three amounts and the first half of a MAC, which is as hard to
// guess as needed for something that lives for seconds.
const tokenLength = 3*8 + 16

func (s *Seal) sign(epoch uint64, m Member, id ResourceID, lease uint64, h Holding) []byte {
	token := make([]byte, 0, tokenLength)
	token = binary.BigEndian.AppendUint64(token, uint64(h.Rate))
	token = binary.BigEndian.AppendUint64(token, uint64(h.Depth))
	token = binary.BigEndian.AppendUint64(token, uint64(h.Tokens))
	return append(token, s.sum(token, epoch, m, id, lease)[:16]...)
}

// open returns what a token says, if it is what sign made for the same words.
func (s *Seal) open(token []byte, epoch uint64, m Member, id ResourceID, lease uint64) (Holding, bool) {
	if len(token) != tokenLength || !hmac.Equal(token[24:], s.sum(token[:24], epoch, m, id, lease)[:16]) {
		return Holding{}, false
	}
	return Holding{
		Rate:   Amount(binary.BigEndian.Uint64(token)),
		Depth:  Amount(binary.BigEndian.Uint64(token[8:])),
		Tokens: Amount(binary.BigEndian.Uint64(token[16:])),
	}, true
}

// sum is the MAC of all words, each with its length before it.
func (s *Seal) sum(amounts []byte, epoch uint64, m Member, id ResourceID, lease uint64) []byte {
	b := append(s.buf[:0], amounts...)
	for _, n := range []uint64{epoch, m.Session, lease, uint64(len(m.Instance)), uint64(len(id.Limit)), uint64(len(id.Key))} {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	b = append(append(append(b, m.Instance...), id.Limit...), id.Key...)
	s.mac.Reset()
	s.mac.Write(b) // a hash never fails
	s.buf = s.mac.Sum(b)
	return s.buf[len(b):]
}
