package explore

import (
	"flag"
	"strings"
	"testing"
	"time"
)

var (
	states   = flag.Int("states", 100_000, "how many states TestExhaustive finds in all, as 10000000")
	scenario = flag.String("scenario", "", "only scenarios that have this in their name")
	sample   = flag.Int("sample", 500, "from one in so many states it is tried how long it takes until both instances have their fair share")
)

// mostUnsettled is within what time both instances have their fair share when nothing fails any
// more: a lease ends, a term ends, and recovery.
const mostUnsettled = 14 * time.Second

// TestExhaustive: in every order of events, up to a depth, the instances may spend no more together
// than the limit, no machine panics, and when faults end both get their fair share.
func TestExhaustive(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	var chosen []Scenario
	for _, c := range Scenarios() {
		if strings.Contains(c.Name, *scenario) && (!c.expensive || *states >= 1_000_000) {
			chosen = append(chosen, c)
		}
	}
	all, settled := 0, 0
	begun := time.Now()
	for i, c := range chosen {
		n, tried := explore(t, c, (*states-all)/(len(chosen)-i))
		all, settled = all+n, settled+tried
	}
	t.Logf("%d states in %v; from %d of them everything went on without faults", all, time.Since(begun).Round(time.Second), settled)
}

func explore(t *testing.T, c Scenario, most int) (found, tried int) {
	t.Helper()
	u, w, err := c.begin()
	if err != nil {
		t.Fatalf("%s: %v", c.Name, err)
	}
	s := NewSearch(u, w)
	begun := time.Now()
	slowest, events := time.Duration(0), 0
	v := s.Run(most, func(w *World) string {
		if s.States%*sample != 0 {
			return ""
		}
		tried++
		took, n, fault := u.settle(*w, mostUnsettled)
		slowest, events = max(slowest, took), max(events, n)
		return fault
	})
	t.Logf("%s: %d states, depth %d, %d events tried in %v; fair share within %v and %d events from %d states; %d states of coordinators and %d of instances", c.Name,
		s.States, s.Depth, s.Steps, time.Since(begun).Round(time.Millisecond), slowest, events, tried, len(u.fleet.coordinators.list), len(u.fleet.instances.list))
	if v != nil {
		t.Fatalf("%s: violation: %s\n%s", c.Name, v.Fault, s.Trace(v.Actions))
	}
	return s.States, tried
}
