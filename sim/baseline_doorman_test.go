package sim

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
)

// settle asks for each client in turn until nothing changes and returns what each has.
func settle(kind DoormanKind, capacity float64, clients []doormanLease) []float64 {
	known := make([]bool, len(clients))
	for range 2 * len(clients) {
		for i := range clients {
			var others []doormanLease
			for j := range clients {
				if j != i && known[j] {
					others = append(others, clients[j])
				}
			}
			var old *doormanLease
			if known[i] {
				old = &clients[i]
			}
			clients[i].has = doormanGrant(kind, capacity, others, old, clients[i])
			known[i] = true
		}
	}
	has := make([]float64, len(clients))
	for i, c := range clients {
		has[i] = c.has
	}
	return has
}

func TestDoormanShares(t *testing.T) {
	wants := func(w ...float64) []doormanLease {
		clients := make([]doormanLease, len(w))
		for i := range w {
			clients[i] = doormanLease{wants: w[i], subclients: 1}
		}
		return clients
	}
	for _, tt := range []struct {
		name     string
		kind     DoormanKind
		capacity float64
		clients  []doormanLease
		want     []float64
	}{
		{"proportional", ProportionalShare, 120, wants(1000, 50, 10), []float64{69.69, 40.31, 10}},
		{"fair", FairShare, 120, wants(1000, 50, 10), []float64{60, 50, 10}},
		{"proportional, enough for all", ProportionalShare, 120, wants(60, 50, 10), []float64{60, 50, 10}},
		{"fair, enough for all", FairShare, 120, wants(60, 50, 10), []float64{60, 50, 10}},
		{"proportional, all want the same", ProportionalShare, 120, wants(80, 80, 80), []float64{40, 40, 40}},
		{"fair, subclients", FairShare, 100, []doormanLease{{wants: 200, subclients: 3}, {wants: 200, subclients: 1}}, []float64{75, 25}},
		// A third round would give the last two 62 each.
		{"fair stops at two rounds", FairShare, 250, wants(10, 55, 61, 1000, 1000), []float64{10, 55, 61, 61.667, 61.667}},
	} {
		got := settle(tt.kind, tt.capacity, tt.clients)
		for i := range got {
			if !near(got[i], tt.want[i], 0.005) {
				t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
				break
			}
		}
	}
}

// TestDoormanTakesFirstGivesLater: nobody gets what another holds.
func TestDoormanTakesFirstGivesLater(t *testing.T) {
	first := doormanLease{has: 100, wants: 100, subclients: 1}
	second := doormanLease{wants: 100, subclients: 1}
	for _, kind := range []DoormanKind{ProportionalShare, FairShare} {
		if got := doormanGrant(kind, 100, []doormanLease{first}, nil, second); got != 0 {
			t.Errorf("kind %d: a newcomer gets %v, want 0: all is held", kind, got)
		}
		if got := doormanGrant(kind, 20, []doormanLease{first}, nil, second); got != 0 {
			t.Errorf("kind %d: a newcomer gets %v of a capacity that was cut, want 0", kind, got)
		}
	}
}

func TestDoormanMovesShareWithinTwoRefreshes(t *testing.T) {
	for _, kind := range []DoormanKind{ProportionalShare, FairShare} {
		for _, tt := range []struct{ refresh, first, last time.Duration }{
			{5 * time.Second, 2 * time.Second, 12 * time.Second},
			{16 * time.Second, 6 * time.Second, 36 * time.Second},
		} {
			first, last, sum := time.Hour, time.Duration(0), time.Duration(0)
			const seeds = 8
			for seed := range seeding.Draw(t, seeds) {
				const step = 80 * time.Second
				l := newLoop(t, Doorman{Kind: kind, Refresh: tt.refresh}, Setup{Limit: perSecond(1000), Instances: 10, RoundTrip: 50 * time.Millisecond}, seed)
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
				if got := l.shares(); !near(got, 1000, 20) {
					t.Fatalf("%v is lent of 1000", got)
				}
				took := l.reach(0, 950, step+2*time.Minute) - step
				first, last, sum = min(first, took), max(last, took), sum+took
			}
			t.Logf("kind %d, refresh %v: 95 %% after %v to %v, mean %v", kind, tt.refresh, first, last, sum/seeds)
			if first < tt.first || last > tt.last {
				t.Errorf("kind %d, refresh %v: 95 %% after %v to %v, want within %v to %v", kind, tt.refresh, first, last, tt.first, tt.last)
			}
		}
	}
}

// TestDoormanServerDies: leases go on, end in safe mode, and a server that comes back
// learns for the length of a lease.
func TestDoormanServerDies(t *testing.T) {
	l := newLoop(t, Doorman{}, Setup{Limit: perSecond(100), Instances: 4, RoundTrip: 50 * time.Millisecond}, 7)
	l.demand = func(i int, _ time.Duration) float64 {
		if i == 0 {
			return 100
		}
		return 0
	}
	l.run(60 * time.Second)
	if got := l.instance(0).Share(); !near(got, 100, 2) {
		t.Fatalf("the only one with demand has %v, want 100", got)
	}
	l.stop(Coordinator)
	l.run(110 * time.Second)
	if got := l.instance(0).Share(); !near(got, 100, 2) {
		t.Errorf("a lease without a server is %v after 50 s, want 100", got)
	}
	l.run(125 * time.Second)
	for i := range 4 {
		if got := l.instance(i).Share(); got != 25 {
			t.Errorf("client %d has %v without a lease, want the safe capacity of 25", i, got)
		}
	}

	l = newLoop(t, Doorman{}, l.setup, 7)
	l.demand = func(i int, now time.Duration) float64 {
		switch {
		case i == 0 && now < 62*time.Second, i == 1 && now >= 62*time.Second:
			return 100
		}
		return 0
	}
	l.run(60 * time.Second)
	l.start(Coordinator, 1, 8)
	l.run(115 * time.Second)
	if a, b := l.instance(0).Share(), l.instance(1).Share(); !near(a, 100, 2) || !near(b, 0, 2) {
		t.Errorf("while the server learns, clients have %v and %v, want 100 and 0", a, b)
	}
	l.run(140 * time.Second)
	if a, b := l.instance(0).Share(), l.instance(1).Share(); !near(a, 0, 2) || !near(b, 100, 2) {
		t.Errorf("after it has learned, clients have %v and %v, want 0 and 100", a, b)
	}
}

func TestDoormanRepeatsAndReleases(t *testing.T) {
	l := newLoop(t, Doorman{}, Setup{Limit: perSecond(90), Instances: 3, RoundTrip: 50 * time.Millisecond, Old: []bool{2: true}}, 3)
	l.stop(0)
	l.run(70 * time.Second) // what it had has expired
	lost := 0
	l.drop = func(from, _ Address, _ any) bool {
		if from == 0 && lost < 2 {
			lost++
			return true
		}
		return false
	}
	l.start(0, 1, 3)
	l.run(72 * time.Second)
	if got := l.instance(0).Share(); got != 0 {
		t.Fatalf("a client whose requests were lost has %v", got)
	}
	l.run(72400 * time.Millisecond) // 1 s, then 1.3 s
	if got := l.instance(0).Share(); got != 30 {
		t.Errorf("after two repetitions the client has %v, want 30", got)
	}
	l.run(90 * time.Second)
	if a, b := l.instance(0).Share(), l.instance(2).Share(); a != 0 || b != 30 {
		t.Errorf("without demand a client has %v and an old one %v, want 0 and 30", a, b)
	}
	l.instance(2).(Leaver).Leave()
	l.stop(2)
	l.run(91 * time.Second)
	for _, c := range l.nodes[Coordinator].node.(*doormanServer).clients {
		if c.address == 2 {
			t.Errorf("the server still counts %+v, which has released", c)
		}
	}
	l.nodes[Coordinator].node.(LimitSetter).SetLimit(perSecond(40))
	l.demand = func(int, time.Duration) float64 { return 1000 }
	l.run(110 * time.Second)
	if got := l.shares(); !near(got, 40, 1e-6) {
		t.Errorf("%v is lent of a new limit of 40", got)
	}
}
