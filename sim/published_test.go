package sim

import (
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/traffic"
)

var (
	limits     = flag.Int("limits", 0, "how many limits the tests of published fleets play, as 1000; 0 = a few")
	firstLimit = flag.Uint64("first-limit", 1, "the first of the random limits of published fleets")
)

// eachLimit plays a test for a number of random limits, few without -limits, on all processors.
func eachLimit(t *testing.T, few int, play func(t *testing.T, seed uint64) *Result) (all []*Result) {
	t.Helper()
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	if *limits > 0 {
		few = *limits
	}
	var mu sync.Mutex
	t.Run("limits", func(t *testing.T) {
		for seed := *firstLimit; seed < *firstLimit+uint64(few); seed++ {
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				r := play(t, seed)
				mu.Lock()
				defer mu.Unlock()
				all = append(all, r)
			})
		}
	})
	return all
}

// TestTablesBelowTheirLimit: E21, Amazon DynamoDB's global admission control. A table's limit is
// shared by request routers, of which Zipf's law makes some hot, others at each move. It has saved
// up to 300 seconds of its rate. While the table stays below its limit no request is refused, and
// none waits longer than 100 ms for capacity from elsewhere, whatever the skew.
func TestTablesBelowTheirLimit(t *testing.T) {
	all := eachLimit(t, 12, func(t *testing.T, seed uint64) *Result {
		draw := rand.New(rand.NewPCG(seed, 21))
		r := traffic.Source{Rand: draw}
		routers := int(r.Between(8, 64))
		rate := int64(r.Between(20, 100) * float64(routers))
		demand, d, from := steady(float64(rate)*r.Between(0.1, 1)), 20*time.Second, time.Duration(0)
		if seed%4 == 0 { // all that was saved is spent first
			d, from = 122*time.Second, 102*time.Second
			demand = []Step{{0, 5 * float64(rate)}, {100 * time.Second, demand[0].Rate}}
		}
		s := Scenario{
			Name: fmt.Sprintf("table %d", seed), Limit: limitOf(rate, 300*rate), Instances: routers, Duration: d, Seed: seed,
			Network: Network{Delay: time.Duration(r.Between(float64(ms), float64(20*ms)))},
			Loads: []Load{{
				Demand: demand, Arrivals: Poisson, Wait: 100 * ms,
				Split: Split{Kind: Zipf, Exponent: r.Between(0.5, 1.5), Move: time.Duration(r.Between(1, 8) * float64(time.Second)), Shuffle: true},
			}},
			Measure: Measure{From: from},
		}
		got := accept(t, s, bounds{calm: from == 0})
		switch {
		case from == 0 && got.Refused.Requests > 0:
			t.Errorf("%d of %d requests were refused below the limit", got.Refused.Requests, got.Offered.Requests)
		case from > 0:
			// Nothing is left that was saved: chance refuses some that one bucket would admit.
			after := demand[1].Rate * (d - from).Seconds()
			t.Logf("%s: %d of %.0f refused early once all was spent", s.Name, got.Early.Requests, after)
			if float64(got.Early.Requests) > 0.03*after {
				t.Errorf("%s: %d of %.0f requests were refused early", s.Name, got.Early.Requests, after)
			}
		}
		return got
	})
	tables, requests, longest := 0, int64(0), time.Duration(0)
	for _, r := range all {
		if r.Refused.Requests == 0 {
			tables, requests, longest = tables+1, requests+r.Offered.Requests, max(longest, r.WaitMost)
		}
	}
	t.Logf("%d of %d tables were never above their limit: none of %d requests was refused, the longest wait for capacity is %v", tables, len(all), requests, longest)
}

// TestSurgeOfOneService: E22, Uber's global rate limiter. One of many services gets 15 times its
// demand. Its limit is shared by suppression over 150 proxies. Within half a second what passes is
// within a tenth of the limit, and it stays there.
func TestSurgeOfOneService(t *testing.T) {
	all := eachLimit(t, 3, func(t *testing.T, seed uint64) *Result {
		draw := rand.New(rand.NewPCG(seed, 22))
		r := traffic.Source{Rand: draw}
		proxies := int(r.Between(50, 150))
		rate := int64(r.Between(10, 40) * float64(proxies)) // tens of thousands with a cost of ten
		demand := float64(rate) * r.Between(0.7, 0.99)
		at := 5 * time.Second
		return surge(t, Scenario{
			Name: fmt.Sprintf("surge %d", seed), Limit: limitOf(rate, max(rate/10, int64(4*proxies))), Instances: proxies, Duration: at + 15*time.Second, Seed: seed,
			Network: Network{Delay: time.Duration(r.Between(float64(5*ms), float64(50*ms)))},
			Loads:   []Load{{Demand: []Step{{0, demand}, {at, 15 * demand}}, Arrivals: Poisson, Split: Split{Kind: Zipf, Exponent: 0.5}}},
			Measure: Measure{From: at + time.Second, Step: at},
		})
	})
	longest := time.Duration(0)
	for _, r := range all {
		longest = max(longest, r.T110)
	}
	t.Logf("%d services: within 10 %% of the limit %v after the surge at the latest", len(all), longest)
}

// surge plays s with suppression, and holds the fall to 1.1 of the limit against half a second.
// What suppression admits above the limit until then is stated by what it promises, not by this.
func surge(t *testing.T, s Scenario) *Result {
	t.Helper()
	r := run(t, s, &Ours{Suppress: &lease.Suppress{}})
	t.Logf("%s: use %.4f, t110 %v, swing %.4f, %.2f Kbps", s.Name, r.Use, shown(r.T110), r.Swing, r.Kbps)
	if r.T110 > 500*ms {
		t.Errorf("%s: within 10 %% of the limit after %v, want 500ms", s.Name, shown(r.T110))
	}
	if r.Use < 0.97 {
		t.Errorf("%s: use is %.4f after the surge", s.Name, r.Use)
	}
	return r
}

// TestPoliciesOnManyNodes: E23, Yahoo's Cloud Bouncer. Each of many policies is shared by a thousand
// nodes, which decide locally. Some nodes demand a policy, most do not. Never over, and the
// demand that fits is met.
func TestPoliciesOnManyNodes(t *testing.T) {
	all := eachLimit(t, 2, func(t *testing.T, seed uint64) *Result {
		draw := rand.New(rand.NewPCG(seed, 23))
		r := traffic.Source{Rand: draw}
		const nodes = 1000
		users := draw.Perm(nodes)[:int(math.Exp(r.Between(math.Log(2), math.Log(nodes))))]
		rate := int64(r.Between(5, 50) * float64(len(users)))
		at := 2 * time.Second
		got := accept(t, Scenario{
			Name: fmt.Sprintf("policy %d of %d nodes", seed, len(users)), Limit: limitOf(rate, max(rate/2, int64(8*len(users)))), Instances: nodes, Duration: at + 6*time.Second, Seed: seed,
			Network: Network{Delay: time.Duration(r.Between(float64(ms), float64(50*ms)))},
			Loads: []Load{{
				Instances: users, Demand: []Step{{0, float64(rate) * r.Between(0.1, 0.9)}, {at, float64(rate) * r.Between(1, 3)}},
				Arrivals: Poisson, Wait: 250 * ms, Split: Split{Kind: Zipf, Exponent: r.Between(0.01, 1)},
			}},
			Measure: Measure{From: at + time.Second, Step: at},
		}, bounds{use: 0.9})
		return got
	})
	least, mean := 1.0, 0.0
	for _, r := range all {
		least, mean = min(least, r.Use), mean+r.Kbps/float64(len(all))
	}
	t.Logf("%d policies of 10,000: never over, use of each at least %.4f; a policy's coordination takes %.3f Kbps of a node on average", len(all), least, mean)
}
