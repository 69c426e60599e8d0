package ledger

import (
	"math/rand/v2"
	"testing"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/seeding"
)

// TestLendingDropsNoTokens: whatever is wanted and under way, tokens that leave the pool
// go to an instance. Depth that is reserved for tokens under way was lent as well, and
// what was in the pool was dropped for it.
func TestLendingDropsNoTokens(t *testing.T) {
	under := 0
	for seed := range seeding.Draw(t, 20_000) {
		rng := rand.New(rand.NewPCG(seed, 7))
		terms := lease.Terms{Rate: fixed.Amount(rng.Int64N(int64(200 * fixed.Token))), Burst: fixed.Whole(rng.Int64N(100))}
		r := new(Scratch).New(theLimit, terms, 1, false)
		for range 1 + rng.IntN(5) {
			a := &Account{resource: r, caps: noCaps, needs: needs{Weight: 1, shortUntil: lease.Never}}
			a.Demand, a.Shortfall = fixed.Amount(rng.Int64N(int64(100*fixed.Token))), fixed.Amount(rng.Int64N(int64(40*fixed.Token)))
			r.accounts = append(r.accounts, a)
		}
		p := &r.Pool
		for range rng.IntN(8) {
			a := r.accounts[rng.IntN(len(r.accounts))]
			h := lease.Capacity{Rate: fixed.Amount(rng.Int64N(int64(max(p.Rate, 1)))), Burst: fixed.Whole(rng.Int64N(p.Spare().Floor() + 1)), Tokens: fixed.Amount(rng.Int64N(int64(max(p.Level, 1))))}
			if a.Held().Burst+h.Burst == 0 {
				h.Tokens = 0
			}
			h.Tokens = min(h.Tokens, fixed.SaturatingAdd(a.Held().Burst, h.Burst))
			a.grant(h)
		}
		if p.Reserved > 0 {
			under++
		}
		granted := func() (sum fixed.Amount) {
			for _, a := range r.accounts {
				sum += a.Granted.Tokens
			}
			return sum
		}
		r.divide(2)
		r.targetRates()
		before := p.Level + granted()
		r.raise()
		if after := p.Level + granted(); after != before {
			t.Fatalf("seed %d: of %v tokens in the pool and lent %v are left: %+v", seed, before, after, *p)
		}
		if before >= 0 && p.Level < 0 {
			t.Fatalf("seed %d: %+v", seed, *p)
		}
	}
	if under < 1000 {
		t.Errorf("tokens were under way in %d pools only", under)
	}
}
