package storetest

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// Changes records what one key of a limit admitted while its policy changed.
type Changes struct {
	policies [][]limit.Policy // in force at one time, by different instances
	since    []limit.Time     // when each came into force
	at       []limit.Time     // of what was admitted
	cost     []int64
}

// Set records that these policies are in force from now on, each at some instance.
func (c *Changes) Set(now limit.Time, policies ...limit.Policy) {
	c.policies, c.since = append(c.policies, policies), append(c.since, now)
}

// Admit records that cost was admitted at now.
func (c *Changes) Admit(now limit.Time, cost int64) {
	c.at, c.cost = append(c.at, now), append(c.cost, cost)
}

// Admitted is the number of admissions.
func (c *Changes) Admitted() int { return len(c.at) }

// Over returns an error if in some interval of length T more was admitted than burst + rate x T,
// with the largest burst and the largest rate in force in it. All policies are buckets.
func (c *Changes) Over() error {
	first := 0 // the first policy in force at the moment at which the interval begins
	for i := range c.at {
		for first+1 < len(c.since) && c.since[first+1] < c.at[i] {
			first++
		}
		policy, burst, n, p := first, int64(0), uint64(0), uint64(1)
		sum := int64(0)
		for j := i; j < len(c.at); j++ {
			for ; policy < len(c.since) && c.since[policy] <= c.at[j]; policy++ {
				for _, in := range c.policies[policy] {
					b := limit.NewBucket(in)
					burst = max(burst, in.Quota())
					if m, q := b.Terms(); !fixed.ProductAtMost(m, p, n, q) {
						n, p = m, q
					}
				}
			}
			if sum += c.cost[j]; sum > burst && !fixed.ProductAtMost(uint64(sum-burst), p, uint64(c.at[j]-c.at[i]), n) {
				return fmt.Errorf("%d were admitted in %v, of a burst of %d and %d per %v", sum, time.Duration(c.at[j]-c.at[i]), burst, n, time.Duration(p))
			}
		}
	}
	return nil
}

// RandomBucket returns a random bucket: usual ones, and some with odd amounts.
func RandomBucket(r *rand.Rand) limit.Policy {
	const day = 24 * time.Hour
	p := limit.Policy{Algorithm: limit.Algorithm(r.IntN(2)), Burst: r.Int64N(1 << r.IntN(9))}
	p.Rate = []limit.Rate{
		{},
		{Count: 3, Period: day},
		{Count: 100, Period: day},
		limit.PerMinute(1),
		{Count: 7, Period: 3 * time.Second},
		limit.PerSecond(10),
		limit.PerSecond(999_983),
		{Count: 1 + r.Int64N(1e6), Period: time.Duration(1 + r.Int64N(1e12))},
		limit.PerSecond(1e9),
	}[r.IntN(9)]
	return p
}

// OverWindows is Over for fixed windows: it returns an error if in some interval more was
// admitted than all policies together allow that were ever in force, each its count in
// each of its windows that the interval meets.
func (c *Changes) OverWindows() error {
	bound := func(from, to limit.Time) (sum int64) {
		met := map[limit.Rate]bool{}
		for _, list := range c.policies {
			for _, p := range list {
				if !met[p.Rate] {
					met[p.Rate] = true
					sum += p.Rate.Count * (int64(to)/int64(p.Rate.Period) - int64(from)/int64(p.Rate.Period) + 1)
				}
			}
		}
		return sum
	}
	for i, from := range c.at {
		sum := int64(0)
		for j := i; j < len(c.at); j++ {
			if sum += c.cost[j]; sum > bound(from, c.at[j]) {
				return fmt.Errorf("%d were admitted in %v, of at most %d by %v", sum, time.Duration(c.at[j]-from), bound(from, c.at[j]), c.policies)
			}
		}
	}
	return nil
}

// RandomWindow returns a random fixed window, some with lengths that do not divide each other.
func RandomWindow(r *rand.Rand) limit.Policy {
	lengths := []time.Duration{time.Second, 7 * time.Second, 45 * time.Second, time.Minute, 10 * time.Minute, time.Hour, 24 * time.Hour}
	return limit.Policy{
		Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: r.Int64N(1 << r.IntN(9)), Period: lengths[r.IntN(len(lengths))]}, CountRefused: r.IntN(8) == 0,
	}
}
