package sim

import (
	"math"
	"testing"
	"time"
)

// spread is the largest relative error of what the processes believe the sum to be.
func spread(l *loop, gossip func(Enforcer) *pushSum) float64 {
	sum := 0.0
	for i := range l.by {
		sum += gossip(l.instance(i)).value
	}
	worst := 0.0
	for i := range l.by {
		g := gossip(l.instance(i))
		worst = max(worst, math.Abs(g.others+g.value-sum)/sum)
	}
	return worst
}

func TestPushSum(t *testing.T) {
	for _, tt := range []struct {
		n      int
		rtt    time.Duration
		loss   uint64 // every so many messages one is lost; 0 = none
		within float64
	}{
		{2, 40 * time.Millisecond, 0, 1e-9},
		{4, 40 * time.Millisecond, 0, 1e-9},
		{10, 40 * time.Millisecond, 0, 0.01},
		{96, 50 * time.Millisecond, 0, 0.01},
		{96, 200 * time.Millisecond, 0, 0.01},
		{490, 50 * time.Millisecond, 0, 0.01},
		{490, 50 * time.Millisecond, 5, 0.5},
	} {
		weights := make([]uint32, tt.n)
		for i := range weights {
			weights[i] = 1
		}
		weights[0] = 1000 // nearly all at one
		l := newLoop(t, FlowProportionalShare{Peers: raghavanPeers}, Setup{Limit: perSecond(10_000), Instances: tt.n, Weights: weights, RoundTrip: tt.rtt}, 5)
		sent := uint64(0)
		l.drop = func(Address, Address, any) bool {
			sent++
			return tt.loss > 0 && sent*2654435761%4294967296/16%tt.loss == 0
		}
		for i := range l.by { // the weights stay: there is always too much demand
			f := l.instance(i).(*flowInstance)
			f.smoothing = 0
			f.gossip.others = 1
		}
		end := time.Duration(3*(20+tt.n/100)) * raghavanInterval
		l.run(end)
		if got := spread(l, func(e Enforcer) *pushSum { return e.(*flowInstance).gossip }); got > tt.within {
			t.Errorf("%d processes, round trip %v, loss %d: error of the sum is %.4f, want at most %v", tt.n, tt.rtt, tt.loss, got, tt.within)
		}
	}
}

// TestGossipTraffic: the published figure is 23 Kbps for each limiter.
func TestGossipTraffic(t *testing.T) {
	for _, tt := range []struct {
		drop      GlobalRandomDrop
		instances int
		kbps      float64
	}{
		{GlobalRandomDrop{}, 490, 23},
		{GlobalRandomDrop{Peers: raghavanPeers}, 20, 23},
		{GlobalRandomDrop{}, 20, 23.0 / 3 * 19}, // to all others
	} {
		l := newLoop(t, tt.drop, Setup{Limit: perSecond(1000), Instances: tt.instances, RoundTrip: 40 * time.Millisecond}, 1)
		l.run(10 * time.Second)
		if kbps := float64(l.bytes[0]) * 8 / 1000 / 10; !near(kbps, tt.kbps, tt.kbps/100) {
			t.Errorf("%s: one of %d limiters sends %.2f Kbps, want %.2f", tt.drop.Name(), tt.instances, kbps, tt.kbps)
		}
	}
}

// TestFlowProportionalShare: 7 and 3 flows behind two limiters.
func TestFlowProportionalShare(t *testing.T) {
	l := newLoop(t, FlowProportionalShare{}, Setup{Limit: perSecond(1000), Instances: 2, Weights: []uint32{7, 3}, RoundTrip: 40 * time.Millisecond}, 1)
	l.demand = func(int, time.Duration) float64 { return 1500 }
	l.run(20 * time.Second)
	if a, b := l.instance(0).Share(), l.instance(1).Share(); !near(a, 700, 1) || !near(b, 300, 1) {
		t.Errorf("7 and 3 flows have %v and %v, want 700 and 300", a, b)
	}
	if got := l.rate(10*time.Second, 20*time.Second); !near(got, 1000, 10) {
		t.Errorf("%v per second in all, want 1000", got)
	}
}

// TestFlowProportionalShareMoves: who is below its limit leaves the rest to others.
func TestFlowProportionalShareMoves(t *testing.T) {
	for _, n := range unlessLong(2, []int{2, 10, 96}) {
		l := newLoop(t, FlowProportionalShare{}, Setup{Limit: perSecond(1000), Instances: n, RoundTrip: 40 * time.Millisecond}, 1)
		const step = 10 * time.Second
		l.demand = func(i int, now time.Duration) float64 {
			switch {
			case now < step:
				return 1100 / float64(n)
			case i == 0:
				return 1100
			}
			return 0
		}
		l.run(step)
		took := l.reach(0, 950, step+time.Minute) - step
		t.Logf("%d limiters: 95 %% of the limit after %v", n, took)
		if took < 300*time.Millisecond || took > 8*time.Second {
			t.Errorf("%d limiters: 95 %% of the limit after %v, want within seconds", n, took)
		}
		l.run(step + 70*time.Second)
		if got := l.rate(step+30*time.Second, step+70*time.Second); !near(got, 1000, 20) {
			t.Errorf("%d limiters: %v per second in the end, want 1000", n, got)
		}
	}
}

// TestGlobalRandomDrop: a step to 100 times the limit, every 50 ms and every 500 ms.
func TestGlobalRandomDrop(t *testing.T) {
	for _, tt := range unlessLong(2, []struct {
		instances            int
		interval             time.Duration
		worstMin, worstMax   float64 // of the limit, in one second
		settledMin, settledB time.Duration
	}{
		{4, 50 * time.Millisecond, 6, 10, 500 * time.Millisecond, 4 * time.Second},
		{4, 500 * time.Millisecond, 40, 101, 5 * time.Second, 20 * time.Second},
		{20, 50 * time.Millisecond, 6, 60, 500 * time.Millisecond, 6 * time.Second},
	}) {
		const limit, step = 1000, 10 * time.Second
		l := newLoop(t, GlobalRandomDrop{Interval: tt.interval}, Setup{Limit: perSecond(limit), Instances: tt.instances, RoundTrip: 20 * time.Millisecond}, 1)
		l.demand = func(_ int, now time.Duration) float64 {
			if now < step {
				return limit / 2 / float64(tt.instances)
			}
			return limit * 100 / float64(tt.instances)
		}
		l.run(40 * time.Second)
		if got := l.rate(0, step); !near(got, limit/2, 10) {
			t.Errorf("%d limiters, interval %v: %v per second below the limit, want all %v", tt.instances, tt.interval, got, limit/2)
		}
		worst := float64(l.worst(step, step+20*time.Second)) / limit
		settled := 30 * time.Second
		for at := settled; at > 0; at -= 100 * time.Millisecond {
			if l.worst(step+at, step+30*time.Second) > 1.15*limit {
				break
			}
			settled = at
		}
		t.Logf("%d limiters, interval %v: worst second %.1f of the limit, settled after %v", tt.instances, tt.interval, worst, settled)
		if worst < tt.worstMin || worst > tt.worstMax {
			t.Errorf("%d limiters, interval %v: worst second is %.1f of the limit, want %v to %v", tt.instances, tt.interval, worst, tt.worstMin, tt.worstMax)
		}
		if settled < tt.settledMin || settled > tt.settledB {
			t.Errorf("%d limiters, interval %v: settled after %v, want %v to %v", tt.instances, tt.interval, settled, tt.settledMin, tt.settledB)
		}
		if got := l.rate(30*time.Second, 40*time.Second); !near(got, limit, 40) {
			t.Errorf("%d limiters, interval %v: %v per second in the end, want %v", tt.instances, tt.interval, got, limit)
		}
	}
}

func TestGlobalRandomDropOfNothing(t *testing.T) {
	l := newLoop(t, GlobalRandomDrop{}, Setup{Instances: 3}, 1)
	l.demand = func(int, time.Duration) float64 { return 10 }
	l.run(5 * time.Second)
	if len(l.admits) > 0 {
		t.Errorf("a limit of 0 admitted %d", len(l.admits))
	}
	for i := range 3 {
		l.instance(i).(LimitSetter).SetLimit(perSecond(1000))
	}
	l.run(6 * time.Second)
	if got := l.rate(5*time.Second, 6*time.Second); !near(got, 30, 1) {
		t.Errorf("%v per second under a raised limit, want 30", got)
	}
}
