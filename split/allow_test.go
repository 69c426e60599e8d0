package split_test

import (
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/split"
)

// TestAllowAgainstAllTokens: without windows an instance has the tokens whose numbers are
// its own; token c is due at c divided by the rate, and good until burst further ones are
// due. Allow, AllowN and Remaining say what a list of all tokens says.
func TestAllowAgainstAllTokens(t *testing.T) {
	for seed := range seeding.Draw(t, 100) {
		r := rand.New(rand.NewPCG(seed, 61))
		rate, n := 1+r.Int64N(40), 1+r.IntN(6)
		terms := split.Terms{Total: limit.PerSecond(rate), Part: split.Instance(r.IntN(n), n), Burst: int64(n) * (1 + r.Int64N(4))}
		synctest.Test(t, func(t *testing.T) {
			<-time.After(time.Duration(r.Int64N(int64(time.Hour))))
			l, twin := newLimiter(t, terms, split.Options{}), newLimiter(t, terms, split.Options{})
			admitted := int64(0)
			begin := time.Now()
			for step := range 300 {
				if r.IntN(2) == 0 {
					<-time.After(time.Duration(r.Int64N(int64(time.Second) * int64(n) / rate)))
				}
				now := time.Now()
				remaining := l.Remaining()
				got := false
				want := twin.AllowN(now, 1) // which asks whatever was said before
				if r.IntN(4) == 0 {
					got = l.AllowN(now, 1)
				} else {
					got = l.Allow()
				}
				if got != want || got != (remaining > 0) {
					t.Fatalf("seed %d, step %d: %v: admitted %v, its twin %v, %d remain", seed, step, terms, got, want, remaining)
				}
				if after := l.Remaining(); got && after != remaining-1 || !got && after != 0 {
					t.Fatalf("seed %d, step %d: %d remain after %d", seed, step, after, remaining)
				}
				if got {
					admitted++
				}
				// Its part of what is due since the beginning, and rounding.
				if due := int64(now.Sub(begin))*rate/int64(n)/int64(time.Second) + 1; admitted > due {
					t.Fatalf("seed %d, step %d: %d admitted of %d that were due", seed, step, admitted, due)
				}
			}
			<-time.After(time.Minute)
			if got := l.Remaining(); got < terms.Burst/int64(n) || got > terms.Burst/int64(n)+1 {
				t.Errorf("seed %d: %d after a minute, of a burst of %d among %d", seed, got, terms.Burst, n)
			}
		})
	}
}
