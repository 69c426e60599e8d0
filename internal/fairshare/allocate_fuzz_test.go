package fairshare

import (
	"encoding/binary"
	"testing"

	"github.com/stint-io/stint/internal/fixed"
)

// Any settings, capacity and claims: no panic, and shares as promised.
func FuzzAllocate(f *testing.F) {
	f.Add(uint8(0), int64(120_000_000), []byte("\x00\x00\x00\x00\x00\x00\x00\x01want 1000, 50, 10 and so on, as bytes come"))
	f.Add(uint8(3), int64(1), make([]byte, 29*5))
	f.Add(uint8(1), int64(-1), []byte{255, 255, 255, 255, 255, 255, 255, 255, 0, 1})
	f.Fuzz(func(t *testing.T, kind uint8, capacity int64, data []byte) {
		number := func() uint64 {
			var b [8]byte
			data = data[copy(b[:], data):]
			return binary.LittleEndian.Uint64(b[:])
		}
		a := &Allocator{Kind: Allocation(kind % 5)}
		if a.Kind == MaxMin {
			for range number() % 4 {
				a.Guarantees = append(a.Guarantees, Guarantee{uint8(number()), fixed.Amount(number())})
			}
		}
		var claims []Claimant
		for len(data) > 0 && len(claims) < 200 {
			small := number()
			claims = append(claims, Claimant{
				Want:   fixed.Amount(number() >> (small % 64)),
				Weight: uint32(small >> 24), Band: uint8(small >> 56),
			})
		}
		sharesOf(t, a, fixed.Amount(capacity), claims)
		_ = a.Validate()
	})
}
