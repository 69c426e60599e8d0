package estimate_test

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/estimate"
	"github.com/stint-io/stint/internal/quantile"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// clock is a time that a test moves.
type clock struct{ now time.Duration }

func config() estimate.Config {
	return estimate.Config{By: []string{"model", "tenant"}, Declared: "max_tokens", Quantile: 0.9, Start: 1000}
}

func of(model, tenant string, declared int64) estimate.Subject {
	return estimate.Subject{Values: []string{model, tenant}, Declared: declared}
}

func newEstimator(t *testing.T, o estimate.Options) (*estimate.Estimator, *clock) {
	t.Helper()
	c := new(clock)
	o.Now = func() time.Duration { return c.now }
	if o.By == nil {
		o.Config = config()
	}
	e, err := estimate.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return e, c
}

func near(got, want int64) bool { return math.Abs(float64(got-want)) <= 0.05*float64(want)+1 }

// What is unknown begins with the start, a new tenant with its model, and each has its own after some requests.
func TestWalk(t *testing.T) {
	e, _ := newEstimator(t, estimate.Options{})
	expect := func(what string, s estimate.Subject, cost int64, from estimate.From) {
		t.Helper()
		if got := e.Estimate(s); !near(got.Cost, cost) || got.From != from {
			t.Errorf("%s: %d from %s, want %d from %s", what, got.Cost, got.From, cost, from)
		}
	}
	acme := of("large", "acme", 4096)
	expect("nothing is known", acme, 1000, estimate.Start)
	expect("and little declared", of("large", "acme", 200), 200, estimate.Start)
	expect("and nothing declared", of("large", "acme", 0), 1000, estimate.Start)
	e.Settle(acme, 1000, 300)
	expect("one request does not refute the start", acme, 1000, estimate.Own)
	for range 30 {
		e.Settle(acme, 1000, 300)
	}
	expect("30 do", acme, 300, estimate.Own)
	expect("the same size", of("large", "acme", 5000), 300, estimate.Own)
	expect("another size", of("large", "acme", 100), 100, estimate.Model)
	expect("another tenant", of("large", "new", 4096), 300, estimate.Model)
	expect("another model", of("small", "acme", 4096), 1000, estimate.Start)
	e.Settle(of("large", "new", 4096), 300, 2000)
	expect("a higher one is followed at once", of("large", "new", 4096), 2000, estimate.Own)
	for range 1000 {
		e.Settle(acme, 0, 0)
		e.Settle(acme, 0, -5)
	}
	e.Settle(estimate.Subject{Values: []string{"x"}}, 300, 7)
	expect("what costs nothing, or has other attributes, teaches nothing", acme, 300, estimate.Own)
	s := e.Stats()
	if s.Settled != 33 || s.Low != 1 || s.Under != 1700 || s.Over != 31*700+293 || s.Keys != 2 || s.Models != 1 {
		t.Errorf("%+v", s)
	}
}

func TestSubject(t *testing.T) {
	e, _ := newEstimator(t, estimate.Options{})
	attrs := func(text string) (list []limit.Attribute) {
		for _, f := range strings.Fields(text) {
			name, value, _ := strings.Cut(f, "=")
			list = append(list, limit.Attribute{Name: name, Value: value})
		}
		return list
	}
	if s, ok, err := e.Subject(attrs("tenant=acme max_tokens=4096 x=y")); !ok || err != nil || s.Declared != 4096 || !slices.Equal(s.Values, []string{"", "acme"}) {
		t.Error(s, ok, err)
	}
	for _, bad := range []string{"0", "-1", "NaN", "1e3", "1.5", "", "9223372036854775808", "4611686018427387905"} {
		if _, _, err := e.Subject(attrs("max_tokens=" + bad)); !errors.Is(err, estimate.ErrBad) {
			t.Errorf("max_tokens %q: %v", bad, err)
		}
	}
	if err := e.Configure(estimate.Config{}); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := e.Subject(attrs("max_tokens=x")); ok || err != nil {
		t.Error("nothing is learned, and something is asked for", err)
	}
	for _, o := range []estimate.Options{
		{MaxKeys: -1},
		{MaxOpen: -1},
		{Config: estimate.Config{Start: -1}},
		{Config: estimate.Config{By: []string{"a"}, Quantile: 1}},
		{Config: estimate.Config{By: []string{"a"}, Quantile: math.NaN()}},
	} {
		if _, err := estimate.New(o); err == nil {
			t.Errorf("%+v is taken", o)
		}
	}
	if e, err := estimate.New(estimate.Options{Config: estimate.Config{By: []string{"a"}, Quantile: 0.5}}); err != nil {
		t.Error(err)
	} else if n := e.Estimate(estimate.Subject{Values: []string{"x"}}).Cost; n != 1000 {
		t.Errorf("nothing is known, declared or configured: %d", n)
	} else if n := e.Estimate(estimate.Subject{Values: []string{"x"}, Declared: 5000}).Cost; n != 5000 {
		t.Errorf("nothing is known or configured, and 5000 declared: %d", n)
	}
}

// Of whatever lengths (lognormal, of two kinds, drifting), the estimate is the exact quantile of what has cost the
// same, the newer ones heavier, or at most 1/16 more; and where they do not drift that share of requests costs no more
// which the quantile says.
func TestQuantile(t *testing.T) {
	for seed := range seeding.Draw(t, 24) {
		r := rand.New(rand.NewPCG(seed, 9))
		q, sigma, mean := 0.3+0.65*r.Float64(), 0.3+r.Float64(), 100+2000*r.Float64()
		kind, drift := seed%3, 0.0
		if kind == 2 {
			drift = 0.004 * (r.Float64() - 0.5)
		}
		e, _ := newEstimator(t, estimate.Options{Config: estimate.Config{By: []string{"model"}, Quantile: q}})
		s := estimate.Subject{Values: []string{"m"}, Declared: 1 << 40}
		type sample struct{ cost, weight float64 }
		var all []sample
		within, n, weight := 0, 0, 1.0
		for i := range 3000 {
			actual := int64(1 + mean*math.Exp(sigma*r.NormFloat64()+drift*float64(i)))
			if kind == 1 && r.Float64() < 0.3 {
				actual *= 20
			}
			got := e.Estimate(s).Cost
			if i >= 500 {
				n++
				if actual <= got {
					within++
				}
			}
			if i > 0 && i%211 == 0 {
				sorted := slices.SortedFunc(slices.Values(all), func(a, b sample) int { return cmp.Compare(a.cost, b.cost) })
				total, sum, low, high := 0.0, 0.0, 0.0, 0.0
				for _, x := range sorted {
					total += x.weight
				}
				for _, x := range sorted {
					if sum += x.weight; low == 0 && sum >= (q-1e-9)*total {
						low = x.cost
					}
					if sum >= (q+1e-9)*total {
						high = x.cost
						break
					}
				}
				if v := float64(got); v < low || v > high*(1+2*quantile.RelativeError) {
					t.Fatalf("seed %d, request %d: %v, the %.3f quantile is %v to %v", seed, i, v, q, low, high)
				}
			}
			e.Settle(s, got, actual)
			all = append(all, sample{float64(actual), weight})
			weight *= math.Exp2(1.0 / 128)
		}
		if share := float64(within) / float64(n); kind < 2 && math.Abs(share-q) > 0.08 {
			t.Errorf("seed %d: %.3f were within the quantile %.2f", seed, share, q)
		}
	}
}

// Strangers have the estimate of their model, and take the place of nobody who is established, nor more memory.
func TestStrangers(t *testing.T) {
	e, c := newEstimator(t, estimate.Options{MaxKeys: 40})
	settle := func(model, tenant string, n int, actual int64) {
		for range n {
			e.Settle(of(model, tenant, 4096), 0, actual)
		}
	}
	for i := range 20 {
		settle("m", fmt.Sprint("known", i), 40, 500)
	}
	for i := range 1000 {
		settle(fmt.Sprint("invented", i), fmt.Sprint("stranger", i), 3, 1)
		c.now += time.Second
	}
	settle("m", strings.Repeat("long", 100), 40, 500)
	s := e.Stats()
	if s.Keys != 40 || s.Models != 10 || s.Shared == 0 {
		t.Errorf("%+v", s)
	}
	for i := range 20 {
		if got := e.Estimate(of("m", fmt.Sprint("known", i), 4096)); got.From != estimate.Own || !near(got.Cost, 500) {
			t.Errorf("known%d: %+v", i, got)
		}
	}
	if got := e.Estimate(of("m", "late", 4096)); got.From != estimate.Model || !near(got.Cost, 500) {
		t.Errorf("one without room: %+v", got)
	}
	c.now += 11 * time.Minute // the strangers have gone
	settle("m", "late", 40, 700)
	if got := e.Estimate(of("m", "late", 4096)); got.From != estimate.Own || !near(got.Cost, 700) {
		t.Errorf("one that found room: %+v", got)
	}
}

// A tenant that says that it uses 1 has its own estimates driven down, and no others that are known; and costs of 2^62
// and a clock that goes back do no harm.
func TestLiars(t *testing.T) {
	e, c := newEstimator(t, estimate.Options{})
	for range 300 {
		e.Settle(of("m", "honest", 4096), 500, 500)
	}
	for range 300 {
		e.Settle(of("m", "liar", 4096), 500, 1)
	}
	if got := e.Estimate(of("m", "honest", 4096)); !near(got.Cost, 500) {
		t.Errorf("an honest one: %+v", got)
	}
	if got := e.Estimate(of("m", "liar", 4096)); got.Cost > 2 {
		t.Errorf("a liar: %+v", got)
	}
	for _, n := range []int64{math.MaxInt64, limit.MaxCount, math.MinInt64} {
		c.now -= time.Hour
		for range 2000 {
			e.Settle(of("m", "huge", limit.MaxCount), n, n)
		}
	}
	if got := e.Estimate(of("m", "huge", 100)); got.Cost != 100 {
		t.Errorf("a small one of huge ones: %+v", got)
	}
	if got := e.Estimate(of("m", "huge", limit.MaxCount)); got.Cost < 1 || got.Cost > limit.MaxCount {
		t.Errorf("a huge one: %+v", got)
	}
	s := e.Stats()
	if f := s.Under + s.Over + s.Estimated + s.Consumed; math.IsNaN(f) || math.IsInf(f, 0) {
		t.Errorf("%+v", s)
	}
}

// While much is left an estimate will do; not near the end of a budget, before anything is known, nor for more
// reservations than are remembered. What has ended counts no more.
func TestOpen(t *testing.T) {
	instances := 1
	e, c := newEstimator(t, estimate.Options{MaxOpen: 120, Instances: func() int { return instances }})
	s := of("m", "t", 1000)
	for range 2000 { // by their lengths three quarters of those in flight cost 300
		e.Settle(s, 100, 300)
		for range 12 {
			e.Settle(s, 100, 100)
		}
	}
	est := e.Estimate(s)
	if !near(est.Cost, 100) {
		t.Fatal(est)
	}
	// 300 of the length of 1,500 of each 13 are above the estimate: each owes 900 x 300x200 / (300x900 + 1200x900).
	const each, key = 900 * 60000.0 / 1350000, "budget"
	hold := func(left int64) []estimate.Hold {
		return []estimate.Hold{{Key: "plenty", Left: 1 << 40}, {Key: key, Left: left}}
	}
	open := func(id string, left int64) bool { return e.Open(id, &est, hold(left), time.Minute) }
	for i := range 99 {
		if !open(fmt.Sprint(i), 1<<40) {
			t.Fatal(i)
		}
	}
	p := each / 900
	likely := func(n float64) int64 { return int64(n*each + 3*math.Sqrt(n*p*(1-p))*900) }
	if open("x", likely(100)*9/10) || !open("x", likely(100)*11/10) {
		t.Errorf("what 100 are likely to owe is about %d", likely(100))
	}
	if !e.Open("other", &est, []estimate.Hold{{Key: "another", Left: likely(1) * 12 / 10}}, time.Minute) {
		t.Error("another key has what this one owes")
	}
	instances = 2
	if open("y", likely(200)*9/10) || !open("y", likely(202)*11/10) {
		t.Error("the other process is not counted")
	}
	instances = 1
	for i := range 99 {
		e.Close(fmt.Sprint(i))
	}
	e.Close("nobody")
	if !open("z", likely(3)*12/10) {
		t.Error("what has ended is counted")
	}
	e.Extend("z", time.Hour)
	e.Extend("nobody", time.Hour)
	c.now += 59 * time.Minute
	open("last", 1<<40)
	if n := e.Stats().Open; n != 2 {
		t.Errorf("%d are open, want the one that was extended and the last", n)
	}
	for i := range 118 {
		open(fmt.Sprint("many", i), 1<<40)
	}
	if open("more", 1<<40) || e.Stats().Open != 120 {
		t.Errorf("more are remembered than there is room for: %d", e.Stats().Open)
	}
	if fresh := e.Estimate(of("new", "t", 4000)); e.Open("fresh", &fresh, hold(2999), time.Minute) {
		t.Error("nothing is known of a model, and 3000 above the start would not fit")
	}
	if whole := e.Estimate(of("m", "t", 1)); !e.Open("whole", &whole, hold(0), time.Minute) {
		t.Error("all that is declared is not enough")
	}
}
