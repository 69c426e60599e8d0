package sim

import (
	"fmt"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/internal/partition"
)

// Every option of how a limit is shared becomes what it says, in variants on top of what
// stands under stint.
func TestParseSharing(t *testing.T) {
	described := lease.Suppress{Report: 2 * time.Second, Window: 24 * time.Second, Intervals: 4, Independent: true}
	ramp := described
	ramp.Admitted, ramp.Ramp, ramp.Full = true, lease.RampLinear, 2.5
	often := described
	often.Report = time.Second
	for _, tt := range []struct {
		stint, variant string
		want           Ours
	}{
		{"", "", Ours{}},
		{"", "sharing: leased", Ours{}},
		{"", "sharing: suppressed", Ours{Suppress: &lease.Suppress{}}},
		{"", "sharing: split", Ours{Split: &OwnSplit{}}},
		{"sharing: split", "", Ours{Split: &OwnSplit{}}},
		{"sharing: split, window: 1s", "sharing: leased", Ours{}},
		{"sharing: split, window: 2s", "pace: pid", Ours{Split: &OwnSplit{2 * time.Second, partition.PacePID}}},
		{"sharing: split, window: 2s", "pace: even", Ours{Split: &OwnSplit{2 * time.Second, partition.PaceEven}}},
		{"sharing: split, window: 2s, pace: pid", "pace: none, window: 5ms", Ours{Split: &OwnSplit{Window: 5 * ms}}},
		{"sharing: split", "sharing: suppressed", Ours{Suppress: &lease.Suppress{}}},
		{"sharing: suppressed, report: 2s", "sharing: split", Ours{Split: &OwnSplit{}}},
		{"allocation: equal, lease: 9s", "sharing: suppressed, report: 2s, window: 24s, interval: 6s, draws: independent", Ours{
			Allocation: fairshare.Equal, Lease: 9 * time.Second, Suppress: &described,
		}},
		{"sharing: suppressed, report: 2s, window: 24s, interval: 6s, draws: independent", "average: admitted, ramp: linear, full: 2.5", Ours{Suppress: &ramp}},
		{"sharing: suppressed, report: 2s, window: 24s, interval: 6s, draws: independent", "sharing: suppressed, report: 1s", Ours{Suppress: &often}},
		{"sharing: suppressed, ramp: linear, draws: independent", "ramp: exact, draws: balanced, average: attempted", Ours{Suppress: &lease.Suppress{}}},
		{"", "sharing: suppressed, expiry: safe, lease: 9s, refresh: 2s, start: 5/s", Ours{
			Suppress: &lease.Suppress{}, Lease: 9 * time.Second, Refresh: 2 * time.Second,
			Options: agent.LeaseOptions{Expiry: agent.Safe, Start: 5 * fixed.Token},
		}},
	} {
		text := goodScenario + "systems: [stint, {name: other, " + tt.variant + "}]\n"
		if tt.stint != "" {
			text += "stint: {" + tt.stint + "}\n"
		}
		f, err := ParseScenario([]byte(text), "s.yaml")
		if err != nil {
			t.Errorf("{%s} on top of {%s}: %v", tt.variant, tt.stint, err)
			continue
		}
		systems, err := f.Choose("other")
		tt.want.Label = "other"
		if err != nil || !reflect.DeepEqual(systems[0], &tt.want) {
			t.Errorf("{%s} on top of {%s}: got %+v, %v", tt.variant, tt.stint, systems[0], err)
		}
		// A variant changes nothing of the one it builds on, and can be played.
		base, err := ParseScenario([]byte(strings.ReplaceAll(text, ", {name: other, "+tt.variant+"}", "")), "s.yaml")
		if err != nil || !reflect.DeepEqual(base.own, f.own) {
			t.Errorf("{%s} on top of {%s}: stint is %+v, and %+v alone, %v", tt.variant, tt.stint, f.own, base.own, err)
		}
		f.Scenario.Duration = 50 * ms
		run(t, f.Scenario, systems[0])
	}
}

// Every fault has its place and a way out, and is told once.
func TestParseSharingFaults(t *testing.T) {
	for _, tt := range []struct{ stint, want string }{
		{"sharing: exact", ":5:18: want one of leased, suppressed, split"},
		{"sharing: supressed, report: 2s", ":5:18: want one of leased, suppressed, split, this is \"supressed\"\n  5 | stint: {sharing: supressed, report: 2s}\n    |                  ^\n  hint: did you mean suppressed?"},
		{"report: 2s", ":5:17: report is for limits that are suppressed"},
		{"sharing: split, full: 3", ":5:31: full is for limits that are suppressed"},
		{"sharing: suppressed, pace: pid", ":5:36: pace is for limits that are split"},
		{"window: 1s", ":5:17: leases know no window"},
		{"sharing: leased, window: 1s", ":5:34: leases know no window\n  5 | stint: {sharing: leased, window: 1s}\n    |                                  ^\n  hint: add sharing: suppressed, or sharing: split"},
		{"sharing: split, lease: 9s", ":5:32: lease is for limits with a coordinator"},
		{"sharing: split, allocation: equal", ":5:37: allocation is for leases"},
		{"sharing: suppressed, estimator: utilisation", ":5:41: estimator is for leases"},
		{"sharing: suppressed, report: 0s", ":5:38: want a duration above 0"},
		{"sharing: suppressed, report: -1s", ":5:38: want a duration that is not negative"},
		{"sharing: suppressed, report: 1ms", ":5:38: report is 1ms, want 10ms to 1m0s"},
		{"sharing: suppressed, report: 2m", ":5:38: report is 2m0s, want"},
		{"sharing: suppressed, average: sum", ":5:39: want one of attempted, admitted"},
		{"sharing: suppressed, average: admitted", ":5:39: to average what was admitted takes a window"},
		{"sharing: suppressed, ramp: steep", ":5:36: want one of exact, linear"},
		{"sharing: suppressed, full: 0", ":5:36: want how many times the limit"},
		{"sharing: suppressed, full: 1", ":5:36: the ramp ends at 1 times the limit, want 1.001 to 1000"},
		{"sharing: suppressed, full: 1001", "want 1.001 to 1000"},
		{"sharing: suppressed, full: NaN", ":5:36: want a number of at least 0"},
		{"sharing: suppressed, draws: none", ":5:37: want one of balanced, independent"},
		{"sharing: suppressed, window: 24s", ":5:38: a window is divided into intervals\n  5 | stint: {sharing: suppressed, window: 24s}\n    |                                      ^\n  hint: add both or none"},
		{"sharing: suppressed, interval: 6s", ":5:40: a window is divided into intervals"},
		{"sharing: suppressed, window: 0s, interval: 6s", ":5:38: want a duration above 0"},
		{"sharing: suppressed, window: 24s, interval: 0s", ":5:53: want a duration above 0"},
		{"sharing: suppressed, window: 24s, interval: 7s", ":5:53: want a part of the window"},
		{"sharing: suppressed, window: 6s, interval: 24s", ":5:52: want a part of the window"},
		{"sharing: suppressed, window: 2h, interval: 6m", ":5:52: window is 2h0m0s, want up to 1h0m0s"},
		{"sharing: suppressed, window: 65s, interval: 1s", ":5:53: the window has 65 intervals, want 1 to 64"},
		{"sharing: suppressed, window: 24s, interval: 1s, report: 2s", ":5:53: the interval is 1s, want at least report, 2s"},
		{"sharing: split, window: 0s", ":5:33: want a duration above 0"},
		{"sharing: split, window: 1us", ":5:33: window is 1µs, want 1ms to 24h0m0s"},
		{"sharing: split, window: 2d", "want 1ms to 24h0m0s"},
		{"sharing: split, window: soon", ":5:33: want a duration"},
		{"sharing: split, pace: odd", ":5:31: want one of none, even, pid"},
		{"sharing: split, pace: pid", ":5:31: a controller paces the permits of windows, and there are none: set a window"},
	} {
		text := goodScenario + "stint: {" + tt.stint + "}\n"
		wantFault(t, text, tt.want)
		if _, err := ParseScenario([]byte(text), "s.yaml"); err != nil && strings.Count(err.Error(), "s.yaml:") != 1 {
			t.Errorf("%s: more than one fault:\n%v", tt.stint, err)
		}
	}
	// What a variant adds has to go with what stands under stint.
	wantFault(t, goodScenario+"stint: {sharing: suppressed, report: 2s, window: 24s, interval: 6s}\nsystems: [{name: a, report: 10s}]\n", ":6:29: the interval is 6s, want at least report, 10s")
	wantFault(t, goodScenario+"stint: {sharing: split, window: 1s, pace: pid}\nsystems: [{name: a, sharing: suppressed, window: 1s}]\n", ":6:50: a window is divided into intervals")
}

// A limit that cannot be split is a fault of the file, wherever it stands.
func TestParseSplitFaults(t *testing.T) {
	const split = "systems: [{name: parts, sharing: split}]\n"
	for _, tt := range []struct{ text, want string }{
		{strings.Replace(goodScenario, "instances: 4", "instances: 65537", 1) + split, ":2:12: a limit is split into 65537 units, want 1 to 65536"},
		{goodScenario + "weights: {2: 65534}\n" + split, ":5:10: a limit is split into 65537 units"},
		{strings.Replace(goodScenario, "1000/s", "2000/us", 1) + split, ":1:8: total 2000/us is above one per nanosecond"},
		{goodScenario + "events: [{at: 1s, limit: 2G/s}]\n" + split, ":5:26: total 2000000000/s is above one per nanosecond"},
	} {
		wantFault(t, tt.text, tt.want)
		if _, err := ParseScenario([]byte(strings.Replace(tt.text, "split", "leased", 1)), "s.yaml"); err != nil {
			t.Errorf("%s\nand leased: %v", tt.text, err)
		}
	}
}

// processorTime is what this process has used of the processors so far: a machine that does
// other work does not make it longer.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A few characters can name very many instances: a file that does is refused before that
// takes time and memory.
func TestParseManyParts(t *testing.T) {
	const large = "limit: 1000/s\ninstances: 100000\nduration: 60s\n"
	began := processorTime()
	for _, tt := range []struct{ text, want string }{
		{large + "load:\n" + strings.Repeat("- {demand: 1/s, on: 0-99999}\n", 200), ":15:21: with this, loads and events name more than 1000000 instances"},
		{large + "load:\n" + strings.Repeat("- {demand: 1/s}\n", 2000), ":15:3: with this,"},
		{large + "load:\n" + strings.Repeat("- {demand: 1/s, on: one}\n", 2000), ":15:3: with this,"},
		{large + "load:\n" + strings.Repeat("- {demand: 1/s, on: [0-49999, 50000-99999]}\n", 11), ":15:22: with this,"},
		{large + "load: {demand: 1/s}\nevents:\n" + strings.Repeat("- {at: 1s, partition: 0-99999}\n", 1000), ":15:23: with this,"},
		{large + "load: {demand: 1/s}\nevents:\n" + strings.Repeat("- {at: 1s, rolling_restart: all, every: 1s, down: 1s}\n", 1000), ":15:29: with this,"},
		{large + "load: {demand: 1/s}\nevents:\n" + strings.Repeat("- {at: 1s, pause: all}\n", 1000), ":7:3: that makes more than 100000 events"},
	} {
		wantFault(t, tt.text, tt.want)
	}
	// Much slower than that it was without a bound.
	if took := processorTime() - began; took > 20*time.Second {
		t.Errorf("it took %v of a processor", took)
	}
	if _, err := ParseScenario([]byte(large+"load:\n"+strings.Repeat("- {demand: 1/s}\n", 10)), "s.yaml"); err != nil {
		t.Error(err)
	}
	s := Scenario{Limit: limitOf(1, 1), Instances: MaxInstances, Duration: time.Second, Loads: make([]Load, 11)}
	if err := s.Validate(); err == nil || !strings.Contains(err.Error(), fmt.Sprint("loads[10] is too much: loads have at most ", MaxParts)) {
		t.Errorf("got %v", err)
	}
	s.Loads = s.Loads[:10]
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
}
