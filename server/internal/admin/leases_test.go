package admin

import (
	"iter"
	"slices"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/tally"
)

// Leased limits are shown by limit, and nothing where there is none.
func TestMetricsOfLeases(t *testing.T) {
	f := Figures{}
	c := NewCollector(func() iter.Seq[tally.Tally] { return func(func(tally.Tally) bool) {} }, func() Figures { return f })
	for _, line := range scrape(t, c) {
		if strings.HasPrefix(line, "stint_lease") {
			t.Errorf("no limit is leased: %s", line)
		}
	}
	f.Leases = &Leases{
		Instances: 3, Recovering: true, Refused: map[string]uint64{"bad_key": 2},
		Limits: []LeasedLimit{{Limit: "a", Capacity: 100, Lent: 90.5, Wanted: 300, Free: 9.5, Saturated: true, SaturatedSeconds: 12.5}},
	}
	lines := scrape(t, c)
	for _, want := range []string{
		`stint_lease_instances 3`, `stint_lease_recovering 1`, `stint_lease_refused_total{status="bad_key"} 2`, `stint_lease_capacity{limit="a"} 100`,
		`stint_lease_lent{limit="a"} 90.5`, `stint_lease_demand{limit="a"} 300`, `stint_lease_free{limit="a"} 9.5`,
		`stint_lease_saturated{limit="a"} 1`, `stint_lease_saturated_seconds_total{limit="a"} 12.5`,
	} {
		if !slices.Contains(lines, want) {
			t.Errorf("no %s in\n%s", want, strings.Join(lines, "\n"))
		}
	}
}
