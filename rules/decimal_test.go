package rules

import (
	"fmt"
	"math/big"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

// A rate that is written with decimals admits at once the count that is written, rounded up: as bucket and as window, as
// override and as the rate of a ban. Its rate is the one written, and never more.
func TestDecimalRates(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 6))
	periods := map[string]time.Duration{"s": time.Second, "minute": time.Minute, "h": time.Hour, "10s": 10 * time.Second, "day": 24 * time.Hour}
	counts := []string{"0.0167", "0.016666667", "0.0833", "0.99", "33.3", "1", "100", "0.5", "2.5k", "1.0000001k", "4611686018.427387904", "9223372036.854775807"}
	for range 100 {
		digits := 1 + r.IntN(9)
		text := fmt.Sprintf("%d.%0*d", r.IntN(1<<r.IntN(12)), digits, r.IntN(int(pow10(digits))))
		counts = append(counts, text+[]string{"", "", "k", "M"}[r.IntN(4)])
	}
	for _, count := range counts {
		for name, period := range periods {
			want := exactly(t, count)
			if want.Sign() == 0 {
				continue
			}
			rate := count + "/" + name
			burst := new(big.Int).Add(want.Num(), new(big.Int).Sub(want.Denom(), big.NewInt(1)))
			burst.Div(burst, want.Denom())
			if _, err := limit.ParseRate(rate); err != nil {
				continue // more decimals than fit a period of 292 years
			}
			perSecond := new(big.Rat).Quo(want, new(big.Rat).SetFrac64(int64(period), int64(time.Second)))
			for _, algorithm := range []limit.Algorithm{limit.TokenBucket, limit.FixedWindow, limit.SlidingWindowLog, limit.SlidingWindowCounter} {
				written := algorithm.String()
				if algorithm == limit.FixedWindow {
					written += ", align: epoch"
				}
				set, err := (Options{}).Compile(File{Name: "l.yaml", Text: fmt.Appendf(nil, `
limits:
  - {name: own, key: [ip], algorithm: %s, rate: %s, on_exceed: {ban: {for: 1h}}}
  - {name: over, key: [ip], algorithm: %s, rate: 1/s, overrides: [{when: {ip: 192.0.2.7}, rate: %s}], on_exceed: {ban: {for: 1h, after: %s}}}
`, written, rate, written, rate, rate)})
				if err != nil {
					if algorithm == limit.SlidingWindowLog && strings.Contains(err.Error(), "log") {
						continue // a log has bounds of its own
					}
					t.Fatalf("%s as %v: %v", rate, algorithm, err)
				}
				l := set.Limits()
				for what, p := range map[string]limit.Policy{
					"the limit": l[0].Base.Policy, "its ban": l[0].Base.BanPolicy,
					"the override": l[1].Overrides[0].Variant.Policy, "the ban's after": l[1].Overrides[0].Variant.BanPolicy,
				} {
					if got := big.NewInt(p.Quota()); got.Cmp(burst) != 0 {
						t.Errorf("%s of %s as %v admits %d at once, want %d", what, rate, algorithm, got, burst)
					}
					got := new(big.Rat).SetFrac(new(big.Int).Mul(big.NewInt(p.Rate.Count), big.NewInt(int64(time.Second))), big.NewInt(int64(p.Rate.Period)))
					least := new(big.Rat).SetFrac64(int64(p.Rate.Period)-1, int64(p.Rate.Period)) // the period is whole nanoseconds
					if got.Cmp(perSecond) > 0 || got.Cmp(least.Mul(least, perSecond)) < 0 || p.Algorithm == limit.TokenBucket && got.Cmp(perSecond) != 0 {
						t.Errorf("%s of %s as %v has the rate %s/s, want %s/s", what, rate, algorithm, got.FloatString(12), perSecond.FloatString(12))
					}
				}
			}
		}
	}
}

func pow10(n int) int64 {
	p := int64(1)
	for range n {
		p *= 10
	}
	return p
}

// exactly is a count with its suffix as a fraction.
func exactly(t *testing.T, count string) *big.Rat {
	digits := strings.TrimRight(count, "kM")
	x, ok := new(big.Rat).SetString(digits)
	if !ok {
		t.Fatalf("%q is no number", count)
	}
	return x.Mul(x, new(big.Rat).SetInt64(map[string]int64{"": 1, "k": 1e3, "M": 1e6}[count[len(digits):]]))
}
