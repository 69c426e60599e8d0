package pool

import (
	"cmp"
	"math/bits"
	"slices"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// Claims are the parts of a site's demand, in the order of compareClaims.
type Claims []lease.Claim

// Add adds a claim to those of its kind: of the same priority, and of a demand per weight that
// differs by less than a factor of two. Where there are too many kinds, those of a band that
// demand least per weight become one.
func (g Claims) Add(c lease.Claim) Claims {
	if c.Rate <= 0 {
		return g
	}
	c.Weight = max(1, c.Weight)
	at, found := slices.BinarySearchFunc(g, c, compareClaims)
	if found {
		g[at] = sumClaims(g[at], c)
		return g
	}
	if len(g) < lease.MaxClaims {
		return slices.Insert(g, at, c)
	}
	at = min(at, len(g)-1)
	for i := range g { // the nearest of the same band, or of a lower one
		if g[i].Band == c.Band {
			at = i
			break
		}
	}
	g[at] = sumClaims(g[at], c)
	return g
}

// compareClaims orders claims by band and by the power of two of their demand per weight.
func compareClaims(a, b lease.Claim) int {
	return cmp.Or(cmp.Compare(a.Band, b.Band), cmp.Compare(magnitude(a), magnitude(b)))
}

// magnitude is the power of two of the demand per weight.
func magnitude(c lease.Claim) int { return bits.Len64(uint64(c.Rate) / uint64(max(1, c.Weight))) }

// sumClaims sums up two claims; the first one's band stays.
func sumClaims(a, b lease.Claim) lease.Claim {
	return lease.Claim{Rate: fixed.SaturatingAdd(a.Rate, b.Rate), Weight: AddWeight(a.Weight, b.Weight), Band: a.Band}
}

// AddWeight adds weights, up to the largest.
func AddWeight(a, b uint32) uint32 {
	return uint32(min(uint64(a)+uint64(b), 1<<32-1))
}
