package sim

import (
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// With -long the scenarios last as long as their experiments say, and those with the most
// requests or instances are played: minutes of real time.
var long = flag.Bool("long", false, "play the acceptance scenarios at full length, and the largest")

// unlessLong returns all with -long, else the first few.
func unlessLong[T any](few int, all []T) []T {
	if *long {
		return all
	}
	return all[:few]
}

// atLength returns full with -long, else short.
func atLength(short, full time.Duration) time.Duration {
	if *long {
		return full
	}
	return short
}

// bounds are what a run of our own system has to keep. A field of 0 asks for nothing,
// but over, shares above the limit and shares that are no number are never allowed.
type bounds struct {
	use, useWindows, lent, jain float64 // at least
	t95                         time.Duration
	kbps                        float64 // at most
	calm                        bool    // nothing that one central limiter admits may be refused
}

// accept plays s with our system and holds the result against b.
func accept(t *testing.T, s Scenario, b bounds) *Result {
	t.Helper()
	r := run(t, s, &Ours{})
	t.Logf("%s: use %.4f, in windows %.4f, lent %.4f, t95 %v, t95 fine %v, over %g, peak %.4f, shares %.6f, early %d, below %d, refused %d, Jain %.5f, %.2f Kbps, %d messages",
		s.Name, r.Use, r.UseWindows, r.Lent, shown(r.T95), shown(r.T95Fine), r.Over, r.Peak1, r.SharePeak, r.Early.Requests, r.Below, r.Refused.Requests, r.Jain, r.Kbps, r.Messages)
	if r.Over > 0 || r.SharePeak > 1 || r.BadShares > 0 {
		t.Errorf("%s: %g tokens over, shares add up to %v of the limit, %d are no number", s.Name, r.Over, r.SharePeak, r.BadShares)
	}
	atLeast := func(what string, got, want float64) {
		if got < want {
			t.Errorf("%s: %s is %.4f, want at least %v", s.Name, what, got, want)
		}
	}
	atLeast("use", r.Use, b.use)
	atLeast("use in windows", r.UseWindows, b.useWindows)
	atLeast("lent", r.Lent, b.lent)
	atLeast("Jain", r.Jain, b.jain)
	if b.t95 > 0 && r.T95 > b.t95 {
		t.Errorf("%s: 95 %% is used after %v, want at most %v", s.Name, shown(r.T95), b.t95)
	}
	if b.kbps > 0 && r.Kbps > b.kbps {
		t.Errorf("%s: %.2f Kbps per instance, want at most %v", s.Name, r.Kbps, b.kbps)
	}
	if b.calm && r.Early.Requests+r.Below > 0 {
		t.Errorf("%s: %d requests were refused early, and %d tokens below the limit", s.Name, r.Early.Requests, r.Below)
	}
	return r
}

func shown(d time.Duration) string {
	if d == limit.Never {
		return "never"
	}
	return d.String()
}

// E4: all load moves to one instance.
func TestOursOneHot(t *testing.T) {
	for _, n := range []int{2, 10, 96} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			at := atLength(5*time.Second, 20*time.Second)
			accept(t, Scenario{
				Name: fmt.Sprintf("one hot of %d", n), Limit: limitOf(1000, 100), Instances: n, Duration: atLength(15*time.Second, time.Minute),
				Network: Network{Delay: 50 * ms}, Measure: Measure{From: at, Step: at},
				Loads: []Load{{Demand: []Step{{0, 2000}, {at, 0}}}, {Demand: []Step{{at, 2000}}, Split: Split{Kind: OnOne}}},
			}, bounds{use: 0.98, t95: 300 * ms})
		})
	}
}

// E5: the hot spot moves. Each second counts by itself, so that a burst saved in one
// does not pay for a slow share in the next.
func TestOursHotSpotMoves(t *testing.T) {
	for _, c := range []struct {
		every time.Duration
		use   float64
	}{{time.Minute, 0.99}, {20 * time.Second, 0.98}, {5 * time.Second, 0.95}, {time.Second, 0.85}} {
		t.Run(c.every.String(), func(t *testing.T) {
			t.Parallel()
			accept(t, Scenario{
				Name: "hot spot moves every " + c.every.String(), Limit: limitOf(1000, 100), Instances: 10,
				Duration: max(atLength(30*time.Second, 10*time.Minute), 2*c.every+10*time.Second),
				Network:  Network{Delay: 50 * ms}, Measure: Measure{From: time.Second},
				Loads: []Load{{Demand: steady(2000), Split: Split{Kind: OnOne, Move: c.every}}},
			}, bounds{use: c.use, useWindows: c.use})
		})
	}
}

// smallLimit is count tokens per period, with the burst that the product gives: the
// count of one period.
func smallLimit(count int64, period time.Duration) Limit {
	return Limit{limit.Rate{Count: count, Period: period}, count}
}

// E6: limits below the number of instances.
func TestOursSmallLimits(t *testing.T) {
	for _, n := range []int{3, 10, 96} {
		for _, l := range []struct {
			name  string
			limit Limit
		}{
			{"0", smallLimit(0, time.Second)},
			{"0.5", smallLimit(1, 2*time.Second)},
			{"1", smallLimit(1, time.Second)},
			{"2", smallLimit(2, time.Second)},
			{"N-1", smallLimit(int64(n-1), time.Second)},
		} {
			rate := l.limit.PerSecond()
			short := 10 * time.Second
			if rate > 0 { // long enough for a hundred tokens
				short = min(max(short, time.Duration(100/rate*float64(time.Second))), time.Minute)
			}
			s := Scenario{
				Limit: l.limit, Instances: n, Duration: atLength(short, 10*time.Minute),
				Network: Network{Delay: 50 * ms}, Measure: Measure{From: 2 * time.Second},
			}
			t.Run(fmt.Sprintf("%s of %d", l.name, n), func(t *testing.T) {
				t.Parallel()
				hot := s
				hot.Name = fmt.Sprintf("%s among %d, one hot", l.name, n)
				hot.Loads = []Load{{Demand: steady(2*rate + 10), Split: Split{Kind: OnOne}}}
				all := s
				all.Name = fmt.Sprintf("%s among %d, all hot", l.name, n)
				all.Loads = []Load{{Demand: steady(2*rate + float64(n))}}
				if rate == 0 {
					if accept(t, hot, bounds{}).Admitted.Requests+accept(t, all, bounds{}).Admitted.Requests > 0 {
						t.Error("something was admitted though the limit is 0")
					}
					return
				}
				accept(t, hot, bounds{use: 0.95})
				// Fewer tokens than instances, and nobody waits: a token is lent to
				// one who was refused, and fills nothing until the next request
				// there. That halves the use at worst, but nothing stands still.
				accept(t, all, bounds{use: 0.45})
				below := s
				below.Name = fmt.Sprintf("%s among %d, below the limit", l.name, n)
				below.Loads = []Load{{Demand: steady(0.8 * rate), Wait: 250 * ms}}
				accept(t, below, bounds{use: 0.95, calm: true})
			})
		}
	}
}

// E7: a rolling restart from an old version to this one, with the limit changed amid it.
func TestOursRollingRestart(t *testing.T) {
	r := accept(t, Scenario{
		Name: "rolling restart", Limit: limitOf(1000, 100), Changes: []Change{{30 * time.Second, limitOf(5000, 500)}},
		Instances: 10, Old: []bool{true, true, true, true, true, false, false, false, false, false}, Failover: true,
		Duration: atLength(50*time.Second, 80*time.Second), Network: Network{Delay: 50 * ms},
		Rolling: []Rolling{{At: 10 * time.Second, Every: 5 * time.Second, Down: 2 * time.Second, Upgrade: true}},
		Loads:   []Load{{Demand: steady(6000)}},
		Measure: Measure{From: 5 * time.Second, Step: 30 * time.Second},
	}, bounds{use: 0.95, t95: 500 * ms})
	if r.Peak1 > 1.02 {
		t.Errorf("the peak is %v, want at most 1.02", r.Peak1)
	}
}

// E14: two sites with 7 and 3 clients.
func TestOursTwoSites(t *testing.T) {
	accept(t, Scenario{
		Name: "two sites", Limit: limitOf(1000, 100), Instances: 2, Weights: []uint32{7, 3}, Duration: atLength(20*time.Second, time.Minute),
		Network: Network{Delay: 20 * ms}, Measure: Measure{From: time.Second},
		Loads: []Load{{Demand: steady(2000), Arrivals: Poisson, Split: Split{Kind: Shares, Shares: []float64{7, 3}}}},
	}, bounds{use: 0.99, jain: 0.995})
}

// E15: hundreds of limiters over a network that loses messages. Where all ask alike,
// the error is at most 1 %, and 5 % where a fifth is lost. Where parts follow Zipf's law,
// most limiters get all they ask for with a few tokens of depth, and chance makes some
// of these overflow: the shares add up, the use does not.
func TestOursManyLimiters(t *testing.T) {
	type course struct {
		loss  float64
		split SplitKind
		want  bounds
	}
	play := func(n int, at, d time.Duration, c course) {
		name := fmt.Sprintf("%d limiters, loss %v, %s, %v", n, c.loss, [...]string{Equal: "equal", Zipf: "zipf"}[c.split], d)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rate := 100 * int64(n)
			accept(t, Scenario{
				Name: name, Limit: limitOf(rate, rate/10), Instances: n, Duration: d, Network: Network{Delay: 50 * ms, Loss: c.loss},
				Loads: []Load{{Demand: []Step{{0, float64(rate) / 2}, {at, 2 * float64(rate)}}, Arrivals: Poisson, Split: Split{Kind: c.split}}},
				// Convergence takes half a second, and is measured by t95.
				Measure: Measure{From: at + time.Second, Step: at},
			}, c.want)
		})
	}
	const at, d = 5 * time.Second, 25 * time.Second
	if !*long { // the traffic of an instance does not depend on how many there are
		play(120, at, d, course{0, Equal, bounds{use: 0.99, t95: 500 * ms, kbps: 10}})
	}
	for _, n := range unlessLong(1, []int{490, 1000}) {
		for _, c := range []course{
			{0, Equal, bounds{use: 0.99, t95: 500 * ms, kbps: 10}},
			{0.2, Equal, bounds{use: 0.95, t95: 500 * ms, kbps: 10}},
			{0, Zipf, bounds{use: 0.9, lent: 0.98}},
			{0.2, Zipf, bounds{use: 0.9, lent: 0.97}},
		} {
			if *long {
				play(n, at, d, c)
				continue
			}
			c.want.kbps = 0 // to begin costs most of that
			play(n, 2*time.Second, 6*time.Second, c)
		}
	}
}

// E18: mishaps of demand, of instances and of the coordinator.
func TestOursMishaps(t *testing.T) {
	var stops []Stop
	d := atLength(5*time.Minute, time.Hour)
	for at := atLength(2*time.Minute, 5*time.Minute); at < d; at += 10 * time.Minute {
		stops = append(stops, Stop{At: at, For: 2 * time.Second, Node: Coordinator})
	}
	accept(t, Scenario{
		Name: "mishaps", Limit: limitOf(500, 50), Instances: 45, Duration: d, Seed: 1,
		Network: Network{Delay: 50 * ms, Jitter: 10 * ms, InOrder: true}, Stops: stops,
		Rolling: []Rolling{{At: 30 * time.Second, Every: time.Minute, Down: 5 * time.Second, Crash: true}},
		Loads:   []Load{{Demand: steady(750), Arrivals: Poisson, Mishaps: Mishaps{Every: 5 * time.Second, Length: 30 * time.Second, Spike: 5, Troughs: 0.5}}},
		Measure: Measure{From: 10 * time.Second},
	}, bounds{lent: 0.99})
}

// Demand of 0.999 of the limit: nothing is refused after the first round trips.
func TestOursPredictability(t *testing.T) {
	for _, c := range []struct {
		name  string
		split Split
	}{{"even", Split{}}, {"zipf", Split{Kind: Zipf}}, {"one", Split{Kind: OnOne}}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			accept(t, Scenario{
				Name: "predictability, " + c.name, Limit: limitOf(1000, 1000), Instances: 10, Duration: atLength(3*time.Minute, time.Hour),
				Network: Network{Delay: 50 * ms}, Loads: []Load{{Demand: steady(999), Split: c.split}},
				Measure: Measure{From: 300 * ms},
			}, bounds{use: 0.9999, calm: true})
		})
	}
}

// A fleet that nobody asks renews its leases once in Refresh, and says nothing else.
func TestOursIdle(t *testing.T) {
	s := Scenario{
		Name: "idle", Limit: limitOf(1000, 100), Instances: 20, Duration: 30 * time.Second, Network: Network{Delay: 50 * ms},
		Loads: []Load{{Demand: []Step{{0, 500}, {10 * time.Second, 0}}}},
	}
	short := accept(t, s, bounds{})
	s.Duration = 90 * time.Second
	// The first 30 s of both are the same.
	more := accept(t, s, bounds{}).Messages - short.Messages
	each := float64(more) / 60 / float64(s.Instances)
	// A renewal comes after 3/4 to 1 of Refresh, and is answered.
	if most := 2 / 0.75 / lease.DefaultRefresh.Seconds(); each > most {
		t.Errorf("%.2f messages per instance and second, want at most %.2f", each, most)
	}
}
