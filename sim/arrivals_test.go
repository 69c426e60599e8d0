package sim

import (
	"math"
	"slices"
	"testing"
	"time"
)

// requests plays loads on a fleet that admits all and returns when requests came to
// each instance.
func requests(t *testing.T, s Scenario) ([][]time.Duration, *Result) {
	t.Helper()
	got := make([][]time.Duration, s.Instances)
	p := &probe{quiet: true, take: func(n *probeNode, _ int64) bool {
		got[n.address] = append(got[n.address], time.Duration(n.env.(*env).engine.now))
		return true
	}}
	s.Limit = limitOf(1000, 1000)
	r := run(t, s, p)
	return got, r
}

func TestEvenArrivalsTakeTurns(t *testing.T) {
	load := Load{Demand: []Step{{100 * ms, 40}, {300 * ms, 400}, {350 * ms, 0}, {380 * ms, 20}}}
	got, _ := requests(t, Scenario{Instances: 2, Duration: 420 * ms, Loads: []Load{load}})
	// 20 a second each: one after half a request, the other after a whole one; at
	// 300 ms each has its part of the next one behind it, at 350 ms too.
	want := [][]time.Duration{
		{125 * ms, 175 * ms, 225 * ms, 275 * ms, 302500 * time.Microsecond},
		{150 * ms, 200 * ms, 250 * ms, 300 * ms, 305 * ms},
	}
	for i := range want {
		for k := time.Duration(1); want[i][4]+k*5*ms <= 350*ms; k++ {
			want[i] = append(want[i], want[i][4]+k*5*ms)
		}
		// A step goes first among the events of its moment.
		want[i] = slices.DeleteFunc(want[i], func(at time.Duration) bool { return at == 350*ms })
	}
	if !slices.Equal(got[0], want[0]) {
		t.Errorf("instance 0:\n got %v\nwant %v", got[0], want[0])
	}
	if !slices.Equal(got[1][:12], want[1][:12]) {
		t.Errorf("instance 1:\n got %v\nwant %v", got[1], want[1])
	}
	load = Load{Demand: steady(20), Arrivals: Bursts, Size: 3, Aligned: true, Cost: 2}
	got, r := requests(t, Scenario{Instances: 2, Duration: time.Second, Loads: []Load{load}})
	at := []time.Duration{600 * ms, 600 * ms, 600 * ms}
	if !slices.Equal(got[0], at) || !slices.Equal(got[1], at) || r.Admitted != (Count{6, 12}) {
		t.Errorf("bursts: %v, %+v", got, r.Admitted)
	}
}

// Demand that is met for an hour comes to the request, without drift.
func TestEvenArrivalsDoNotDrift(t *testing.T) {
	s := Scenario{Instances: 3, Duration: time.Hour, Loads: []Load{{Demand: steady(99.9)}}}
	got, r := requests(t, s)
	if want := int64(359_640); r.Offered.Requests < want-3 || r.Offered.Requests > want {
		t.Errorf("%d requests in an hour, want %d", r.Offered.Requests, want)
	}
	for i := range got {
		for k := range got[i] {
			ideal := (float64(k) + float64(i+1)/3) / 33.3 * 1e9
			if off := float64(got[i][k]) - ideal; off < -1 || off > 2 {
				t.Fatalf("request %d of instance %d is %v ns off", k, i, off)
			}
		}
	}
}

func TestPoissonArrivals(t *testing.T) {
	s := Scenario{Instances: 2, Duration: 200 * time.Second, Seed: 1, Loads: []Load{{Demand: steady(200), Arrivals: Poisson}}}
	got, _ := requests(t, s)
	for i, times := range got {
		n := len(times)
		if math.Abs(float64(n)-20_000) > 5*math.Sqrt(20_000) {
			t.Errorf("instance %d: %d requests, want about 20,000", i, n)
		}
		// Gaps are exponential: mean and standard deviation are the same, and the part
		// above the mean is 1/e.
		sum, squares, long := 0.0, 0.0, 0
		for k := 1; k < n; k++ {
			gap := (times[k] - times[k-1]).Seconds()
			sum += gap
			squares += gap * gap
			if gap > 0.01 {
				long++
			}
		}
		mean := sum / float64(n-1)
		deviation := math.Sqrt(squares/float64(n-1) - mean*mean)
		if math.Abs(deviation/mean-1) > 0.04 || !likely(long, n-1, 1/math.E) {
			t.Errorf("instance %d: mean %v, deviation %v, %d of %d above 10 ms", i, mean, deviation, long, n)
		}
	}
	if slices.Equal(got[0][:10], got[1][:10]) {
		t.Error("two instances have the same arrivals")
	}
}

// counts returns how many requests each instance got in each second.
func counts(times [][]time.Duration, seconds int) [][]int {
	per := make([][]int, len(times))
	for i := range times {
		per[i] = make([]int, seconds)
		for _, at := range times[i] {
			per[i][at/time.Second]++
		}
	}
	return per
}

func TestSplits(t *testing.T) {
	at := func(s Split, instances []int) [][]int {
		t.Helper()
		n := 4
		got, _ := requests(t, Scenario{
			Instances: n, Duration: 4 * time.Second,
			Loads: []Load{{Demand: steady(1000), Split: s, Instances: instances}},
		})
		return counts(got, 4)
	}
	near := func(name string, got [][]int, want [4][4]int) {
		t.Helper()
		for i := range want {
			for k := range want[i] {
				if d := got[i][k] - want[i][k]; d < -1 || d > 1 {
					t.Errorf("%s: instance %d got %d in second %d, want %d", name, i, got[i][k], k, want[i][k])
				}
			}
		}
	}
	near("one that moves", at(Split{Kind: OnOne, Hot: 1, Move: time.Second}, nil), [4][4]int{{0, 0, 0, 1000}, {1000, 0, 0, 0}, {0, 1000, 0, 0}, {0, 0, 1000, 0}})
	near("zipf", at(Split{Kind: Zipf}, nil), [4][4]int{{480, 480, 480, 480}, {240, 240, 240, 240}, {160, 160, 160, 160}, {120, 120, 120, 120}})
	near("zipf 2", at(Split{Kind: Zipf, Exponent: 2}, []int{3, 1}), [4][4]int{{}, {200, 200, 200, 200}, {}, {800, 800, 800, 800}})
	near("shares", at(Split{Kind: Shares, Shares: []float64{7, 3, 0, 0}, Move: 2 * time.Second}, nil), [4][4]int{{700, 700, 0, 0}, {300, 300, 700, 700}, {0, 0, 300, 300}, {}})
	shuffled := at(Split{Kind: OnOne, Move: time.Second, Shuffle: true}, nil)
	for k := range 4 {
		sum := shuffled[0][k] + shuffled[1][k] + shuffled[2][k] + shuffled[3][k]
		if sum < 999 || sum > 1001 {
			t.Errorf("shuffled: %d in second %d, want 1000", sum, k)
		}
	}
}

func TestMishaps(t *testing.T) {
	s := Scenario{
		Instances: 10, Duration: 1000 * time.Second, Seed: 5,
		Loads: []Load{{Demand: steady(100), Mishaps: Mishaps{Every: 2 * time.Second, Length: 5 * time.Second, Spike: 4, Troughs: 0.5}}},
	}
	got, r := requests(t, s)
	silent, busy, all := 0, 0, 0
	for _, per := range counts(got, 1000) {
		for _, n := range per {
			all++
			if n == 0 {
				silent++
			}
			if n >= 39 {
				busy++
			}
		}
	}
	// A mishap begins each 2 s, lasts 5 s and befalls one of ten: some 2 of 10 have one.
	if silent < all/20 || silent > all/8 || busy < all/20 || busy > all/8 {
		t.Errorf("of %d instance-seconds %d are silent and %d busy", all, silent, busy)
	}
	if again, _ := requests(t, s); !slices.Equal(again[3], got[3]) {
		t.Error("mishaps differ with the same seed")
	}
	if r.Offered.Requests < 100_000 || r.Offered.Requests > 150_000 {
		t.Errorf("%d requests", r.Offered.Requests)
	}
}
