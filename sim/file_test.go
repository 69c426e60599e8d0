package sim

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/sim/internal/words"
)

const fullScenario = `
name: everything at once
about: >
  What every key
  becomes.
limit: 1000/s
burst: 100
instances: 6
duration: 1m30s
seed: 7
failover: true
network: {delay: 50ms, jitter: 5ms, in_order: true, loss: 1%, duplicate: 0.5%}
weights: {0-1: 3, 5: 2}
old: [0, 2-3]
starts: [0, 0, 0, 0, 0, 1s]
clocks: {0: 250ms, 1: -1h, coordinator: -10s}
load:
  - {demand: 2000/s}
  - {demand: 120/minute, from: 5s, until: 10s, on: one, move: 20s}
  - {demand: {0: 10/s, 1d: 20/s}, on: [1, 3-4], split: [7, 2, 1], arrivals: poisson, cost: 5, wait: 100ms}
  - {demand: 1/s, on: 0-3, split: {one: 2}, arrivals: {bursts: 10}, aligned: true}
  - {demand: 1/s, split: {zipf: 1.5}, move: 1s, shuffle: true,
     mishaps: {every: 10s, length: 5s, spike: 3, trough: 10%, troughs: 50%}}
events:
  - {at: 40s, limit: 500/s}
  - {at: 20s, limit: 2000/s, burst: 300}
  - {at: 1s, pause: [0, coordinator], for: 2s, backlog: 100ms}
  - {at: 2s, crash: coordinator, for: 5s, every: 30s}
  - {at: 3s, stop: 1, for: 5s, upgrade: true, every: 10s, times: 2}
  - {at: 4s, partition: [coordinator], for: 1s, cut: inwards}
  - {at: 6s, clock: [0, coordinator], by: -10s}
  - {at: 5s, rolling_restart: [2, 1], every: 2s, down: 1s, crash: true, upgrade: true}
measure: {from: 1s, step: 20s, sample: 50ms, look: 5ms, grace: 100ms}
systems: [stint, {name: half, allocation: equal, expiry: safe}, equal, hermes]
stint: {lease: 10s, refresh: 2s, start: 10/s, estimator: utilisation, forgetful: true}
runs: 3
show: [use, peak_1_s, jain]
`

// Every key of a file becomes what it says.
func TestParseScenario(t *testing.T) {
	f, err := ParseScenario([]byte(fullScenario), "dir/x.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want := Scenario{
		Name: "everything at once", About: "What every key becomes.",
		Limit: limitOf(1000, 100), Instances: 6, Duration: 90 * time.Second, Seed: 7, Failover: true,
		Changes:          []Change{{20 * time.Second, limitOf(2000, 300)}, {40 * time.Second, limitOf(500, 100)}},
		Weights:          []uint32{3, 3, 1, 1, 1, 2},
		Old:              []bool{true, false, true, true, false, false},
		Starts:           []time.Duration{5: time.Second},
		Clocks:           []time.Duration{250 * ms, -time.Hour, 0, 0, 0, 0},
		CoordinatorClock: -10 * time.Second,
		ClockSteps:       []ClockStep{{6 * time.Second, 0, -10 * time.Second}, {6 * time.Second, Coordinator, -10 * time.Second}},
		Network:          Network{Delay: 50 * ms, Jitter: 5 * ms, InOrder: true, Loss: 0.01, Duplicate: 0.005},
		Partitions:       []Partition{{4 * time.Second, time.Second, []Address{Coordinator}, Inwards}},
		Pauses: []Pause{
			{time.Second, 2 * time.Second, 0, 100 * ms}, {time.Second, 2 * time.Second, Coordinator, 100 * ms},
		},
		Stops: []Stop{
			{At: 2 * time.Second, For: 5 * time.Second, Node: Coordinator},
			{At: 32 * time.Second, For: 5 * time.Second, Node: Coordinator},
			{At: 62 * time.Second, For: 5 * time.Second, Node: Coordinator},
			{3 * time.Second, 5 * time.Second, 1, true, true},
			{13 * time.Second, 5 * time.Second, 1, true, true},
		},
		Rolling: []Rolling{{5 * time.Second, 2 * time.Second, time.Second, []int{2, 1}, true, true}},
		Loads: []Load{
			{Demand: steady(2000)},
			{Demand: []Step{{5 * time.Second, 2}, {10 * time.Second, 0}}, Split: Split{Kind: OnOne, Move: 20 * time.Second}},
			{
				Demand: []Step{{0, 10}, {24 * time.Hour, 20}}, Instances: []int{1, 3, 4}, Arrivals: Poisson, Cost: 5, Wait: 100 * ms,
				Split: Split{Kind: Shares, Shares: []float64{7, 2, 1}},
			},
			{Demand: steady(1), Instances: []int{0, 1, 2, 3}, Split: Split{Kind: OnOne, Hot: 2}, Arrivals: Bursts, Size: 10, Aligned: true},
			{
				Demand: steady(1), Split: Split{Kind: Zipf, Exponent: 1.5, Move: time.Second, Shuffle: true},
				Mishaps: Mishaps{10 * time.Second, 5 * time.Second, 3, 0.1, 0.5},
			},
		},
		Measure: Measure{From: time.Second, Step: 20 * time.Second, Sample: 50 * ms, Look: 5 * ms, Grace: 100 * ms},
	}
	if !reflect.DeepEqual(f.Scenario, want) {
		t.Errorf("got\n%+v\nwant\n%+v", f.Scenario, want)
	}
	if got := fmt.Sprint(f.Runs, f.Systems, f.Show); got != "3 [stint half equal-split hermes] [use peak 1 s Jain]" {
		t.Errorf("got %s", got)
	}
	systems, err := f.Choose()
	if err != nil {
		t.Fatal(err)
	}
	own := Ours{
		Label: "stint", Lease: 10 * time.Second, Refresh: 2 * time.Second, Forgetful: true,
		Options: agent.LeaseOptions{Estimator: agent.Utilisation, Start: 10 * fixed.Token},
	}
	half := own
	half.Label, half.Allocation, half.Options.Expiry = "half", fairshare.Equal, agent.Safe
	if want := []System{&own, &half, EqualSplit{}, Hermes{}}; !reflect.DeepEqual(systems, want) {
		t.Errorf("systems %+v, want %+v", systems, want)
	}
}

// What is alike can be written once.
func TestParseScenarioAliases(t *testing.T) {
	const short = `
limit: &rate 1000/s
instances: 4
duration: 60s
load:
  - &first {demand: *rate, on: 0-1, arrivals: poisson}
  - {<<: *first, on: [2, 3]}
`
	const long = `
limit: 1000/s
instances: 4
duration: 60s
load:
  - {demand: 1000/s, on: [0, 1], arrivals: poisson}
  - {demand: 1000/s, on: [2, 3], arrivals: poisson}
`
	got, err := ParseScenario([]byte(short), "s.yaml")
	if err != nil {
		t.Fatal(err)
	}
	want, err := ParseScenario([]byte(long), "s.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// What is left out has its default: the burst of the product, the name of the file.
func TestParseScenarioDefaults(t *testing.T) {
	f, err := ParseScenario([]byte("limit: 0.5/s\ninstances: 1\nduration: 1s\nload: {demand: 1/s}\n"), "dir/plain.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if s := f.Scenario; s.Name != "plain" || s.Limit != (Limit{limit.Rate{Count: 1, Period: 2 * time.Second}, 1}) {
		t.Errorf("got %+v", s)
	}
	if got := fmt.Sprint(f.Runs, f.Systems, f.Show); got != "1 [stint] []" {
		t.Errorf("got %s", got)
	}
}

const goodScenario = "limit: 1000/s\ninstances: 4\nduration: 60s\nload: [{demand: 1/s}]\n"

// All faults come at once, in the order of lines, each with its place and a way out.
func TestParseScenarioFaults(t *testing.T) {
	const good = goodScenario
	for _, tt := range []struct{ text, want string }{
		{"", "the file is empty"},
		{"# nothing\n", "the file is empty"},
		{"- a\n", ":1:1: want a map of name"},
		{"limit: 1000/s\n", "instances is missing\n  hint: add instances: 10"},
		{good + "durration: 5s\n", `:5:1: unknown key "durration"` + " in a scenario\n  5 | durration: 5s\n    | ^\n  hint: did you mean duration?"},
		{good + "limit: 5/s\n", `:5:1: key "limit" is given twice, first on line 1`},
		{strings.Replace(good, "1000/s", "1000", 1), ":1:8: want a rate with its period, this is \"1000\"\n  1 | limit: 1000\n    |        ^\n  hint: did you mean 1000/s?"},
		{strings.Replace(good, "1000/s", "NaN/s", 1), `count "NaN" is not a number`},
		{strings.Replace(good, "1000/s", "-1/s", 1), "is negative"},
		{strings.Replace(good, "60s", "60", 1), "did you mean 60s?"},
		{strings.Replace(good, "60s", "0s", 1), "want a duration above 0"},
		{strings.Replace(good, "60s", "-1s", 1), "want a duration that is not negative"},
		{strings.Replace(good, "60s", "400d", 1), "at most 30 days"},
		{strings.Replace(good, "instances: 4", "instances: 0", 1), ":2:12: want a whole number from 1 to 100000"},
		{strings.Replace(good, "1/s", "3G/s", 1), "above 1e+09 requests per second"},
		{good + "network: {loss: 0.01}\n", "did you mean 1%?"},
		{good + "network: {loss: 100%}\n", ":5:17: network.loss is 1, want below it"},
		{good + "network: {delay: fast}\n", "write it as 50ms"},
		{good + "weights: [1, 2]\n", "one entry for each of 4 instances, this has 2"},
		{good + "weights: {0-4: 2}\n", "want instances from 0 to 3"},
		{good + "weights: {0-2: 2, 2: 3}\n", "instance 2 is named twice"},
		{good + "old: [0, 0]\n", "instance 0 is named twice"},
		{good + "systems: [hermez]\n", "did you mean hermes?"},
		{good + "systems: [stint, stint]\n", `"stint" is named twice`},
		{good + "systems: [equal, equal-split]\n", `"equal-split" is named twice`},
		{good + "systems: [{name: hermes}]\n", "is the name of a system"},
		{good + "systems: [{name: \"a\\nb\"}]\n", "want a name of at most 40"},
		{good + "systems: []\n", "at least one system"},
		{good + "stint: {allocation: max-min}\n", "did you mean max_min?"},
		{good + "stint: {lease: 1s}\n", "refresh 1s is not below lease 1s"},
		{good + "stint: {expiry: never}\n", "one of pessimistic, optimistic, safe"},
		{good + "show: [used]\n", "did you mean use?"},
		{good + "runs: 0\n", "want a whole number from 1 to 1000"},
		{good + "measure: {from: 2m}\n", ":5:17: measure.from is 2m0s, want a time before the end"},
		{good + "measure: {sample: 1us}\n", "measure.sample is 1µs"},
		{good + "events: [{crash: 1}]\n", "add at: 20s"},
		{good + "events: [{at: 1s}]\n", "want one of limit, clock, pause"},
		{good + "events: [{at: 1s, crahs: 1}]\n", "did you mean crash?"},
		{good + "events: [{at: 1s, crash: 1, pause: 2}]\n", "make it two events"},
		{good + "events: [{at: 1s, crash: cordinator}]\n", "did you mean coordinator?"},
		{good + "events: [{at: 1s, crash: 1, cut: both}]\n", `unknown key "cut" in an event`},
		{good + "events: [{at: 1s, crash: 1, every: 5s}]\n", "a for that is shorter than every"},
		{good + "events: [{at: 1s, crash: 1, for: 1us, every: 2us}]\n", "more than 100000 events"},
		{good + "events: [{at: 1s, rolling_restart: all, every: 5s}]\n", "a rolling restart needs down"},
		{good + "events: [{at: 1s, pause: []}]\n", "the list is empty"},
		{strings.Replace(good, "demand: 1/s", "on: all", 1), "the load has no demand"},
		{strings.Replace(good, "1/s}", "1/s, on: on}", 1), "did you mean one?"},
		{strings.Replace(good, "1/s}", "1/s, on: one, split: zipf}", 1), "there is nothing to split"},
		{strings.Replace(good, "1/s}", "1/s, on: 2, move: 5s}", 1), "nowhere to move"},
		{strings.Replace(good, "1/s}", "1/s, split: zpif}", 1), "did you mean zipf?"},
		{strings.Replace(good, "1/s}", "1/s, split: [1, 2]}", 1), "a part for each of the load's 4 instances, this has 2"},
		{strings.Replace(good, "1/s}", "1/s, split: [0, 0, 0, 0]}", 1), "the parts add up to nothing"},
		{strings.Replace(good, "1/s}", "1/s, shuffle: true}", 1), "add move"},
		{strings.Replace(good, "1/s}", "1/s, arrivals: bursts}", 1), "{bursts: 10}"},
		{strings.Replace(good, "1/s}", "{5s: 1/s, 1s: 2/s}}", 1), "put them in order of time"},
		{strings.Replace(good, "1/s}", "{5s: 1/s}, until: 8s}", 1), "from and until go with one rate"},
		{strings.Replace(good, "1/s}", "1/s, from: 8s, until: 8s}", 1), "a time after the load begins"},
		{strings.Replace(good, "1/s}", "1/s, mishaps: {every: 5s}}", 1), "mishaps need length"},
		{strings.Replace(good, "1/s}", "1/s, mishaps: {every: 5s, length: 1s}}", 1), "load[0].mishaps.spike is 0"},
	} {
		wantFault(t, tt.text, tt.want)
	}
}

// What no scenario can be is refused before it costs anything.
func TestParseScenarioText(t *testing.T) {
	const good = goodScenario
	for _, tt := range []struct{ text, want string }{
		{good + "weights: *w\n", ":5:10: alias *w has no anchor &w before it"},
		{good + "weights: !!map {0: 1}\n", `YAML tag "!!map" is not supported`},
		{good + "network: {delay:5ms}\n", ":5:16: a colon within { } without a space after it"},
		{good + "about: &a [" + strings.Repeat("x, ", 99) + "]\nshow: [" + strings.Repeat("*a, ", 50) + "]\n", "aliases stand for more than 4096 values"},
		{good + "old: {" + strings.Repeat("a: b, ", 10_001) + "}\n", "a map with more than 10000 keys"},
		{"null\n", "the file is empty"},
		{good + "\tname: x\n", "indent with spaces"},
		{good + "---\nname: x\n", "a second YAML document"},
		{good + "name: \xff\n", "not valid UTF-8"},
		{good + "# " + strings.Repeat("x", words.Bounds.Bytes), "more than 65536 bytes"},
		{good + "name: " + strings.Repeat("[", 40), "nested more than 32 deep"},
		{good + "name:\n" + strings.Repeat("- ", 40), "nested more than 32 deep"},
	} {
		wantFault(t, tt.text, tt.want)
	}
}

func wantFault(t *testing.T, text, want string) {
	t.Helper()
	_, err := ParseScenario([]byte(text), "s.yaml")
	var list rules.Errors
	if !errors.As(err, &list) || !strings.Contains(err.Error(), want) {
		t.Errorf("%.120q: got\n%v\nwant %q", text, err, want)
	}
}

func TestParseClockFaults(t *testing.T) {
	const good = "limit: 1000/s\ninstances: 4\nduration: 60s\nload: [{demand: 1/s}]\n"
	for _, tt := range []struct{ text, want string }{
		{good + "events: [{at: 1s, clock: all}]\n", "needs by: how far"},
		{good + "events: [{at: 1s, clock: all, by: 0s}]\n", "needs by: how far"},
		{good + "events: [{at: 1s, clock: 4, by: 1s}]\n", "instances from 0 to 3"},
		{good + "events: [{at: 1s, clock: 0, by: 1}]\n", "did you mean 1s?"},
		{good + "events: [{at: 1s, clock: 0, by: -960h}]\n", "at most 30 days"},
		{good + "events: [{at: 1s, clock: 0, by: -216h}, {at: 2s, clock: all, by: 2d}]\n", ":5:41: events[1] sets the clock of node 0 off by 264h0m0s"},
		{good + "events: [{at: 1s, clock: 0, by: 1s, for: 2s}]\n", `unknown key "for" in an event`},
	} {
		_, err := ParseScenario([]byte(tt.text), "s.yaml")
		var list rules.Errors
		if !errors.As(err, &list) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%.120q: got\n%v\nwant %q", tt.text, err, tt.want)
		}
	}
}

func TestParseScenarioAllFaultsAtOnce(t *testing.T) {
	_, err := ParseScenario([]byte("seed: -1\nload: {demand: 5}\nruns: many\nnetwork: {dealy: 5ms}\n"), "s.yaml")
	var list rules.Errors
	if !errors.As(err, &list) {
		t.Fatal(err)
	}
	var places []string
	for _, e := range list {
		places = append(places, fmt.Sprint(e.Line, ":", e.Column))
	}
	if got := strings.Join(places, " "); got != "0:0 0:0 0:0 1:7 2:16 3:7 4:11" {
		t.Errorf("got %s:\n%v", got, err)
	}
}

func TestParseFile(t *testing.T) {
	if _, err := ParseFile(filepath.Join(t.TempDir(), "none.yaml")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("got %v", err)
	}
	if _, err := ParseFile(t.TempDir()); err == nil || errors.As(err, new(rules.Errors)) {
		t.Errorf("a folder: got %v", err)
	}
}

func TestChoose(t *testing.T) {
	f, err := ParseScenario([]byte("limit: 1/s\ninstances: 1\nduration: 1s\nload: {demand: 1/s}\nsystems: [{name: mine, lease: 9s}]\n"), "s.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if s, err := f.Choose(append(SystemNames(), "mine")...); err != nil || len(s) != len(Baselines())+3 {
		t.Errorf("got %v, %v", s, err)
	}
	for _, names := range [][]string{{"hermez"}, {"stint", "stint"}, {"equal", "equal-split"}, {""}} {
		if _, err := f.Choose(names...); err == nil {
			t.Errorf("%q: no error", names)
		}
	}
}

// FuzzParseScenario: no text makes the parser fail but by its faults, and what it
// accepts is valid.
func FuzzParseScenario(f *testing.F) {
	f.Add(fullScenario)
	f.Add("limit: 1/s\ninstances: 3\nduration: 1s\nload: [{demand: 1/s, on: 0-2}]\n")
	f.Add("limit: &a 1/s\ninstances: 3\nduration: 1s\nload: [&l {demand: *a}, {<<: *l, on: one}, *l]\n")
	f.Add(strings.Repeat("[", 2000))
	f.Add(strings.Repeat("- ", 2000))
	f.Fuzz(func(t *testing.T, text string) {
		file, err := ParseScenario([]byte(text), "fuzz.yaml")
		if err != nil {
			if list := rules.Errors(nil); !errors.As(err, &list) || len(list) == 0 {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		if err := file.Scenario.Validate(); err != nil {
			t.Fatal(err)
		}
		if _, err := file.Choose(); err != nil {
			t.Fatal(err)
		}
	})
}
