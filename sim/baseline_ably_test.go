package sim

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// ablyMasterAt makes a master alone, with the loop that keeps its time.
func ablyMasterAt(t *testing.T, a Ably, l Limit) (*loop, *ablyMaster) {
	w := newLoop(t, a, Setup{Limit: l, Instances: 2}, 1)
	return w, w.nodes[Coordinator].node.(*ablyMaster)
}

// What a master answers to reports, step by step: one instance that attempts 50 per
// second, then 400, at a limit of 100.
func TestAblyWalkThrough(t *testing.T) {
	type report struct {
		at             time.Duration
		cost           int64   // admitted plus refused, in the 2 s before
		attempts, ramp float64 // what both versions answer
	}
	reports := []report{
		{2 * time.Second, 100, 0, 0},
		{4 * time.Second, 100, 0, 0},
		{6 * time.Second, 100, 0, 0}, // 50, and 50 that it goes on with
		{8 * time.Second, 800, 0.5555555555555556, 0.625},
		{10 * time.Second, 800, 0.5555555555555556, 0.625},
		{12 * time.Second, 800, 0.6470588235294118, 0.9166666666666667},
		{14 * time.Second, 800, 0.6470588235294118, 0.9166666666666667},
		{18 * time.Second, 1600, 0.68, 1},
	}
	// The averages: (50+400)/2 = 225. At 12 s (50+400+400)/3 = 283.3, the third being
	// the 400 that go on. At 18 s (50+400+400+400)/4 = 312.5.
	for _, linear := range []bool{false, true} {
		w, m := ablyMasterAt(t, Ably{Linear: linear}, perSecond(100))
		last, number := time.Duration(0), 0
		for _, r := range reports {
			w.now = limit.Time(r.at)
			number++
			p := ablyReported{number: number, span: r.at - last, admitted: r.cost}
			p.totals.admitted = r.cost
			if m.known[0] != nil {
				p.totals.admitted += m.known[0].last.totals.admitted
			}
			m.Receive(0, p)
			m.Receive(0, p) // doubled: counts once
			want := r.attempts
			if linear {
				want = r.ramp
			}
			if got := m.factor(w.now); math.Abs(got-want) > 1e-12 {
				t.Errorf("linear %v, at %v: factor %v, want %v (average %v)", linear, r.at, got, want, m.average(w.now))
			}
			last = r.at
		}
	}
}

// The first version sees only what was admitted, the second all that was attempted.
func TestAblyCounts(t *testing.T) {
	for _, tt := range []struct {
		linear bool
		want   float64
	}{{false, 0.75}, {true, 0}} {
		w, m := ablyMasterAt(t, Ably{Linear: tt.linear}, perSecond(100))
		w.now = limit.Time(2 * time.Second)
		m.Receive(1, ablyReported{number: 1, span: 2 * time.Second, admitted: 200, refused: 600, totals: ablyTotals{200, 600}})
		if got := m.factor(w.now); got != tt.want {
			t.Errorf("linear %v: factor %v, want %v", tt.linear, got, tt.want)
		}
		m.Receive(1, "another system's message")
		m.SetLimit(Limit{})
		if got := m.factor(w.now); got != 1 {
			t.Errorf("linear %v: factor %v at a limit of 0, want 1", tt.linear, got)
		}
	}
}

// The sub-interval in progress counts while it is above the mean, and not below it.
func TestAblySubIntervalInProgress(t *testing.T) {
	for _, tt := range []struct {
		linear bool
		cost   int64 // from 6 s to 8 s, after 600 in the first 6 s
		want   float64
	}{
		{false, 1600, (100 + 800) / 2.0},
		{false, 100, 100},
		{false, 0, 100},
		{true, 1600, (100 + 800) / 2.0},
		{true, 100, (100 + 50) / 2.0},
		{true, 0, 50},
	} {
		w, m := ablyMasterAt(t, Ably{Linear: tt.linear}, perSecond(10))
		w.now = limit.Time(6 * time.Second)
		m.Receive(0, ablyReported{number: 1, span: 6 * time.Second, admitted: 600, totals: ablyTotals{admitted: 600}})
		w.now = limit.Time(8 * time.Second)
		m.Receive(0, ablyReported{number: 2, span: 2 * time.Second, admitted: tt.cost, totals: ablyTotals{admitted: 600 + tt.cost}})
		if got := m.average(w.now); math.Abs(got-tt.want) > 1e-9 {
			t.Errorf("linear %v, %d: average %v, want %v", tt.linear, tt.cost, got, tt.want)
		}
	}
}

// ablyStretch is a report that came: a rate from one time to another.
type ablyStretch struct {
	from, to limit.Time
	rate     float64
}

// ablyOracle is the average worked out from a list of all reports: each instance goes
// on after its last one for as long as a report's time. It returns false where a
// sub-interval has just begun, and there is nothing to divide by.
func ablyOracle(a Ably, heard map[Address][]ablyStretch, now limit.Time) (float64, bool) {
	sub := limit.Time(a.SubInterval)
	current := now / sub
	sum, count, rate := 0.0, 0.0, 0.0
	for i := max(current-limit.Time(a.SubIntervals)+1, 0); i <= current; i++ {
		begin, end, cost := i*sub, min((i+1)*sub, now), 0.0
		if begin == end {
			return 0, false
		}
		for _, list := range heard {
			for k, s := range list {
				if k == len(list)-1 {
					s.to = s.to.Add(a.Report)
				}
				cost += s.rate * max(0, modelSeconds(max(begin, s.from), min(end, s.to)))
			}
		}
		rate = cost / modelSeconds(begin, end)
		sum += rate
		count++
	}
	if mean := sum / count; a.Linear || rate >= mean {
		return mean, true
	}
	return (sum - rate) / (count - 1), true
}

// The average of random reports, some of them lost, is that of the list of those that
// came, each with what was lost before it.
func TestAblyAverageEqualsOracle(t *testing.T) {
	for seed := range seeding.Draw(t, 300) {
		r := rand.New(rand.NewPCG(seed, 11))
		a := Ably{Linear: seed%2 == 0, Report: time.Duration(1+r.IntN(3000)) * ms, SubInterval: time.Duration(1+r.IntN(3000)) * ms, SubIntervals: 1 + r.IntN(5)}
		w, m := ablyMasterAt(t, a, perSecond(100))
		heard := map[Address][]ablyStretch{}
		var sent [3]ablyReported // the last of each instance
		var came [3]limit.Time
		var lost [3]ablyTotals
		for range 60 {
			w.now += 1 + limit.Time(r.IntN(2_000_000_000))
			from := r.IntN(3)
			p := &sent[from]
			p.number++
			p.admitted, p.refused = r.Int64N(1000), r.Int64N(1000)
			p.totals.admitted += p.admitted
			p.totals.refused += p.refused
			p.span = time.Duration(w.now - came[from])
			lost[from].admitted += p.admitted
			lost[from].refused += p.refused
			// A first report that is lost is not made up for.
			if heard[Address(from)] != nil && r.IntN(3) == 0 {
				continue
			}
			m.Receive(Address(from), *p)
			cost := float64(lost[from].admitted)
			if !a.Linear {
				cost += float64(lost[from].refused)
			}
			heard[Address(from)] = append(heard[Address(from)], ablyStretch{came[from], w.now, cost / modelSeconds(came[from], w.now)})
			came[from], lost[from] = w.now, ablyTotals{}
			w.now += limit.Time(r.IntN(500_000_000))
			want, ok := ablyOracle(a, heard, w.now)
			if got := m.average(w.now); ok && math.Abs(got-want) > 1e-6*(1+want) {
				t.Fatalf("seed %d at %v: average %v, want %v", seed, time.Duration(w.now), got, want)
			}
		}
	}
}

// ablyStep is the step of the account: 20 instances, from half the limit to k times it.
func ablyStep(k float64, duration time.Duration) Scenario {
	const step = 60 * time.Second
	return Scenario{
		Name: fmt.Sprint("step to ", k), Limit: Limit{perSecond(400).Rate, 20}, Instances: 20, Duration: duration, Seed: 1,
		Network: Network{Delay: 10 * ms},
		Loads:   []Load{{Demand: []Step{{0, 200}, {step, 400 * k}}}},
		Measure: Measure{From: duration - 72*time.Second, Step: step}, // three periods of 24 s
	}
}

// The first version as its authors found it: above the limit for a lesser breach, and
// full oscillation from 30 times the limit on, with a period of 24 s.
func TestAblyFirstVersionOscillates(t *testing.T) {
	for _, tt := range unlessLong(3, []struct{ k, mean, swingLow, swingHigh float64 }{
		{3, 1.80, 0, 0.45}, {10, 2.50, 0, 1.1}, {30, 3.1, 26, 30.1}, {100, 8.6, 80, 100.1},
	}) {
		r := runBaseline(t, ablyStep(tt.k, 300*time.Second), Ably{Linear: true})
		t.Logf("k %v: mean %.3f swing %.2f peak %.1f", tt.k, r.Mean, r.Swing, r.Rate1)
		within(t, fmt.Sprintf("k %v: mean", tt.k), r.Mean, 0.95*tt.mean, 1.05*tt.mean)
		within(t, fmt.Sprintf("k %v: swing", tt.k), r.Swing, tt.swingLow, tt.swingHigh)
		if tt.k < 30 {
			continue
		}
		// How long from one outbreak to the next.
		var outbreaks []time.Duration
		calm := true
		for _, x := range r.Samples {
			if high := x.Admitted > 0.3*tt.k*400; high && calm && x.At > 65*time.Second {
				outbreaks = append(outbreaks, x.At)
				calm = false
			} else if x.Admitted < 1 {
				calm = true
			}
		}
		for i := 1; i < len(outbreaks); i++ {
			within(t, fmt.Sprintf("k %v: period", tt.k), (outbreaks[i] - outbreaks[i-1]).Seconds(), 23.5, 24.5)
		}
		if len(outbreaks) < 8 {
			t.Errorf("k %v: outbreaks at %v, want one every 24 s", tt.k, outbreaks)
		}
	}
}

// The second version lets the whole step through until the first reports, then four
// times, twice, 1.33 times and once the limit as the average fills.
func TestAblySecondVersionSettles(t *testing.T) {
	for _, tt := range unlessLong(3, []struct {
		k, excess float64
		together  bool
		limit     float64 // a small one, whose seconds vary at random, where there are many requests
	}{
		{3, 19.9, false, 2000}, {3, 19.9, true, 2000}, {30, 83, false, 400}, {10, 40, false, 2000}, {100, 224, false, 400}, {100, 224, true, 400},
	}) {
		s := ablyStep(tt.k, 140*time.Second)
		s.Limit, s.Measure.From = Limit{perSecond(int64(tt.limit)).Rate, int64(tt.limit) / 20}, 90*time.Second
		s.Loads = []Load{{Demand: []Step{{0, tt.limit / 2}, {60 * time.Second, tt.limit * tt.k}}}}
		r := runBaseline(t, s, Ably{Together: tt.together})
		what := fmt.Sprintf("k %v, together %v: ", tt.k, tt.together)
		t.Logf("%smean %.3f swing %.2f peak %.1f t110 %v excess %.1f", what, r.Mean, r.Swing, r.Rate1, r.T110, r.Excess60)
		within(t, what+"mean", r.Mean, 0.97, 1.03)
		within(t, what+"peak", r.Rate1, 0.87*tt.k, 1.001*tt.k)
		within(t, what+"excess", r.Excess60, 0.85*tt.excess, 1.15*tt.excess)
		if tt.limit >= 2000 {
			within(t, what+"settled", r.T110.Seconds(), 17, 21)
		}
	}
}

// An instance reports only when something changed, at most once per period, and a
// change after a while of silence at once.
func TestAblyReportsOnlyChanges(t *testing.T) {
	w := newLoop(t, Ably{Together: true}, Setup{Limit: perSecond(1000), Instances: 1, RoundTrip: 20 * ms}, 1)
	w.demand = func(_ int, now time.Duration) float64 {
		if now > 10*time.Second && now < 20*time.Second || now > 40*time.Second && now <= 40*time.Second+ms {
			return 1000
		}
		return 0
	}
	for _, tt := range []struct {
		until   time.Duration
		reports int
	}{
		{10 * time.Second, 0},
		{10*time.Second + 5*ms, 1}, // at once
		{11 * time.Second, 1},
		{20*time.Second + 5*ms, 6},
		{40 * time.Second, 6},
		{40*time.Second + 5*ms, 7},
		{60 * time.Second, 7},
	} {
		w.run(tt.until)
		if got := w.bytes[0] / ablyBytes; got != tt.reports {
			t.Errorf("%d reports until %v, want %d", got, tt.until, tt.reports)
		}
	}
	if w.bytes[0] != w.bytes[Coordinator] {
		t.Errorf("%d bytes of reports, %d of answers", w.bytes[0], w.bytes[Coordinator])
	}
}
