package sim

import (
	"cmp"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

var (
	searches    = flag.Int("searches", 30, "how many random scenarios TestOursSearch plays")
	firstSearch = flag.Int("first-search", 0, "the first of the random scenarios")
	showWorst   = flag.Int("worst", 3, "how many of the worst scenarios of each kind TestOursSearch shows")
)

// oneBucket is one central limiter that every instance reaches at once: what nobody can
// do better, for the arrivals of a scenario.
type oneBucket struct {
	bucket limit.Bucket
	state  limit.BucketState
}

func (*oneBucket) Name() string                              { return "one bucket" }
func (*oneBucket) Coordinator(Env, Setup, Address, int) Node { return nil }
func (o *oneBucket) Instance(env Env, _ Setup, _, _ int) Enforcer {
	return &oneBucketNode{oneBucket: o, env: env}
}

type oneBucketNode struct {
	*oneBucket
	env Env
}

func (*oneBucketNode) Receive(Address, any) {}
func (*oneBucketNode) Wake()                {}
func (*oneBucketNode) Share() float64       { return 0 }
func (n *oneBucketNode) Take(cost int64) bool {
	return n.bucket.Take(&n.state, n.env.Now(), cost).Allowed
}

// found is a random scenario and how our system did in it.
type found struct {
	index  int
	s      Scenario
	system Ours
	factor float64 // demand over the limit
	faulty bool    // processes stop or pause
	moves  bool    // the load does not stay where it is
	r      *Result
	use    float64 // over that of one bucket
	early  float64 // part of all requests
}

// around returns a number between a and b, each power of ten as likely as another.
func around(r *rand.Rand, a, b float64) float64 {
	return math.Exp(math.Log(a) + r.Float64()*(math.Log(b)-math.Log(a)))
}

func chanceOf(r *rand.Rand, p float64) bool { return r.Float64() < p }

// randomScenario makes the scenario with a number.
func randomScenario(index int) *found {
	r := rand.New(rand.NewPCG(uint64(index), 7))
	rate := around(r, 0.1, 1e6)
	n := int(around(r, 1, 64))
	count, period := int64(math.Ceil(rate)), time.Second
	if rate < 1 {
		count, period = 1, time.Duration(float64(time.Second)/rate).Round(100*ms)
	}
	l := Limit{Rate: limit.Rate{Count: count, Period: period}}
	rate = l.PerSecond()
	l.Burst = max(1, int64(rate*around(r, 1, 10)))
	if chanceOf(r, 0.3) {
		l.Burst = max(1, int64(rate*around(r, 0.05, 1)))
	}
	f := &found{index: index, factor: 0.3 + r.Float64()*0.6}
	if chanceOf(r, 0.5) {
		f.factor = 1.2 + r.Float64()*2
	}
	cost := max(1, int64(rate*f.factor/5000))
	if chanceOf(r, 0.2) {
		cost = min(cost*int64(1+r.IntN(5)), max(1, l.Burst/4))
	}
	d := time.Duration(min(max(60/rate, 15), 400) * float64(time.Second))
	if rate < 1000 && chanceOf(r, 0.3) {
		d = max(d, time.Minute)
	}
	f.s = Scenario{
		Name: fmt.Sprint(index), Limit: l, Instances: n, Duration: d, Seed: uint64(index),
		Network: Network{Delay: time.Duration(around(r, 1, 500) * float64(ms))}, Measure: Measure{From: 2 * time.Second},
	}
	f.network(r)
	f.loads(r, rate, cost)
	f.faults(r)
	if chanceOf(r, 0.2) {
		for range n {
			f.s.Weights = append(f.s.Weights, uint32(1+r.IntN(4)))
		}
	}
	return f
}

func (f *found) network(r *rand.Rand) {
	n := &f.s.Network
	if chanceOf(r, 0.5) {
		n.Jitter = time.Duration(r.Float64() * float64(n.Delay))
		n.InOrder = chanceOf(r, 0.5)
	}
	if chanceOf(r, 0.4) {
		n.Loss = r.Float64() * 0.2
		n.Duplicate = r.Float64() * 0.1
	}
}

func (f *found) loads(r *rand.Rand, rate float64, cost int64) {
	one := Load{Arrivals: Arrivals(r.IntN(int(arrivals))), Cost: cost}
	if one.Arrivals == Bursts {
		one.Size = 1 + r.IntN(int(min(20, max(1, f.s.Limit.Burst/cost/4))))
	}
	switch r.IntN(4) {
	case 0:
		one.Split = Split{Kind: OnOne}
	case 1:
		one.Split = Split{Kind: Zipf}
	}
	if one.Split.Kind != Equal && f.s.Instances > 1 && chanceOf(r, 0.5) {
		f.moves = true
		one.Split.Move = time.Duration(around(r, 1, 10) * float64(time.Second))
		one.Split.Shuffle = chanceOf(r, 0.5)
	}
	one.Demand = steady(rate * f.factor)
	if chanceOf(r, 0.3) {
		one.Wait = time.Duration(around(r, 20, 1000)) * ms
		half := one
		half.Wait = 0
		one.Demand, half.Demand = steady(rate*f.factor/2), steady(rate*f.factor/2)
		f.s.Loads = append(f.s.Loads, half)
	}
	f.s.Loads = append(f.s.Loads, one)
}

func (f *found) faults(r *rand.Rand) {
	if chanceOf(r, 0.75) {
		return
	}
	f.faulty = true
	at := func() time.Duration { return time.Duration(r.Float64() * 0.6 * float64(f.s.Duration)) }
	node := Address(r.IntN(f.s.Instances))
	switch r.IntN(4) {
	case 0:
		f.s.Pauses = append(f.s.Pauses, Pause{At: at(), For: time.Duration(around(r, 100, 8000)) * ms, Node: node, Backlog: 100 * ms})
	case 1:
		f.s.Stops = append(f.s.Stops, Stop{At: at(), For: time.Duration(around(r, 100, 8000)) * ms, Node: node, Orderly: chanceOf(r, 0.5)})
	default:
		f.s.Stops = append(f.s.Stops, Stop{At: at(), For: time.Duration(around(r, 100, 8000)) * ms, Node: Coordinator})
		f.system.Forgetful = chanceOf(r, 0.5)
	}
}

// String tells the scenario in words.
func (f *found) String() string {
	var b strings.Builder
	s := &f.s
	fmt.Fprintf(&b, "#%d: %d instances, %.3g/s, burst %d (%.2g s), delay %v", f.index, s.Instances, s.Limit.PerSecond(), s.Limit.Burst,
		float64(s.Limit.Burst)/s.Limit.PerSecond(), s.Network.Delay.Round(ms))
	if s.Network.Jitter > 0 {
		fmt.Fprintf(&b, "+%v in order %v", s.Network.Jitter.Round(ms), s.Network.InOrder)
	}
	if s.Network.Loss > 0 {
		fmt.Fprintf(&b, ", loss %.0f%%", 100*s.Network.Loss)
	}
	fmt.Fprintf(&b, ", demand %.2f", f.factor)
	for _, l := range s.Loads {
		fmt.Fprintf(&b, " [%s %s cost %d", [...]string{"even", "poisson", fmt.Sprintf("bursts of %d", l.Size)}[l.Arrivals],
			[...]string{"on all", "on one", "zipf"}[l.Split.Kind], max(l.Cost, 1))
		if l.Split.Move > 0 {
			fmt.Fprintf(&b, " moves every %v", l.Split.Move.Round(100*ms))
		}
		if l.Wait > 0 {
			fmt.Fprintf(&b, " waits %v", l.Wait)
		}
		b.WriteString("]")
	}
	if s.Weights != nil {
		b.WriteString(" weights")
	}
	for _, p := range s.Pauses {
		fmt.Fprintf(&b, " pause of %d at %v for %v", p.Node, p.At.Round(ms), p.For)
	}
	for _, p := range s.Stops {
		fmt.Fprintf(&b, " stop of %d at %v for %v orderly %v forgetful %v", p.Node, p.At.Round(ms), p.For, p.Orderly, f.system.Forgetful)
	}
	fmt.Fprintf(&b, " -> use %.3f of one bucket's, lent %.3f, early %d of %d, below %d, %.1f Kbps, over %g, Jain %.3f",
		f.use, f.r.Lent, f.r.Early.Requests, f.r.Offered.Requests, f.r.Below, f.r.Kbps, f.r.Over, f.r.Jain)
	return b.String()
}

// TestOursSearch plays random scenarios: none may be over. With -v it shows the worst
// by other measures, which are what a change of the machines should be held against.
func TestOursSearch(t *testing.T) {
	all := make([]*found, *searches)
	var workers sync.WaitGroup
	jobs := make(chan int)
	for range runtime.GOMAXPROCS(0) {
		workers.Go(func() {
			for i := range jobs {
				f := randomScenario(*firstSearch + i)
				r, err := Run(t.Context(), f.s, &f.system)
				if err != nil {
					t.Errorf("scenario %d: %v", f.index, err)
					continue
				}
				best, err := Run(t.Context(), f.s, &oneBucket{bucket: limit.NewBucket(limit.Policy{Rate: f.s.Limit.Rate, Burst: f.s.Limit.Burst})})
				if err != nil {
					t.Errorf("scenario %d with one bucket: %v", f.index, err)
					continue
				}
				f.r = r
				f.use = ratio(r.Use, best.Use)
				f.early = ratio(float64(r.Early.Requests), float64(r.Offered.Requests))
				all[i] = f
			}
		})
	}
	for i := range all {
		jobs <- i
	}
	close(jobs)
	workers.Wait()
	all = slices.DeleteFunc(all, func(f *found) bool { return f == nil })
	for _, f := range all {
		if f.r.Over > 0 || f.r.SharePeak > 1 || f.r.BadShares > 0 {
			t.Errorf("%g over, shares %v of the limit: %s", f.r.Over, f.r.SharePeak, f)
		}
	}
	overload := func(f *found) bool { return f.factor > 1 }
	worst(t, "use in overload, nothing fails", all, func(f *found) (float64, bool) { return 1 - f.use, overload(f) && !f.faulty && !f.moves })
	worst(t, "use in overload that moves", all, func(f *found) (float64, bool) { return 1 - f.use, overload(f) && !f.faulty && f.moves })
	worst(t, "use in overload with failures", all, func(f *found) (float64, bool) { return 1 - f.use, overload(f) && f.faulty })
	worst(t, "refused early, nothing fails or moves", all, func(f *found) (float64, bool) { return f.early, !overload(f) && !f.faulty && !f.moves })
	worst(t, "refused early where the load moves", all, func(f *found) (float64, bool) { return f.early, !overload(f) && !f.faulty && f.moves })
	worst(t, "Kbps per instance", all, func(f *found) (float64, bool) { return f.r.Kbps, true })
}

// worst shows those for which badness is most.
func worst(t *testing.T, what string, all []*found, badness func(*found) (float64, bool)) {
	list := slices.DeleteFunc(slices.Clone(all), func(f *found) bool { _, ok := badness(f); return !ok })
	slices.SortStableFunc(list, func(a, b *found) int {
		x, _ := badness(a)
		y, _ := badness(b)
		return cmp.Compare(y, x)
	})
	sum := 0.0
	for _, f := range list {
		x, _ := badness(f)
		sum += x
	}
	t.Logf("%s: %d scenarios, mean %.4f", what, len(list), sum/float64(max(1, len(list))))
	for _, f := range list[:min(len(list), *showWorst)] {
		x, _ := badness(f)
		t.Logf("    %.4f %s", x, f)
	}
}
