package sim

import (
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/sim/internal/report"
)

// eventful has a bit of everything.
func eventful() Scenario {
	return Scenario{
		Name: "eventful", Limit: limitOf(200, 20), Instances: 6, Duration: 20 * time.Second, Seed: 11,
		Clocks:  []time.Duration{0, time.Second, -time.Second, 0, 0, 0},
		Network: Network{Delay: 10 * ms, Jitter: 20 * ms, Loss: 0.05, Duplicate: 0.05},
		Changes: []Change{{8 * time.Second, limitOf(100, 10)}, {12 * time.Second, limitOf(300, 30)}},
		Partitions: []Partition{
			{At: 5 * time.Second, For: time.Second, Nodes: []Address{0, 1}}, {At: 15 * time.Second, For: time.Second, Nodes: []Address{Coordinator}, Cut: Outwards},
		},
		Pauses:   []Pause{{At: 9 * time.Second, For: 2 * time.Second, Node: 3, Backlog: 100 * ms}},
		Stops:    []Stop{{At: 4 * time.Second, For: time.Second, Node: 2}, {At: 10 * time.Second, For: 500 * ms, Node: Coordinator}},
		Rolling:  []Rolling{{At: 13 * time.Second, Every: time.Second, Down: 200 * ms}},
		Failover: true,
		Loads: []Load{
			{Demand: steady(100), Arrivals: Poisson, Split: Split{Kind: Zipf, Move: 3 * time.Second, Shuffle: true}, Wait: 50 * ms},
			{Demand: []Step{{0, 50}, {7 * time.Second, 400}}, Mishaps: Mishaps{Every: time.Second, Length: time.Second, Spike: 3, Troughs: 0.5}},
			{Demand: steady(40), Arrivals: Bursts, Size: 4, Cost: 2, Instances: []int{1, 4}},
		},
	}
}

func TestRunIsDeterministic(t *testing.T) {
	for _, system := range append(Baselines(), &Ours{}, split{}, remote{}) {
		s := eventful()
		a, b := run(t, s, system), run(t, s, system)
		s.Seed++
		c := run(t, s, system)
		if a.Hash != b.Hash || a.Admitted != b.Admitted || a.Over != b.Over || a.Bytes != b.Bytes {
			t.Errorf("%s: two runs with one seed differ: %+v and %+v", system.Name(), a.Admitted, b.Admitted)
		}
		if a.Hash == c.Hash {
			t.Errorf("%s: another seed gives the same run", system.Name())
		}
		if a.Offered.Requests != a.Admitted.Requests+a.Refused.Requests+a.Lost.Requests+a.Held.Requests || a.Held.Requests < 0 {
			t.Errorf("%s: %+v are not the sum of %+v, %+v, %+v and %+v", system.Name(), a.Offered, a.Admitted, a.Refused, a.Lost, a.Held)
		}
	}
}

// All systems see the same requests, whatever chance they use themselves.
func TestArrivalsAreTheSameForAll(t *testing.T) {
	s := eventful()
	want := Count{}
	for _, system := range append(Baselines(), split{}) {
		r := run(t, s, system)
		got := Count{r.Offered.Requests + r.Missed.Requests, r.Offered.Tokens + r.Missed.Tokens}
		if want == (Count{}) {
			want = got
		}
		if got != want {
			t.Errorf("%s saw %+v, others %+v", system.Name(), got, want)
		}
	}
}

func TestCompare(t *testing.T) {
	s := eventful()
	c, err := Compare(t.Context(), s, []System{split{}, remote{}}, 5)
	if err != nil {
		t.Fatal(err)
	}
	if len(c.Rows) != 2 || c.Rows[0].System != "split" || c.Rows[1].System != "remote" || c.Runs != 5 {
		t.Fatalf("%+v", c)
	}
	figures := Figures()
	use := slices.IndexFunc(figures, func(f Figure) bool { return f.Name == "use" })
	for i, system := range []System{split{}, remote{}} {
		var values []float64
		for run := range uint64(5) {
			one := s
			one.Seed += run
			r, err := Run(t.Context(), one, system)
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, r.Use)
			if run == 0 && r.Hash != c.Rows[i].First.Hash {
				t.Errorf("%s: the first run is not that of the first seed", system.Name())
			}
		}
		if got := c.Rows[i].Figures[use]; got != report.EstimateOf(values) || got.Half == 0 || got.Min > got.Mean || got.Max < got.Mean {
			t.Errorf("%s: use %+v, want %+v", system.Name(), got, report.EstimateOf(values))
		}
	}
	if _, err := Compare(t.Context(), s, nil, 0); err == nil {
		t.Error("0 runs are accepted")
	}
	if c, err := Compare(t.Context(), s, nil, 1); err != nil || len(c.Rows) != 0 {
		t.Errorf("without systems: %+v, %v", c, err)
	}
}

func TestEstimate(t *testing.T) {
	e := report.EstimateOf([]float64{1, 2, 3, 4, 5})
	if e.Mean != 3 || math.Abs(e.Half-2.776*math.Sqrt(2.5/5)) > 1e-9 || e.Min != 1 || e.Max != 5 || e.String() != "3 ± 2" {
		t.Errorf("%+v %v", e, e)
	}
	if e := report.EstimateOf([]float64{7}); e.Mean != 7 || e.Half != 0 || e.String() != "7" {
		t.Errorf("%+v %v", e, e)
	}
	if e := report.EstimateOf([]float64{0.1, 0.1, 0.1}); e.Mean != 0.1 || e.Half != 0 {
		t.Errorf("%+v", e)
	}
	if e := report.EstimateOf([]float64{1, math.Inf(1)}); !math.IsInf(e.Mean, 1) || e.Half != 0 {
		t.Errorf("%+v", e)
	}
	if e := report.EstimateOf(slices.Repeat([]float64{0, 1}, 50)); math.Abs(e.Half-1.96*math.Sqrt(0.25*100/99/100)) > 1e-9 {
		t.Errorf("%+v", e)
	}
}

func TestValidate(t *testing.T) {
	if err := eventful().Validate(); err != nil {
		t.Errorf("eventful: %v", err)
	}
	nan := math.NaN()
	bad := Scenario{
		Limit: Limit{limit.Rate{Count: -1, Period: time.Second}, -1}, Instances: 2, Duration: time.Second,
		Changes: []Change{{time.Second, limitOf(1, 1)}, {0, limitOf(1, 1)}},
		Weights: []uint32{0, 1}, Old: []bool{true}, Starts: []time.Duration{0, -1}, Clocks: []time.Duration{0, 11 * 24 * time.Hour},
		Network:    Network{Delay: -1, Loss: 1, Duplicate: nan},
		ClockSteps: []ClockStep{{-1, 0, time.Second}, {0, 7, 1}, {0, 0, 9 * 24 * time.Hour}, {0, 0, -2 * 24 * time.Hour}, {0, -1, math.MinInt64}},
		Partitions: []Partition{{Cut: 9}, {Nodes: []Address{2}}},
		Pauses:     []Pause{{Node: -2000, Backlog: -1}},
		Stops:      []Stop{{At: -1}},
		Rolling:    []Rolling{{Instances: []int{5}}},
		Loads: []Load{
			{Demand: []Step{{0, nan}, {2, 1e12}, {1, 1}}, Arrivals: Bursts, Cost: -1, Instances: []int{0, 0}},
			{Arrivals: 9, Split: Split{Kind: 9, Shuffle: true}, Mishaps: Mishaps{Spike: 1}, Instances: []int{}},
			{Split: Split{Kind: OnOne, Hot: 2, Move: 1}, Mishaps: Mishaps{Every: 1, Trough: 2}},
			{Split: Split{Kind: Shares, Shares: []float64{0, 0}}},
			{Split: Split{Kind: Shares, Shares: []float64{-1}}, Wait: -1},
			{Split: Split{Kind: Zipf, Exponent: -1}},
		},
		Measure: Measure{From: time.Second, Look: 1},
	}
	err := bad.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	got := strings.Split(err.Error(), "\n")
	for _, want := range []string{
		"limit: limit: rate -1/1s is negative", "limit: burst is -1", "changes[1].at is 0s", "weights[0] is 0", "old has 1 entries",
		"starts[1] is -1ns", "clocks[1] is wrong by 264h0m0s", "network.delay", "network.loss is 1", "network.duplicate is NaN",
		"clock_steps[0].at is -1ns", "clock_steps[1].node is node 7", "clock_steps[3] sets the clock of node 0 off by 264h0m1s",
		"clock_steps[4].by is wrong by",
		"partitions[0] has no nodes", "partitions[0].cut is 9", "partitions[1].nodes[0] is node 2", "pauses[0].node is node -2000",
		"pauses[0].backlog", "stops[0].at", "rolling[0].down", "rolling[0].instances[0] is 5", "loads[0].demand[0].rate is NaN",
		"loads[0].demand[1].rate is 1e+12", "loads[0].demand[2].at is 1ns", "loads[0].size is 0", "loads[0].cost is -1",
		"loads[0].instances names 0 twice", "loads[1].arrivals is 9", "loads[1].split.kind is 9", "loads[1].split.shuffle needs move",
		"loads[1].mishaps needs every", "loads[1].instances is empty", "loads[2].split.hot is 2", "loads[2].split.move is 1ns",
		"loads[2].mishaps.every", "loads[2].mishaps.length", "loads[2].mishaps.trough is 2", "loads[2].mishaps.spike is 0",
		"loads[3].split.shares add up to 0", "loads[4].split.shares[0] is -1", "loads[4].split.shares has 1 entries", "loads[4].wait",
		"loads[5].split.exponent is -1", "measure.from is 1s", "measure.look is 1ns",
	} {
		i := slices.IndexFunc(got, func(line string) bool { return strings.HasPrefix(line, "sim: "+want) })
		if i < 0 {
			t.Errorf("no fault %q", want)
			continue
		}
		got = slices.Delete(got, i, i+1)
	}
	for _, line := range got {
		t.Errorf("unexpected: %s", line)
	}
}

// Requests that are evenly spaced at 100 instances, each decided locally: what the loop
// and the recorder cost.
func BenchmarkRequests(b *testing.B) {
	s := Scenario{Limit: limitOf(1_000_000, 1000), Instances: 100, Duration: time.Second, Loads: []Load{{Demand: steady(2_000_000)}}}
	requests := int64(0)
	for b.Loop() {
		r, err := Run(b.Context(), s, split{})
		if err != nil || r.Admitted.Tokens < 990_000 {
			b.Fatal(r, err)
		}
		requests += r.Offered.Requests
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(requests), "ns/request")
}

// 1,000 instances that pass messages to and fro through a coordinator.
func BenchmarkMessages(b *testing.B) {
	s := Scenario{Limit: limitOf(1, 1), Instances: 1000, Duration: time.Second, Network: Network{Delay: ms, Jitter: ms}}
	messages := int64(0)
	for b.Loop() {
		r, err := Run(b.Context(), s, echo{})
		if err != nil || r.Messages < 500_000 {
			b.Fatal(r.Messages, err)
		}
		messages += r.Messages
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(messages), "ns/message")
}

// echo sends every message back.
type echo struct{ env Env }

func (echo) Name() string { return "echo" }

func (echo) Coordinator(env Env, _ Setup, a Address, _ int) Node {
	if a != Coordinator {
		return nil
	}
	return echo{env}
}

func (echo) Instance(env Env, _ Setup, _, _ int) Enforcer {
	env.Send(Coordinator, "echo", 10)
	return echo{env}
}

func (e echo) Receive(from Address, m any) { e.env.Send(from, m, 10) }
func (echo) Wake()                         {}
func (echo) Take(int64) bool               { return false }
func (echo) Share() float64                { return 0 }
