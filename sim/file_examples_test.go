package sim

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// The scenarios in examples are good, say what they are about, and can be played: here
// only their first seconds, with a few instances of a large fleet.
func TestExampleScenarios(t *testing.T) {
	paths, err := filepath.Glob("../examples/scenarios/*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"e1-step-100", "e2-under-zipf", "e3-costs", "e9-2000000-of-96", "e10-offset-100", "e10-bursts", "e10-step-back",
		"e11-within-second", "e12-zipf-96", "e16-random-drop-100", "e17-batches-100",
		"e4-one-hot-96", "e5-moving-1s", "e6-small-limits-half-of-3", "e7-rolling-restart", "e14-two-sites", "e15-1000-limiters",
		"e18-mishaps", "e35-allow-0.9-zipf-short", "e35-take-0.999-even-long", "predictability-zipf", "coordinator-crash", "partition", "pause",
	} {
		if !slices.Contains(paths, filepath.Join("..", "examples", "scenarios", want+".yaml")) {
			t.Errorf("there is no %s.yaml", want)
		}
	}
	for _, path := range paths {
		if strings.HasPrefix(filepath.Base(path), "overload-") {
			continue // package overload plays them
		}
		t.Run(strings.TrimSuffix(filepath.Base(path), ".yaml"), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			about, _, _ := strings.Cut(string(text), "\nname:")
			for _, want := range []string{"# Look at:", "# Goal"} {
				if !strings.Contains(about, want) {
					t.Errorf("the comment has no %q", want)
				}
			}
			f, err := ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			systems, err := f.Choose()
			if err != nil {
				t.Fatal(err)
			}
			for _, system := range systems {
				r := run(t, shortened(f.Scenario), system)
				if r.Offered.Requests == 0 || r.BadShares > 0 {
					t.Errorf("%s: %d requests, %d bad shares", system.Name(), r.Offered.Requests, r.BadShares)
				}
				if system.Name() == ownName && (r.Over > 0 || r.SharePeak > 1) {
					t.Errorf("over by %v tokens, sum of shares %v", r.Over, r.SharePeak)
				}
			}
		})
	}
}

// The page about the command shows a file that is good, and speaks of every key.
func TestSimulatePage(t *testing.T) {
	text, err := os.ReadFile("../docs/reference/simulate.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "```yaml\n")
	if !ok {
		t.Fatal("the page shows no file")
	}
	src, _, _ := strings.Cut(rest, "```")
	if _, err := ParseScenario([]byte(src), "simulate.md"); err != nil {
		t.Error(err)
	}
	for _, word := range slices.Concat(eventKinds, ownKeys, SystemNames(), FormatNames()) {
		if !strings.Contains(string(text), "`"+word) {
			t.Errorf("the page lacks %s", word)
		}
	}
}

// shortened returns the first seconds of a scenario, or less than that of one with very
// many requests or instances. Those of a large fleet that are left out take the load with them.
func shortened(s Scenario) Scenario {
	const requests, instances = 30_000, 20 // instances for all of three seconds
	rate := 0.0
	for _, l := range s.Loads {
		rate += l.Demand[0].Rate / float64(max(l.Cost, 1))
	}
	s.Duration = min(s.Duration, 3*time.Second, time.Duration(requests/max(rate, 1)*float64(time.Second)))
	s.Measure.From, s.Measure.Step = 0, 0
	if s.Instances > instances {
		s.Duration = min(s.Duration, max(3*time.Second*instances/time.Duration(s.Instances), 500*ms))
	}
	if s.Instances > 100 {
		s.Instances = 100
		s.Loads = slices.Clone(s.Loads)
		for i := range s.Loads {
			s.Loads[i].Demand = []Step{{Rate: 2000}}
		}
		s.Limit = limitOf(1000, 100)
	}
	return s
}
