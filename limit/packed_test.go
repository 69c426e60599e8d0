package limit

import (
	"math/bits"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/seeding"
)

// TestPackedHolds: what a word holds comes back from it to the token, at any moment up to
// the horizon; what is more than a word has room for is said not to fit, exactly.
func TestPackedHolds(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	r := seeding.Rand(t)
	const begin = Time(1e18)
	tried := 0
	for range 3000 {
		p := Policy{Rate: Rate{1 + r.Int64N(300), time.Duration(1 + r.Int64N(1<<r.IntN(62)))}, Burst: 1}
		b := NewBucket(p)
		packed, ok := b.Pack()
		_, token := b.Terms()
		if wants := b.n <= 256 && b.burstTicks.Hi == 0 && b.burstTicks.Lo <= 1<<61; ok != wants {
			t.Fatalf("%v: packed %v, want %v", p.Rate, ok, wants)
		}
		if !ok {
			continue
		}
		most := int64((1 << 61) / token)
		for _, used := range []int64{-1, 0, 1, most - 1, most, most + 1, 2 * most, r.Int64N(most + 1), MaxCount} {
			hi, lo := bits.Mul64(uint64(max(used, 0)), token)
			want := hi == 0 && lo <= 1<<61
			if got := packed.Holds(used); got != want {
				t.Fatalf("%v: holds %d of %d ticks: %v", p.Rate, used, token, got)
			}
			if used <= 0 || !want {
				continue
			}
			tried++
			moment := uint64(r.Int64N(int64(PackedHorizon) + 1))
			now := begin.Add(time.Duration(moment))
			exact := BucketState(b.at(now).Plus(fixed.Product(uint64(used), token)))
			if got := packed.Unpack(packed.Repack(exact, begin), begin); got != exact {
				t.Fatalf("%v: %d used at %d came back as %v, want %v", p.Rate, used, moment, got, exact)
			}
		}
	}
	if tried < 3000 {
		t.Errorf("%d tries show little", tried)
	}
}
