package costs

import (
	"cmp"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/quantile"
	"github.com/stint-io/stint/internal/seeding"
)

const ms = time.Millisecond

func newEstimator(t *testing.T, o Options) *Estimator {
	t.Helper()
	e, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// TestWalk is the life of two signatures, step by step.
func TestWalk(t *testing.T) {
	e := newEstimator(t, Options{Default: 5 * ms, StaleAfter: time.Minute, Quantile: 0.5, HalfLife: 8, MaxSignatures: 1})
	var steps []string
	now := time.Duration(0)
	say := func(what string) {
		steps = append(steps, fmt.Sprintf("%s: a %v, b %v", what, e.PredictAt(now, "a"), e.PredictAt(now, "b")))
		e.StartedAt(now, "a")
		e.StartedAt(now, "b")
	}
	say("nothing is known")
	e.ObserveAt(now, "a", 5*ms, 100*time.Microsecond)
	say("one request of a")
	e.ObserveAt(now, "a", 0, 200*ms)
	e.ObserveAt(now, "a", 0, 110*time.Microsecond)
	say("its median")
	e.ObserveAt(now, "b", 0, time.Second)
	say("b has no room of its own")
	now += 61 * time.Second
	say("a minute later both are stale")
	e.ObserveAt(now, "b", 0, 10*time.Microsecond)
	say("b has taken the place of a")
	want := strings.Join([]string{
		"nothing is known: a 5ms, b 5ms",
		"one request of a: a 102µs, b 5ms",
		"its median: a 110µs, b 5ms",
		"b has no room of its own: a 110µs, b 999.424ms",
		"a minute later both are stale: a 204.8ms, b 1.015808s",
		"b has taken the place of a: a 1.015808s, b 10µs",
	}, "\n")
	if got := strings.Join(steps, "\n"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := e.Stats(); got.Observed != 5 || got.Overflow != 1 || got.Signatures != 1 ||
		got.Predicted != 5*ms || got.Actual != 1200220*time.Microsecond {
		t.Errorf("stats %+v", got)
	}
}

// sample is a cost with its weight, for the exact oracle.
type sample struct {
	cost   time.Duration
	weight float64
}

// quantiles returns the exact weighted quantile of the samples, at q less and plus a rounding error.
func quantiles(samples []sample, q float64) (low, high time.Duration) {
	sorted := slices.Clone(samples)
	slices.SortFunc(sorted, func(a, b sample) int { return cmp.Compare(a.cost, b.cost) })
	total := 0.0
	for _, s := range sorted {
		total += s.weight
	}
	find := func(q float64) time.Duration {
		sum := 0.0
		for _, s := range sorted {
			if sum += s.weight; sum >= q*total {
				return s.cost
			}
		}
		return sorted[len(sorted)-1].cost
	}
	return find(q - 1e-9), find(q + 1e-9)
}

// draws returns a distribution of costs at random: its kind, place and spread, and a drift.
func draws(r *rand.Rand) func(i int) time.Duration {
	place := math.Exp(r.Float64() * math.Log(1e9)) // 1 ns to 1 s
	spread, drift := r.Float64()*3, (r.Float64()-0.5)*0.02
	kind := r.IntN(4)
	return func(i int) time.Duration {
		v := place * math.Exp(drift*float64(i))
		switch kind {
		case 0:
			v *= r.ExpFloat64()
		case 1:
			v *= math.Exp(spread * r.NormFloat64())
		case 2: // cheap and dear ones
			if r.Float64() < 0.1 {
				v *= 500
			}
		case 3: // a heavy tail
			v *= math.Pow(1-r.Float64(), -1/1.2)
		}
		return time.Duration(math.Min(v, float64(30*time.Minute)))
	}
}

// TestPredictionIsTheQuantile: for random distributions, drifts, quantiles and half-lives, the
// prediction after each sample is the exact quantile of the weighted samples, but for the width
// of a bucket.
func TestPredictionIsTheQuantile(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 150) {
		r := rand.New(rand.NewPCG(seed, 1))
		o := Options{Quantile: 0.05 + 0.94*r.Float64(), HalfLife: 8 + r.IntN(300), Min: 1, Max: time.Hour}
		e := newEstimator(t, o)
		cost := draws(r)
		var all []sample
		weight := 1.0
		for i := range 1500 {
			d := cost(i)
			e.ObserveAt(0, "r", 0, d)
			all = append(all, sample{d, weight})
			weight *= math.Exp2(1 / float64(o.HalfLife))
			if i%97 != 0 {
				continue
			}
			recent := all[max(0, len(all)-40*o.HalfLife):] // the others weigh 2^-40
			low, high := quantiles(recent, o.Quantile)
			got := e.PredictAt(0, "r")
			slack := func(d time.Duration) float64 {
				return float64(d)*quantile.RelativeError + float64(time.Microsecond)
			}
			if float64(got) < float64(low)-slack(low) || float64(got) > float64(high)+slack(high) {
				t.Fatalf("seed %d, sample %d: predicted %v, the %.3f quantile is %v to %v", seed, i, got, o.Quantile, low, high)
			}
		}
	}
}

// TestDriftIsFollowed: with the defaults, a route that becomes ten times dearer is known to be
// after 25 requests, and one that becomes ten times cheaper after 450.
func TestDriftIsFollowed(t *testing.T) {
	for _, tt := range []struct {
		from, to time.Duration
		after    int
	}{{10 * ms, 100 * ms, 25}, {100 * ms, 10 * ms, 450}} {
		e := newEstimator(t, Options{})
		for range 2000 {
			e.ObserveAt(0, "r", 0, tt.from)
		}
		needed := 0
		for ; (e.PredictAt(0, "r") - tt.to).Abs() > tt.to/16; needed++ {
			e.ObserveAt(0, "r", 0, tt.to)
		}
		if needed > tt.after || needed < 5 {
			t.Errorf("from %v to %v: %d requests, want 5 to %d", tt.from, tt.to, needed, tt.after)
		}
	}
}

// TestOneOutlierChangesLittle: one request of 10 s does not make a route of 1 ms dear.
func TestOneOutlierChangesLittle(t *testing.T) {
	e := newEstimator(t, Options{})
	for range 100 {
		e.Observe("r", 0, ms)
	}
	e.Observe("r", 0, 10*time.Second)
	if got := e.Predict("r"); got > 1100*time.Microsecond {
		t.Errorf("predicted %v after one request of 10 s among 100 of 1 ms", got)
	}
}

func TestExceededTeachesTheUnknown(t *testing.T) {
	e := newEstimator(t, Options{})
	e.Exceeded("r", ms)
	if got := e.Predict("r"); got != 5*ms {
		t.Errorf("predicted %v below the default", got)
	}
	e.Exceeded("r", 300*ms)
	e.Exceeded("r", 200*ms)
	if got := e.Predict("r"); got != 600*ms {
		t.Errorf("predicted %v while one runs that has cost 300ms", got)
	}
	e.Observe("r", 0, 10*ms)
	e.Exceeded("r", time.Hour)
	if got := e.Predict("r"); got > 11*ms {
		t.Errorf("predicted %v although one finished at 10ms", got)
	}
}

// TestSignaturesAreBounded: whatever comes, from several goroutines, memory stays bounded and
// predictions stay within their bounds.
func TestSignaturesAreBounded(t *testing.T) {
	e := newEstimator(t, Options{MaxSignatures: 50, Min: ms, Max: time.Second})
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(g), 2))
			for range 5000 {
				name := fmt.Sprint(r.IntN(1000))
				if p := e.Predict(name); p < ms || p > time.Second {
					t.Errorf("predicted %v", p)
				}
				e.Observe(name, 0, time.Duration(r.Int64()-r.Int64()))
				e.Exceeded(name, time.Duration(r.Int64()))
			}
		})
	}
	wg.Wait()
	n := 0
	e.entries.Range(func(any, any) bool { n++; return true })
	if s := e.Stats(); n != 50 || s.Signatures != 50 || s.Observed != 20000 || s.Overflow == 0 {
		t.Errorf("%d entries, %+v", n, s)
	}
}

// TestSweepIsRare: a flood of new signatures does not go through the table each time.
func TestSweepIsRare(t *testing.T) {
	e := newEstimator(t, Options{MaxSignatures: 2, StaleAfter: 100 * time.Second})
	for i := range 20 {
		e.ObserveAt(time.Duration(i+1)*time.Second, fmt.Sprint(i), 0, ms)
	}
	if e.swept != 13*time.Second {
		t.Errorf("last swept at %v, want 3 s and 13 s", e.swept)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	if e, err := New(Options{Min: 2 * ms, Max: 2 * ms}); err != nil || e.Predict("r") != 2*ms {
		t.Errorf("one and the same bound: %v", err)
	}
	for _, o := range []Options{
		{Quantile: 1},
		{Quantile: -0.1},
		{Quantile: math.NaN()},
		{HalfLife: 7},
		{Min: 2, Max: 1},
		{Min: -1},
		{Default: -1},
		{StaleAfter: -1},
		{MaxSignatures: -1},
	} {
		if _, err := New(o); err == nil || !strings.HasPrefix(err.Error(), "costs: ") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// TestUnderestimated: at a quantile of 0.9 one request in ten costs more than was predicted.
func TestUnderestimated(t *testing.T) {
	e := newEstimator(t, Options{HalfLife: 1000})
	r := seeding.Rand(t)
	for range 20000 {
		e.Observe("r", e.Predict("r"), time.Duration(r.ExpFloat64()*float64(10*ms)))
	}
	s := e.Stats()
	if part := float64(s.Underestimated) / float64(s.Observed); part < 0.08 || part > 0.12 {
		t.Errorf("%.3f were underestimated, want 0.1", part)
	}
	if s.Error < (s.Predicted-s.Actual).Abs() || s.Error > s.Predicted+s.Actual {
		t.Errorf("the error is %v: %+v", s.Error, s)
	}
}

func TestPredictionDoesNotAllocate(t *testing.T) {
	e := newEstimator(t, Options{})
	e.Observe("GET /users/{id}", 0, ms)
	if n := testing.AllocsPerRun(100, func() {
		e.Observe("GET /users/{id}", e.Predict("GET /users/{id}"), ms)
	}); n > 1 { // the signature as the key of the table
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkPredict(b *testing.B) {
	e, _ := New(Options{})
	e.Observe("GET /users/{id}", 0, ms)
	b.ReportAllocs()
	for b.Loop() {
		if e.Predict("GET /users/{id}") == 0 {
			b.Fatal("nothing predicted")
		}
	}
}

func BenchmarkObserve(b *testing.B) {
	e, _ := New(Options{})
	r := rand.New(rand.NewPCG(1, 1))
	b.ReportAllocs()
	for b.Loop() {
		e.Observe("GET /users/{id}", ms, time.Duration(r.ExpFloat64()*float64(ms)))
	}
}

// A price halves while requests ask and none starts, and not while requests run for long or nobody asks.
func TestPriceOfTheShutOut(t *testing.T) {
	e, err := New(Options{})
	if err != nil {
		t.Fatal(err)
	}
	at := time.Second
	for range 100 {
		e.ObserveAt(at, "kind", 0, 300*time.Millisecond)
	}
	known := e.PredictAt(at, "kind")
	e.StartedAt(at, "kind")
	if got := e.PredictAt(at+5*time.Minute, "kind"); got != known {
		t.Errorf("%v after five minutes in which nobody asked, and %v before", got, known)
	}
	at += 5 * time.Minute
	for i := range 20 {
		at += time.Minute
		e.StartedAt(at, "kind") // and runs
		if got := e.PredictAt(at, "kind"); got < known/2 {
			t.Errorf("%v after %d requests that started and run, and %v before", got, i, known)
		}
	}
	e.StartedAt(at, "kind")
	before := e.PredictAt(at, "kind")
	for range 10 {
		at += 2 * time.Second
		if got := e.PredictAt(at, "kind"); got >= before {
			t.Errorf("%v, %v before, while requests are shut out", got, before)
		} else {
			before = got
		}
	}
}
