package sim

import (
	"context"
	"errors"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

const ms = time.Millisecond

func limitOf(rate, burst int64) Limit { return Limit{limit.PerSecond(rate), burst} }

// steady is a load that asks for rate from the start.
func steady(rate float64) []Step { return []Step{{Rate: rate}} }

func run(t *testing.T, s Scenario, system System) *Result {
	t.Helper()
	r, err := Run(t.Context(), s, system)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func wantLog(t *testing.T, p *probe, want string) {
	t.Helper()
	lines := strings.Split(strings.TrimSpace(want), "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	if !slices.Equal(p.log, lines) {
		t.Errorf("got:\n%s\nwant:\n%s", strings.Join(p.log, "\n"), strings.Join(lines, "\n"))
	}
}

// Setting a clock moves the wall clock alone, at once: of the node named, across a
// restart, and not what an alarm goes by.
func TestClockSteps(t *testing.T) {
	show := func(n *probeNode) {
		n.note("now %v wall %v", time.Duration(n.env.Now()-origin), time.Duration(n.env.Wall()-origin))
	}
	p := &probe{
		coordinator: func(n *probeNode) { show(n); n.env.WakeAt(n.after(30 * ms)) },
		instance:    func(n *probeNode) { show(n); n.env.WakeAt(n.after(25 * ms)) },
		wake:        show,
	}
	run(t, Scenario{
		Limit: limitOf(1, 1), Instances: 2, Duration: 60 * ms, Clocks: []time.Duration{time.Hour, 0}, CoordinatorClock: -time.Second,
		ClockSteps: []ClockStep{
			{0, -1, time.Second}, {20 * ms, 0, -10 * time.Second}, {20 * ms, 0, time.Second}, {50 * ms, 0, time.Hour}, {0, -7, time.Hour},
		},
		Stops: []Stop{{At: 30 * ms, For: 2 * ms, Node: 0}},
	}, p)
	wantLog(t, p, `
		0s -1: start 0
		0s -1: now -1s wall -1s
		0s 0: start 0
		0s 0: now 1h0m0s wall 1h0m0s
		0s 1: start 0
		0s 1: now 0s wall 0s
		25ms 0: wake
		25ms 0: now 1h0m0.025s wall 59m51.025s
		25ms 1: wake
		25ms 1: now 25ms wall 25ms
		30ms -1: wake
		30ms -1: now -970ms wall 30ms
		32ms 0: start 1
		32ms 0: now 1h0m0.032s wall 59m51.032s
		57ms 0: wake
		57ms 0: now 1h0m0.057s wall 1h59m51.057s`)
}

// A message takes the delay, a clock that is wrong shows it, an alarm goes by the
// node's own clock and the latest one counts.
func TestMessagesClocksAndAlarms(t *testing.T) {
	p := &probe{
		coordinator: func(n *probeNode) { n.env.WakeAt(n.after(30 * ms)) },
		instance: func(n *probeNode) {
			n.note("clock %v", time.Duration(n.env.Now()-origin))
			n.env.WakeAt(n.after(5 * ms))
			n.env.WakeAt(n.after(50 * ms))
			n.env.WakeAt(n.after(20 * ms))
			n.env.Send(Coordinator, "hello", 100)
			n.env.Send(Coordinator-1, "nobody", 100)
			n.env.Send(1000, "nobody", 100)
		},
		wake: func(n *probeNode) {
			n.env.WakeAt(n.after(ms))
			n.env.WakeAt(math.MaxInt64)
		},
		receive: func(n *probeNode, from Address, m any) {
			if n.address == Coordinator {
				n.env.Send(from, m.(string)+" back", 50)
			}
		},
	}
	r := run(t, Scenario{
		Limit: limitOf(1, 1), Instances: 2, Duration: 100 * ms, Clocks: []time.Duration{-time.Hour, 250 * ms},
		CoordinatorClock: time.Minute, Network: Network{Delay: 10 * ms},
	}, p)
	wantLog(t, p, `
		0s -1: start 0
		0s 0: start 0
		0s 0: clock -1h0m0s
		0s 1: start 0
		0s 1: clock 250ms
		10ms -1: from 0: hello
		10ms -1: from 1: hello
		20ms 0: wake
		20ms 1: wake
		20ms 0: from -1: hello back
		20ms 1: from -1: hello back
		30ms -1: wake`)
	if r.Messages != 8 || r.Bytes != 700 {
		t.Errorf("%d messages of %d bytes, want 8 of 700", r.Messages, r.Bytes)
	}
	if in := r.Instances[0]; in.MessagesSent != 3 || in.BytesSent != 300 || in.MessagesReceived != 1 || in.BytesReceived != 50 {
		t.Errorf("instance 0: %+v", in)
	}
	if want := 350 * 8.0 / 1000 / 0.1; math.Abs(r.Kbps-want) > 1e-9 || math.Abs(r.KbpsMost-want) > 1e-9 {
		t.Errorf("%v Kbps, most %v, want %v", r.Kbps, r.KbpsMost, want)
	}
}

// A process that is paused does nothing. When it goes on, requests go first, then the
// limit, then messages, then the alarm.
func TestPause(t *testing.T) {
	p := &probe{
		coordinator: func(n *probeNode) { n.env.WakeAt(n.after(40 * ms)) },
		instance:    func(n *probeNode) { n.env.WakeAt(n.after(70 * ms)) },
		wake: func(n *probeNode) {
			if n.address == Coordinator {
				n.env.Send(0, "news", 1)
				n.env.WakeAt(n.after(40 * ms))
			}
		},
	}
	r := run(t, Scenario{
		Limit: limitOf(50, 5), Instances: 1, Duration: 145 * ms, Network: Network{Delay: 5 * ms},
		Changes: []Change{{60 * ms, limitOf(10, 5)}},
		Pauses:  []Pause{{At: 30 * ms, For: 100 * ms, Node: 0, Backlog: 50 * ms}},
		Loads:   []Load{{Demand: steady(50)}},
	}, p)
	wantLog(t, p, `
		0s -1: start 0
		0s 0: start 0
		20ms 0: take 1
		40ms -1: wake
		60ms -1: limit 10/s
		80ms -1: wake
		120ms -1: wake
		130ms 0: take 1
		130ms 0: take 1
		130ms 0: take 1
		130ms 0: limit 10/s
		130ms 0: from -1: news
		130ms 0: from -1: news
		130ms 0: from -1: news
		130ms 0: wake
		140ms 0: take 1`)
	if r.Missed.Requests != 2 || r.Offered.Requests != 5 || r.Admitted.Requests != 5 || r.WaitMost != 50*ms {
		t.Errorf("missed %+v, offered %+v, admitted %+v, longest wait %v", r.Missed, r.Offered, r.Admitted, r.WaitMost)
	}
}

// Two pauses that overlap hold until the later one ends.
func TestPausesOverlap(t *testing.T) {
	p := &probe{instance: func(n *probeNode) { n.env.WakeAt(n.after(20 * ms)) }}
	run(t, Scenario{
		Limit: limitOf(1, 1), Instances: 1, Duration: 100 * ms,
		Pauses: []Pause{{At: 10 * ms, For: 20 * ms}, {At: 15 * ms, For: 35 * ms}, {At: 90 * ms}},
	}, p)
	wantLog(t, p, `
		0s 0: start 0
		50ms 0: wake`)
}

// A process that crashes says nothing, one that stops in good order takes its leave; what
// a node that is gone does has no effect.
func TestStops(t *testing.T) {
	var last *probeNode
	p := &probe{
		coordinator: func(*probeNode) {},
		instance: func(n *probeNode) {
			if last != nil && last.address == n.address {
				last.env.Send(Coordinator, "from the dead", 1)
				last.env.WakeAt(last.after(ms))
			}
			last = n
			n.note("old %v, limit %v", n.setup.Old[n.address], n.setup.Limit.Rate)
			n.env.Send(Coordinator, "up", 1)
			n.env.WakeAt(n.after(40 * ms))
		},
	}
	r := run(t, Scenario{
		Limit: limitOf(1, 1), Instances: 2, Duration: 100 * ms, Old: []bool{false, true}, Network: Network{Delay: 5 * ms},
		Changes: []Change{{30 * ms, limitOf(2, 1)}}, Failover: true, Starts: []time.Duration{200 * ms, 0},
		Stops: []Stop{
			{At: 20 * ms, For: 20 * ms, Node: 1},
			{At: 60 * ms, Node: 1, For: 10 * ms, Orderly: true, Upgrade: true},
			{At: 75 * ms, Node: 1},
		},
		Loads: []Load{{Demand: steady(100), Instances: []int{0}}},
	}, &probeQuiet{p})
	wantLog(t, p, `
		0s -1: start 0
		0s 1: start 0
		0s 1: old true, limit 1/s
		5ms -1: from 1: up
		30ms -1: limit 2/s
		40ms 1: start 1
		40ms 1: old true, limit 2/s
		45ms -1: from 1: up
		60ms 1: leave
		65ms -1: from 1: bye
		70ms 1: start 2
		70ms 1: old false, limit 2/s
		75ms -1: from 1: up`)
	// 100 a second fail over to instance 1 while that is up: at 10, 40, 50
	// and 70 ms, where a stop or start at the same moment goes first.
	if r.Admitted.Requests != 4 || r.Missed.Requests != 5 {
		t.Errorf("admitted %+v, missed %+v", r.Admitted, r.Missed)
	}
}

// probeQuiet does not write down requests.
type probeQuiet struct{ *probe }

func (p *probeQuiet) Instance(env Env, setup Setup, i, restart int) Enforcer {
	p.quiet = true
	return p.probe.Instance(env, setup, i, restart)
}

func TestRollingRestart(t *testing.T) {
	p := &probe{}
	run(t, Scenario{
		Limit: limitOf(1, 1), Instances: 3, Duration: 100 * ms,
		Rolling: []Rolling{{At: 10 * ms, Every: 20 * ms, Down: 5 * ms}, {At: 80 * ms, Down: 5 * ms, Instances: []int{2}, Crash: true}},
	}, p)
	wantLog(t, p, `
		0s 0: start 0
		0s 1: start 0
		0s 2: start 0
		10ms 0: leave
		15ms 0: start 1
		30ms 1: leave
		35ms 1: start 1
		50ms 2: leave
		55ms 2: start 1
		85ms 2: start 2`)
}

// One bucket at the coordinator is exact: with waits, from any instance, it admits
// what the bucket holds and no more, one round trip late.
func TestRemoteBucketIsExact(t *testing.T) {
	s := Scenario{
		Limit: limitOf(100, 10), Instances: 4, Duration: 10 * time.Second, Network: Network{Delay: 20 * ms},
		Loads:   []Load{{Demand: steady(300), Wait: time.Second, Split: Split{Kind: Zipf}}},
		Measure: Measure{From: time.Second},
	}
	r := run(t, s, remote{})
	if r.Over != 0 || r.Peak1 > 1 || r.Peak10 > 1 || r.Use < 0.999 || r.Use > 1.001 || r.T95 != 0 {
		t.Errorf("over %v, peaks %v %v, use %v, t95 %v", r.Over, r.Peak1, r.Peak10, r.Use, r.T95)
	}
	if r.WaitMean != 40*ms || r.WaitMost != 40*ms {
		t.Errorf("waits %v, at most %v, want 40ms", r.WaitMean, r.WaitMost)
	}
	if r.Lost != (Count{}) || r.Held.Requests < 11 || r.Held.Requests > 13 {
		t.Errorf("lost %+v, held %+v", r.Lost, r.Held)
	}
	s.Stops = []Stop{{At: 5 * time.Second, For: time.Second, Node: 0}}
	if r := run(t, s, remote{}); r.Lost.Requests == 0 || r.Missed.Requests == 0 {
		t.Errorf("after a crash: lost %+v, missed %+v", r.Lost, r.Missed)
	}
	s.Loads[0].Wait = 0
	if r := run(t, s, remote{}); r.Admitted != (Count{}) || r.Use != 0 || r.T95 != limit.Never {
		t.Errorf("without waits: %+v, use %v, t95 %v", r.Admitted, r.Use, r.T95)
	}
}

// An equal split uses its part of the limit where the load is on one.
func TestEqualSplitWalkThrough(t *testing.T) {
	s := Scenario{
		Limit: limitOf(100, 10), Instances: 10, Duration: 10 * time.Second, Measure: Measure{From: time.Second},
		Loads: []Load{{Demand: steady(200), Split: Split{Kind: OnOne, Hot: 3}}},
	}
	r := run(t, s, split{})
	if got := r.Instances[3].Admitted; got != r.Admitted || math.Abs(r.Use-0.1) > 0.002 || r.T95 != limit.Never {
		t.Errorf("admitted %+v of %+v, use %v, t95 %v", got, r.Admitted, r.Use, r.T95)
	}
	if r.SharePeak != 1 || math.Abs(r.Lent-1) > 1e-9 {
		t.Errorf("sum of shares at most %v, lent %v", r.SharePeak, r.Lent)
	}
	s.Loads[0].Split = Split{}
	if r := run(t, s, split{}); r.Over != 0 || r.Use < 0.999 || math.Abs(r.Jain-1) > 1e-6 {
		t.Errorf("balanced: over %v, use %v, Jain %v", r.Over, r.Use, r.Jain)
	}
}

func TestRunFails(t *testing.T) {
	s := Scenario{Name: "s", Limit: limitOf(1, 1), Instances: 1, Duration: time.Hour, Loads: []Load{{Demand: steady(1000), Wait: ms}}}
	t.Run("cancelled", func(t *testing.T) {
		ctx, cancel := context.WithCancelCause(t.Context())
		boom := errors.New("boom")
		cancel(boom)
		if _, err := Run(ctx, s, split{}); !errors.Is(err, boom) {
			t.Errorf("%v, want boom", err)
		}
		if _, err := Compare(ctx, s, []System{split{}}, 3); !errors.Is(err, boom) {
			t.Errorf("Compare: %v, want boom", err)
		}
	})
	t.Run("time stands still", func(t *testing.T) {
		p := &probe{instance: func(n *probeNode) { n.env.WakeAt(0) }}
		_, err := Run(t.Context(), s, standing{p})
		if err == nil || !strings.Contains(err.Error(), "time stands still at 0s") {
			t.Errorf("%v", err)
		}
	})
	t.Run("decided twice", func(t *testing.T) {
		p := &probe{within: func(_ *probeNode, _ int64, decided func(bool)) { decided(false); decided(true) }}
		_, err := Run(t.Context(), s, p)
		if err == nil || !strings.Contains(err.Error(), "instance 0 decided twice about a request of 1ms") {
			t.Errorf("%v", err)
		}
	})
	t.Run("not valid", func(t *testing.T) {
		if _, err := Run(t.Context(), Scenario{}, split{}); err == nil {
			t.Error("an empty scenario runs")
		}
	})
}

// standing wakes always at once, and writes nothing down.
type standing struct{ *probe }

func (s standing) Instance(env Env, _ Setup, _, _ int) Enforcer {
	n := &standingNode{env: env}
	n.Wake()
	return n
}

type standingNode struct{ env Env }

func (n *standingNode) Receive(Address, any) {}
func (n *standingNode) Wake()                { n.env.WakeAt(n.env.Now()) }
func (n *standingNode) Take(int64) bool      { return true }
func (n *standingNode) Share() float64       { return 0 }
