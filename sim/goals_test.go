package sim

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/lease"
)

// What the ready scenarios hold as a goal for a step, for demand below the limit, and
// for limits by the second, leases and split limits keep: in the scenarios as they are, but
// for those that take long.
func TestGoalsOfScenarios(t *testing.T) {
	step := func(t *testing.T, r *Result) {
		within(t, "peak 1 s", r.Peak1, 0.9, 1.05)
		within(t, "excess", r.Excess60, 0, 0.05)
		within(t, "swing", r.Swing, 0, 0.05)
		within(t, "mean", r.Mean, 0.98, 1.002) // the burst of 0.05 s is in it
		within(t, "steady", r.Steady, 0.98, 1.0005)
		within(t, "t110", r.T110.Seconds(), 0, 0)
	}
	start := func(t *testing.T, r *Result) {
		within(t, "peak 1 s", r.Peak1, 0.9, 1.05)
		within(t, "t110", r.T110.Seconds(), 0, 0)
	}
	never := func(t *testing.T, r *Result) {
		within(t, "refused", float64(r.Early.Requests+r.Below+r.Refused.Tokens), 0, 0)
	}
	clocks := func(t *testing.T, r *Result) {
		within(t, "aligned second", r.Aligned1, 0, 1.02)
		within(t, "peak rate", r.Rate1, 0, 1.02)
	}
	tenths := func(t *testing.T, r *Result) {
		for _, part := range r.Tenths {
			within(t, "a tenth", part, 0.08, 0.12)
		}
	}
	whole := func(t *testing.T, r *Result) {
		within(t, "mean", r.Mean, 0.995, 1.0005)
		within(t, "peak 1 s", r.Peak1, 0.95, 1.01)
	}
	for _, tt := range []struct {
		name   string
		system string
		length time.Duration // 0 = all of it
		keeps  func(*testing.T, *Result)
	}{
		{"e1-step-3", ownName, 62 * time.Second, step},
		{"e1-step-100", ownName, 31 * time.Second, start},
		{"e2-under-even", ownName, time.Minute, never},
		{"e2-under-hot", ownName, time.Minute, never},
		{"e2-under-zipf", ownName, time.Minute, never},
		{"e2-under-even", "suppressed", time.Minute, never},
		{"e2-under-hot", "suppressed", time.Minute, never},
		{"e2-under-zipf", "suppressed", time.Minute, never},
		{"e9-10-of-96", "split", 0, func(t *testing.T, r *Result) {
			within(t, "mean", r.Mean, 0.995, 1.0005)
			within(t, "most in a second", float64(r.Most1), 10, 11)
		}},
		{"e9-100-of-96", "split", time.Minute, whole},
		{"e9-1000-of-96", "split", 20 * time.Second, whole},
		{"e9-100000-of-96", "split", 4 * time.Second, whole},
		{"e10-offset-100", ownName, 7 * time.Second, clocks},
		{"e10-offset-250", ownName, 7 * time.Second, clocks},
		{"e10-bursts", ownName, 11 * time.Second, clocks},
		{"e10-step-back", ownName, 12 * time.Second, clocks},
		{"e10-offset-250", "split", 7 * time.Second, clocks},
		{"e10-bursts", "split", 11 * time.Second, clocks},
		{"e10-step-back", "split", 12 * time.Second, clocks},
		{"e11-within-second", ownName, 7 * time.Second, tenths},
		{"e11-within-second", "split", 7 * time.Second, tenths},
		{"e11-within-second", "split-pid", 9 * time.Second, tenths},
		{"e12-zipf-96", ownName, 20 * time.Second, func(t *testing.T, r *Result) { within(t, "use", r.Use, 0.98, 1.01) }},
	} {
		t.Run(tt.name+", "+tt.system, func(t *testing.T) {
			s, system := scenarioOf(t, tt.name, tt.system)
			if tt.length > 0 {
				s.Duration = tt.length
			}
			r := run(t, s, system)
			tt.keeps(t, r)
			neverOver(t, tt.system, r)
		})
	}
}

// neverOver holds a run to what its system promises of the whole limit.
func neverOver(t *testing.T, system string, r *Result) {
	t.Helper()
	switch system {
	case "suppressed": // each may use the whole limit
	case "split-pid": // it is over from one window to the next
	case "split":
		within(t, "over", r.Over, 0, 1) // burst + rate x T, rounded up
		within(t, "sum of shares", r.SharePeak, 0, 1)
	default:
		within(t, "over", r.Over, 0, 0)
		within(t, "sum of shares", r.SharePeak, 0, 1)
	}
}

// scenarioOf returns a ready scenario and one of its systems.
func scenarioOf(t *testing.T, name, system string) (Scenario, System) {
	t.Helper()
	f, err := ParseFile("../examples/scenarios/" + name + ".yaml")
	if err != nil {
		t.Fatal(err)
	}
	systems, err := f.Choose(system)
	if err != nil {
		t.Fatal(err)
	}
	return f.Scenario, systems[0]
}

// promised is the most that limits that are suppressed admit above their rate after a step
// to k times it, in tokens: docs/reference/suppression.md.
func promised(s *Scenario, k float64) float64 {
	l, b, n := s.Limit.PerSecond(), float64(s.Limit.Burst), float64(s.Instances)
	report := lease.DefaultReport.Seconds()
	t := (b/l+report+0.020)/(k-1) + report + 2*s.Network.Delay.Seconds()
	return min(k*l*t, n*(b+l*t)) - l*t + 2*report*l + n
}

// A step to k times the limit is suppressed in time, what was admitted before that is at
// most what is promised, and then it is steady: the scenarios of E1, E16 and E17, with the
// step earlier and for less long.
func TestSuppressedSteps(t *testing.T) {
	for _, tt := range []struct {
		name     string
		arrivals Arrivals
		length   time.Duration // after the step at 3 s
		t110     float64
	}{
		{"e1-step-3", Even, 10 * time.Second, 0.3},
		{"e1-step-3", Poisson, 10 * time.Second, 0.3},
		{"e1-step-5", Even, 7 * time.Second, 0.3},
		{"e1-step-10", Even, 7 * time.Second, 0.3},
		{"e1-step-10", Poisson, 7 * time.Second, 0.3},
		{"e1-step-30", Even, 1200 * ms, 0.3},
		{"e1-step-100", Even, 1200 * ms, 0.3},
		{"e16-random-drop-100", Poisson, 1200 * ms, 0.3},
		{"e17-batches-3", Even, 10 * time.Second, 1},
		{"e17-batches-30", Even, 1200 * ms, 0.4},
	} {
		t.Run(fmt.Sprint(tt.name, ", ", tt.arrivals), func(t *testing.T) {
			s, system := scenarioOf(t, tt.name, "suppressed")
			from := 3 * time.Second
			s.Duration = from + tt.length
			s.Measure.From, s.Measure.Step, s.Loads[0].Arrivals = from, from, tt.arrivals
			demand := slices.Clone(s.Loads[0].Demand)
			demand[1].At = from
			s.Loads[0].Demand = demand
			r, l := run(t, s, system), s.Limit.PerSecond()
			most := promised(&s, demand[1].Rate/l)
			t.Logf("t110 %v, %.0f above the limit, promised are %.0f, swing %.4f, steady %.4f, most %.3f", r.T110, r.Excess60*l, most, r.Swing, r.Steady, r.Rate1)
			within(t, "t110", r.T110.Seconds(), 0, tt.t110)
			within(t, "above the limit", r.Excess60*l, 0, most)
			within(t, "early", float64(r.Early.Requests+r.Below), 0, 0)
			if tt.length > 5*time.Second { // the last half is after the step
				within(t, "swing", r.Swing, 0, 0.05)
				within(t, "steady", r.Steady, 0.98, 1.001)
			}
		})
	}
}

// Wrong clocks, and clocks that are set, change nothing of what stint does: not one
// decision, not one message.
func TestClocksChangeNothing(t *testing.T) {
	for _, name := range []string{"e10-offset-250", "e10-bursts", "e10-step-back"} {
		f, err := ParseFile("../examples/scenarios/" + name + ".yaml")
		if err != nil {
			t.Fatal(err)
		}
		f.Scenario.Duration = 11 * time.Second
		wrong := f.Scenario
		wrong.CoordinatorClock = -time.Minute
		wrong.ClockSteps = append(wrong.ClockSteps, ClockStep{7 * time.Second, Coordinator, time.Hour}, ClockStep{8 * time.Second, 5, -time.Hour})
		right := f.Scenario
		right.Clocks, right.ClockSteps = nil, nil
		if a, b := run(t, wrong, &Ours{}), run(t, right, &Ours{}); a.Hash != b.Hash {
			t.Errorf("%s: admitted %v with wrong clocks, %v with right ones", name, a.Admitted, b.Admitted)
		}
		if a, b := run(t, wrong, Line{}), run(t, right, Line{}); a.Hash == b.Hash {
			t.Errorf("%s: clocks change nothing for a limiter by the clock: the test shows nothing", name)
		}
	}
}
