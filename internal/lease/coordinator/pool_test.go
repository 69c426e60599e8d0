package coordinator

import (
	"math/rand/v2"
	"testing"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// TestLendingDropsNoTokens: whatever is wanted and under way, tokens that leave the pool
// go to an instance. Depth that is reserved for tokens under way was lent as well, and
// what was in the pool was dropped for it.
func TestLendingDropsNoTokens(t *testing.T) {
	under := 0
	for seed := range uint64(20_000) {
		rng := rand.New(rand.NewPCG(seed, 7))
		terms := lease.Terms{Rate: fixed.Amount(rng.Int64N(int64(200 * fixed.Token))), Burst: fixed.Whole(rng.Int64N(100))}
		r := newResource(theLimit, terms, 1, false)
		for range 1 + rng.IntN(5) {
			a := &account{session: &session{}, resource: r, caps: noCaps, needs: needs{weight: 1, shortUntil: lease.Never}}
			a.demand, a.shortfall = fixed.Amount(rng.Int64N(int64(100*fixed.Token))), fixed.Amount(rng.Int64N(int64(40*fixed.Token)))
			r.accounts = append(r.accounts, a)
		}
		p := &r.pool
		for range rng.IntN(8) {
			a := r.accounts[rng.IntN(len(r.accounts))]
			h := lease.Capacity{Rate: fixed.Amount(rng.Int64N(int64(max(p.rate, 1)))), Burst: fixed.Whole(rng.Int64N(p.spare().Floor() + 1)), Tokens: fixed.Amount(rng.Int64N(int64(max(p.level, 1))))}
			if a.held().Burst+h.Burst == 0 {
				h.Tokens = 0
			}
			h.Tokens = min(h.Tokens, fixed.SaturatingAdd(a.held().Burst, h.Burst))
			a.grant(h)
		}
		if p.reserved > 0 {
			under++
		}
		granted := func() (sum fixed.Amount) {
			for _, a := range r.accounts {
				sum += a.granted.Tokens
			}
			return sum
		}
		r.divide(2)
		r.targetRates()
		before := p.level + granted()
		r.raise()
		if after := p.level + granted(); after != before {
			t.Fatalf("seed %d: of %v tokens in the pool and lent %v are left: %+v", seed, before, after, *p)
		}
		if before >= 0 && p.level < 0 {
			t.Fatalf("seed %d: %+v", seed, *p)
		}
	}
	if under < 1000 {
		t.Errorf("tokens were under way in %d pools only", under)
	}
}
