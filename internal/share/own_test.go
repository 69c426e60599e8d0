package share

import (
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

// TestLimitPerInstance: with the kinds static and none the limit is each instance's
// own, so what one holds does not matter to another.
func TestLimitPerInstance(t *testing.T) {
	for _, tt := range []struct {
		kind Allocation
		want map[string]Amount
	}{
		{Static, map[string]Amount{"a": 100 * Token, "b": 100 * Token, "idle": 0}},
		{None, map[string]Amount{"a": 80 * Token, "b": 300 * Token, "idle": 0}},
	} {
		now := limit.Time(time.Hour)
		c := NewCoordinator(CoordinatorOptions{Epoch: 1, Resolve: func(ResourceID) (Terms, Status) {
			return Terms{Rate: 100 * Token, Burst: 10 * Token, Allocation: tt.kind}, StatusOK
		}}, now)
		for name, want := range map[string]Amount{"a": 80 * Token, "b": 300 * Token, "idle": 0} {
			c.Step(now, &Report{Member: Member{name, 1}, Number: 1, Stamp: 1, Demands: []Demand{{Handle: 1, Resource: ResourceID{Limit: "l"}, Rate: want}}})
		}
		got := map[string]Amount{}
		for _, g := range c.Step(c.Next(), Tick{}) {
			for _, s := range g.Shares {
				got[g.To.Instance] = s.Granted.Rate
			}
		}
		for name, want := range tt.want {
			if got[name] != want {
				t.Errorf("%v: %s got %v/s, want %v/s", tt.kind, name, got[name], want)
			}
		}
	}
}
