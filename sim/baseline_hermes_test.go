package sim

import (
	"math"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

func perSecond(n int64) Limit { return Limit{Rate: limit.PerSecond(n), Burst: n} }

func near(got, want, within float64) bool { return math.Abs(got-want) <= within }

func TestHermesBalance(t *testing.T) {
	share := func(limit float64, used ...float64) hermesShare { return hermesShare{limit, true, used} }
	for _, tt := range []struct {
		name  string
		limit float64
		in    []hermesShare
		want  []float64
	}{
		{"newcomer resets all", 90, []hermesShare{share(80, 1), share(10, 0), {}}, []float64{30, 30, 30}},
		{"new limit resets all", 60, []hermesShare{share(80, 1), share(10, 0)}, []float64{30, 30}},
		{"limit that differs by one is not seen", 9, []hermesShare{share(8, 0), share(2, 0)}, []float64{8, 2}},
		{"nobody busy", 100, []hermesShare{share(80, 0.9), share(20, 0.5)}, []float64{80, 20}},
		{"idle falls to the floor", 100, []hermesShare{share(50, 1), share(50, 0)}, []float64{99, 1}},
		{"half used gives a third", 100, []hermesShare{share(50, 1), share(50, 0.5)}, []float64{50 + 50./3, 50 - 50./3}},
		{"silent keeps", 100, []hermesShare{share(40, 1), share(30, 0), share(30)}, []float64{69, 1, 30}},
		{"small change is none", 100, []hermesShare{share(90, 1), share(10, 0.85)}, []float64{90, 10}},
		// Shares 0.6 and 0.4: the greedy one gives 30 x (2/1.6 - 1) = 7.5.
		{"busy come nearer", 100, []hermesShare{share(60, 1), share(40, 1)}, []float64{52.5, 47.5}},
		{"limit 1 of 3: the floor is above it", 1, []hermesShare{{}, {}, {}}, []float64{1, 1, 1}},
		{"share of one always resets", 10, func() []hermesShare {
			all := make([]hermesShare, 10)
			for i := range all {
				all[i] = share(1, 0)
			}
			all[0] = share(1, 1)
			return all
		}(), []float64{1, 1, 1, 1, 1, 1, 1, 1, 1, 1}},
	} {
		hermesBalance(tt.limit, tt.in)
		for i, want := range tt.want {
			if !near(tt.in[i].max, want, 1e-9) {
				t.Errorf("%s: max-rate of %d is %v, want %v", tt.name, i, tt.in[i].max, want)
			}
		}
	}
}

// TestHermesKeepsSum: what is taken is given, as long as the floor does not act.
func TestHermesKeepsSum(t *testing.T) {
	r := seeding.Rand(t)
	changed := 0
	for range 10_000 {
		n := 2 + r.IntN(20)
		shares := make([]hermesShare, n)
		limit := 0.0
		for i := range shares {
			shares[i] = hermesShare{2 + 100*r.Float64(), true, []float64{min(1, 1.2*r.Float64())}}
			limit += shares[i].max
		}
		if !hermesBalance(limit, shares) {
			continue
		}
		changed++
		sum := 0.0
		for _, s := range shares {
			sum += s.max
		}
		if !near(sum, limit, 1e-9) {
			t.Fatalf("sum %v after a round, want %v", sum, limit)
		}
	}
	if changed < 1000 {
		t.Fatalf("%d rounds changed anything, want at least 1000", changed)
	}
}

// settledHermes is a fleet with equal shares whose processes are at given moments of
// their periods.
func settledHermes(t *testing.T, setup Setup, report, balance time.Duration) *loop {
	l := newLoop(t, Hermes{}, setup, 1)
	l.run(50 * time.Millisecond) // the first beats have arrived
	c := l.nodes[Coordinator].node.(*hermesCoordinator)
	c.next = limit.Time(balance)
	c.env.WakeAt(c.next)
	for i := range c.consumers {
		c.consumers[i].max, c.consumers[i].hasMax = modelEqual(setup), true
		e := l.instance(i).(*hermesConsumer)
		e.hasMax = true
		e.setRate(modelEqual(setup))
		e.reportAt(limit.Time(report))
	}
	return l
}

func TestHermesMovesShareIn16To45s(t *testing.T) {
	setup := Setup{Limit: perSecond(1000), Instances: 10, RoundTrip: 2 * time.Millisecond}
	first, last := time.Hour, time.Duration(0)
	for _, report := range []time.Duration{1, 8, 15} {
		for balance := time.Duration(1); balance <= 30; balance += 2 {
			l := settledHermes(t, setup, report*time.Second, balance*time.Second+500*time.Millisecond)
			l.demand = func(i int, _ time.Duration) float64 {
				if i == 0 {
					return 1000
				}
				return 0
			}
			at := l.reach(0, 950, 2*time.Minute)
			first, last = min(first, at), max(last, at)
		}
	}
	t.Logf("95 %% of the limit after %v to %v", first, last)
	if first < 15*time.Second || first > 17*time.Second || last < 42*time.Second || last > 46*time.Second {
		t.Errorf("95 %% of the limit after %v to %v, want 16 s to 43 s within the grain of the phases", first, last)
	}
}

// TestHermesReadings: the kindest reading, and what the published code and processes
// that started at different moments make of it.
func TestHermesReadings(t *testing.T) {
	for _, tt := range []struct {
		hermes      Hermes
		first, last time.Duration
	}{
		{Hermes{}, 16 * time.Second, 18 * time.Second},
		{Hermes{Apart: true}, 8 * time.Second, 75 * time.Second}, // of 320 phases: 11.9 s to 59.6 s
		{Hermes{Averaged: true}, 30 * time.Second, 80 * time.Second},
		{Hermes{Apart: true, Averaged: true}, 24 * time.Second, 110 * time.Second}, // of 320 phases: 29 s to 90 s
	} {
		first, last := time.Hour, time.Duration(0)
		for seed := range seeding.Draw(t, 8) {
			const step = 150 * time.Second
			l := newLoop(t, tt.hermes, Setup{Limit: perSecond(1000), Instances: 10, RoundTrip: 20 * time.Millisecond}, seed)
			l.demand = func(i int, now time.Duration) float64 {
				switch {
				case now < step:
					return 100
				case i == 0:
					return 1000
				}
				return 0
			}
			l.run(step)
			took := l.reach(0, 950, step+2*time.Minute) - step
			first, last = min(first, took), max(last, took)
		}
		t.Logf("apart %v, averaged %v: 95 %% of the limit after %v to %v", tt.hermes.Apart, tt.hermes.Averaged, first, last)
		if first < tt.first || last > tt.last {
			t.Errorf("apart %v, averaged %v: 95 %% of the limit after %v to %v, want within %v to %v",
				tt.hermes.Apart, tt.hermes.Averaged, first, last, tt.first, tt.last)
		}
	}
}

// TestHermesFollowsSlowly: a hot spot that moves, in the best case and with moments
// drawn at random.
func TestHermesFollowsSlowly(t *testing.T) {
	for _, tt := range []struct {
		apart    bool
		every    time.Duration
		min, max float64
	}{
		{false, 60 * time.Second, 0.70, 0.75},
		{false, 20 * time.Second, 0.02, 0.10},
		{true, 60 * time.Second, 0.15, 0.75},
		{true, 20 * time.Second, 0, 0.20},
	} {
		for seed := range seeding.Draw(t, 3) {
			l := newLoop(t, Hermes{Apart: tt.apart}, Setup{Limit: perSecond(1000), Instances: 10, RoundTrip: 20 * time.Millisecond}, seed)
			l.demand = func(i int, now time.Duration) float64 {
				if int(now/tt.every)%10 == i {
					return 1000
				}
				return 0
			}
			l.run(360 * time.Second)
			got := l.rate(60*time.Second, 360*time.Second) / 1000
			t.Logf("apart %v, hot spot moves every %v: %.2f of the limit is used", tt.apart, tt.every, got)
			if got < tt.min || got > tt.max {
				t.Errorf("apart %v, hot spot moves every %v: %.2f of the limit is used, want %v to %v", tt.apart, tt.every, got, tt.min, tt.max)
			}
		}
	}
}

// TestHermesDefects: the floor, as it was described.
func TestHermesDefects(t *testing.T) {
	for _, tt := range []struct {
		limit     int64
		instances int
		hot       bool
		want      float64 // of the limit
	}{
		{1, 3, false, 3},
		{10, 96, false, 9.6},
		{10, 10, true, 0.1},
	} {
		l := newLoop(t, Hermes{}, Setup{Limit: perSecond(tt.limit), Instances: tt.instances, RoundTrip: 20 * time.Millisecond}, 1)
		l.demand = func(i int, _ time.Duration) float64 {
			if tt.hot && i > 0 {
				return 0
			}
			return 3 * float64(tt.limit)
		}
		l.run(200 * time.Second)
		got := l.rate(100*time.Second, 200*time.Second) / float64(tt.limit)
		if !near(got, tt.want, 0.05*tt.want) {
			t.Errorf("limit %d, %d instances, one hot %v: %.2f of the limit is used, want %.2f", tt.limit, tt.instances, tt.hot, got, tt.want)
		}
	}
}

// TestHermesStandsStill: the threshold is a part of the limit, a share of 1 % never
// moves.
func TestHermesStandsStill(t *testing.T) {
	l := newLoop(t, Hermes{}, Setup{Limit: perSecond(10_000), Instances: 100, RoundTrip: 20 * time.Millisecond}, 1)
	l.demand = func(i int, _ time.Duration) float64 {
		if i == 0 {
			return 1000
		}
		return 0
	}
	l.run(5 * time.Minute)
	if got := l.instance(0).Share(); !near(got, 100, 1) {
		t.Errorf("the hot one of 100 has %v, want 100: nothing moves", got)
	}
}

func TestHermesMishaps(t *testing.T) {
	setup := Setup{Limit: perSecond(100), Instances: 4, RoundTrip: 20 * time.Millisecond, Old: []bool{3: true}}
	l := newLoop(t, Hermes{}, setup, 1)
	if got := l.instance(0).Share(); got != 1 {
		t.Errorf("a new consumer has %v, want the floor of 1", got)
	}
	if got := l.instance(3).Share(); got != 25 {
		t.Errorf("an old version has %v, want 25", got)
	}
	l.demand = func(i int, _ time.Duration) float64 {
		if i == 0 {
			return 200
		}
		return 0
	}
	l.run(150 * time.Second)
	if got := l.instance(0).Share(); !near(got, 73, 1e-6) {
		t.Errorf("the busy one has %v, want 73: all but the floor of two and the part of the old one", got)
	}

	// The coordinator restarts and knows the shares from ZooKeeper.
	l.start(Coordinator, 1, 2)
	l.run(250 * time.Second)
	if got := l.instance(0).Share(); !near(got, 73, 1e-6) {
		t.Errorf("the busy one has %v after a restart of the coordinator, want 73", got)
	}

	// One leaves: what it had is missing, but it was no more than 1. A new one: all are equal.
	l.instance(1).(Leaver).Leave()
	l.stop(1)
	l.run(300 * time.Second)
	c := l.nodes[Coordinator].node.(*hermesCoordinator)
	if len(c.consumers) != 3 {
		t.Errorf("%d consumers after one left, want 3", len(c.consumers))
	}
	l.stop(2)
	l.run(340 * time.Second)
	if len(c.consumers) != 2 {
		t.Errorf("%d consumers after one crashed, want 2", len(c.consumers))
	}
	l.start(1, 1, 3)
	l.demand = nil
	l.run(420 * time.Second)
	if got := l.instance(0).Share(); !near(got, 100./3, 1e-6) {
		t.Errorf("after a newcomer the first has %v, want a third", got)
	}
	l.instance(3).(LimitSetter).SetLimit(perSecond(200))
	c.SetLimit(perSecond(200))
	l.run(500 * time.Second)
	if got := l.instance(3).Share(); got != 50 {
		t.Errorf("the old version has %v of 200, want 50", got)
	}
}
