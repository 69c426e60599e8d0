package sim

import (
	"testing"
	"time"
)

// What the ready scenarios hold as a goal for a step, for demand below the limit, and
// for limits by the second, stint keeps: in the scenarios as they are, but for those that
// take long.
func TestGoalsOfScenarios(t *testing.T) {
	step := func(t *testing.T, r *Result) {
		within(t, "peak 1 s", r.Peak1, 0.9, 1.05)
		within(t, "excess", r.Excess60, 0, 0.05)
		within(t, "swing", r.Swing, 0, 0.05)
		within(t, "mean", r.Mean, 0.98, 1.0005)
		within(t, "t110", r.T110.Seconds(), 0, 0)
	}
	never := func(t *testing.T, r *Result) {
		within(t, "early", float64(r.Early.Requests), 0, 0)
		within(t, "refused below", float64(r.Below), 0, 0)
	}
	clocks := func(t *testing.T, r *Result) {
		within(t, "aligned second", r.Aligned1, 0, 1.02)
		within(t, "peak rate", r.Rate1, 0, 1.02)
	}
	for _, tt := range []struct {
		name   string
		length time.Duration // 0 = all of it
		keeps  func(*testing.T, *Result)
	}{
		{"e1-step-3", 0, step}, {"e1-step-100", 32 * time.Second, func(t *testing.T, r *Result) {
			within(t, "peak 1 s", r.Peak1, 0.9, 1.05)
			within(t, "t110", r.T110.Seconds(), 0, 0)
		}},
		{"e2-under-even", time.Minute, never}, {"e2-under-hot", time.Minute, never}, {"e2-under-zipf", time.Minute, never},
		{"e10-offset-100", 8 * time.Second, clocks}, {"e10-offset-250", 8 * time.Second, clocks},
		{"e10-bursts", 11 * time.Second, clocks}, {"e10-step-back", 12 * time.Second, clocks},
		{"e11-within-second", 8 * time.Second, func(t *testing.T, r *Result) {
			for _, part := range r.Tenths {
				within(t, "a tenth", part, 0.08, 0.12)
			}
		}},
		{"e12-zipf-96", 20 * time.Second, func(t *testing.T, r *Result) { within(t, "use", r.Use, 0.98, 1.01) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, err := ParseFile("../examples/scenarios/" + tt.name + ".yaml")
			if err != nil {
				t.Fatal(err)
			}
			if tt.length > 0 {
				f.Scenario.Duration = tt.length
			}
			systems, err := f.Choose(ownName)
			if err != nil {
				t.Fatal(err)
			}
			r := run(t, f.Scenario, systems[0])
			tt.keeps(t, r)
			within(t, "over", r.Over, 0, 0)
			within(t, "sum of shares", r.SharePeak, 0, 1)
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
