package tenants

import (
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

// jain is Jain's index of fairness: 1 = all the same.
func jain(x []float64) float64 {
	sum, squares := 0.0, 0.0
	for _, v := range x {
		sum += v
		squares += v * v
	}
	if squares == 0 {
		return 1
	}
	return sum * sum / (float64(len(x)) * squares)
}

// fairness is what was measured over windows of ten seconds: the worst of each.
type fairness struct {
	jain, use float64
	early     int64         // refused of tenants that want less than 0.9 of what they may have
	firsts    int           // tenants that come back
	late      int           // of these, whose first request was refused; they ask again when that says
	wait      time.Duration // the longest until they had a token
	lacking   float64       // the most that one had too little in the first second, in tokens, below its share
}

// measure plays windows of ten seconds, each with new demands: a third of the tenants want nothing, the
// others a random amount, and all together about 2.7 times the limit.
func measure(t *testing.T, w *world, rng *rand.Rand, n, windows int) fairness {
	f := fairness{jain: 1, use: 1}
	rate := float64(w.terms.Policy.Rate.Count)
	demand := make([]float64, n)
	for window := range windows {
		before := append([]float64(nil), demand...)
		for i := range demand {
			if demand[i] = 0; rng.IntN(3) > 0 {
				demand[i] = rate / float64(n) * rng.ExpFloat64() * 4
			}
		}
		first := map[int]limit.Time{} // when a tenant that comes back has asked first
		w.eager = map[int]bool{}
		for i := range demand {
			w.eager[i] = window > 0 && before[i] == 0 && demand[i] > 0
		}
		w.asks = func(i int, allowed bool) {
			if !w.eager[i] {
				return
			}
			if first[i] == 0 {
				first[i] = w.now
				if f.firsts++; !allowed {
					f.late++
				}
			}
			if allowed {
				f.wait = max(f.wait, time.Duration(w.now-first[i]))
			}
		}
		w.run(rng, demand, time.Second)
		got, asked := w.got, w.asked
		for i, share := range w.fair(demand) {
			if before[i] == 0 && window > 0 && demand[i] > 1.5*share {
				f.lacking = max(f.lacking, min(share, float64(asked[i]))-float64(got[i]))
			}
		}
		w.run(rng, demand, 9*time.Second)
		asks, all, wanted := make([]float64, n), 0.0, 0.0
		for i := range asks {
			got[i] += w.got[i]
			asks[i] = float64(asked[i]+w.asked[i]) / 10
			all, wanted = all+float64(got[i]), wanted+asks[i]*10
		}
		if window == 0 {
			continue // it begins with a full burst
		}
		var wanting []float64
		for i, share := range w.fair(asks) {
			switch {
			case asks[i] > 1.05*share:
				wanting = append(wanting, float64(got[i])/share)
			case asks[i] < 0.9*share:
				f.early += int64(asks[i]*10) - got[i]
			}
		}
		f.jain = min(f.jain, jain(wanting))
		f.use = min(f.use, all/min(wanted, 10*rate))
	}
	return f
}

// 100 tenants, one limit, demand that moves every ten seconds: Jain's index of those that want more than they
// have is at least 0.995 in every window, use at least 0.99, and who comes back has a token at once and its
// share in the first second. FAIR_WINDOWS=360 plays an hour.
func TestFairWhileDemandMoves(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	windows := 4
	if n, err := strconv.Atoi(os.Getenv("FAIR_WINDOWS")); err == nil {
		windows = n
	}
	for _, tt := range []struct {
		burst        int64
		jain         float64
		weights      bool
		windowsAbove int
	}{
		{burst: 250, jain: 0.995},
		{burst: 250, jain: 0.995, weights: true},
		{burst: 500, jain: 0.995, windowsAbove: 4},
		{burst: 100, jain: 0.98, windowsAbove: 4},  // hardly more tokens than tenants
		{burst: 1000, jain: 0.98, windowsAbove: 4}, // the burst alone is a tenth of what a window admits
	} {
		if windows <= tt.windowsAbove {
			continue
		}
		w := newWorld(t, 1000, tt.burst)
		if tt.weights {
			w.terms.Weights = map[string]int64{}
			for i := range 100 {
				w.terms.Weights[name(i)] = int64(1 + i%3)
			}
		}
		f := measure(t, w, rand.New(rand.NewPCG(1, 2)), 100, windows)
		t.Logf("burst %d, weights %v, %d windows of 10 s: Jain %.4f, use %.4f; %d of tenants within their share refused; %d came back, %d of them not at once, %v at most, %.1f tokens below their share in the first second at most; %d refused by the bucket",
			tt.burst, tt.weights, windows, f.jain, f.use, f.early, f.firsts, f.late, f.wait, f.lacking, w.behind)
		if f.jain < tt.jain || f.use < 0.99 || f.early > 0 || f.wait > 10*time.Millisecond || f.lacking > 10 || w.behind > 0 {
			t.Errorf("missed")
		}
		if f.firsts < 40 {
			t.Errorf("%d tenants came back", f.firsts)
		}
	}
}

// What a decision costs, refused or not, while so many tenants have taken tokens.
func BenchmarkTakeShare(b *testing.B) {
	for _, n := range []int{1, 100, 10_000} {
		b.Run(strconv.Itoa(n), func(b *testing.B) {
			w := newWorld(b, 1_000_000, 1_000_000)
			names := make([]string, n)
			for i := range names {
				names[i] = name(i)
				w.share(names[i], 1)
			}
			i := 0
			for b.Loop() {
				w.now += 500
				w.share(names[i%n], 1)
				i++
			}
			if s := w.share(names[0], 1); n > 1 && s.Tenants < n/10 {
				b.Fatalf("%d tenants", s.Tenants)
			}
		})
	}
}
