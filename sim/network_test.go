package sim

import (
	"math"
	"testing"
	"time"
)

// chatter sends count numbered messages from each instance to the coordinator, one per
// millisecond, and returns when each arrived: by instance, in order of arrival.
func chatter(t *testing.T, s Scenario, count int) (arrived map[Address][]int, delays []time.Duration, r *Result) {
	t.Helper()
	arrived = map[Address][]int{}
	next := map[Address]int{}
	type numbered struct {
		number int
		sent   int64
	}
	p := &probe{
		coordinator: func(*probeNode) {},
		instance:    func(n *probeNode) { n.env.WakeAt(n.after(ms)) },
	}
	p.wake = func(n *probeNode) {
		n.log = nil
		n.env.Send(Coordinator, numbered{next[n.address], n.env.(*env).engine.now}, 1)
		if next[n.address]++; next[n.address] < count {
			n.env.WakeAt(n.after(ms))
		}
	}
	p.receive = func(n *probeNode, from Address, m any) {
		arrived[from] = append(arrived[from], m.(numbered).number)
		delays = append(delays, time.Duration(n.env.(*env).engine.now-m.(numbered).sent))
	}
	s.Limit, s.Duration = limitOf(1, 1), time.Duration(count)*ms+time.Second
	r = run(t, s, p)
	return arrived, delays, r
}

// likely says whether a share of n trials is as probable as p, by five standard
// deviations.
func likely(got int, n int, p float64) bool {
	return math.Abs(float64(got)-float64(n)*p) <= 5*math.Sqrt(float64(n)*p*(1-p))
}

func TestNetworkLosesAndDoubles(t *testing.T) {
	const count = 20_000
	arrived, _, r := chatter(t, Scenario{Instances: 1, Seed: 3, Network: Network{Loss: 0.2, Duplicate: 0.1}}, count)
	times := make([]int, count)
	for _, k := range arrived[0] {
		times[k]++
	}
	of := [4]int{}
	for _, n := range times {
		of[n]++
	}
	if of[3] > 0 || !likely(of[0], count, 0.2) || !likely(of[2], count, 0.08) {
		t.Errorf("arrived 0, 1, 2, 3 times: %v", of)
	}
	if r.Messages != count {
		t.Errorf("%d messages sent, want %d", r.Messages, count)
	}
}

func TestNetworkJitter(t *testing.T) {
	const count = 20_000
	network := Network{Delay: 10 * ms, Jitter: 8 * ms}
	arrived, delays, _ := chatter(t, Scenario{Instances: 1, Network: network}, count)
	sum, least, most := time.Duration(0), delays[0], delays[0]
	for _, d := range delays {
		sum += d
		least, most = min(least, d), max(most, d)
	}
	mean := sum / time.Duration(len(delays))
	if len(delays) != count || least < 10*ms || most >= 18*ms || mean < 13900*time.Microsecond || mean > 14100*time.Microsecond {
		t.Errorf("%d messages took %v to %v, %v on average", len(delays), least, most, mean)
	}
	if overtaken(arrived[0]) == 0 {
		t.Error("no message overtook another")
	}
	network.InOrder = true
	arrived, delays, _ = chatter(t, Scenario{Instances: 3, Network: network}, count/10)
	for a, numbers := range arrived {
		if n := overtaken(numbers); n > 0 || len(numbers) != count/10 {
			t.Errorf("in order: %d of %d messages of %d overtook", n, len(numbers), a)
		}
	}
	for _, d := range delays {
		if d < 10*ms || d >= 18*ms {
			t.Fatalf("in order: a message took %v", d)
		}
	}
}

func overtaken(numbers []int) int {
	n := 0
	for i := 1; i < len(numbers); i++ {
		if numbers[i] < numbers[i-1] {
			n++
		}
	}
	return n
}

// A cut loses what crosses it in its direction, at both ends of its time to a message,
// and nothing else.
func TestPartitions(t *testing.T) {
	p := &probe{
		coordinator: func(n *probeNode) { n.env.WakeAt(n.after(10 * ms)) },
		instance:    func(n *probeNode) { n.env.WakeAt(n.after(10 * ms)) },
		wake: func(n *probeNode) {
			n.log = n.log[:len(n.log)-1]
			for to := Coordinator; to < 3; to++ {
				if to != n.address {
					n.env.Send(to, "m", 1)
				}
			}
			n.env.WakeAt(n.after(10 * ms))
		},
	}
	s := Scenario{Limit: limitOf(1, 1), Instances: 3, Duration: 40 * ms, Network: Network{Delay: 2 * ms}}
	from := func(lines []string, want map[string]int) {
		t.Helper()
		got := map[string]int{}
		for _, l := range lines {
			got[l]++
		}
		for l, n := range want {
			if got[l] != n {
				t.Errorf("%q %d times, want %d", l, got[l], n)
			}
		}
	}
	for _, tt := range []struct {
		cut  Partition
		want map[string]int
	}{
		{Partition{At: 15 * ms, For: 10 * ms, Nodes: []Address{0, 1}}, map[string]int{
			"12ms 0: from -1: m": 1, "22ms 0: from -1: m": 0, "22ms 0: from 2: m": 0, "22ms 2: from 0: m": 0,
			"22ms 0: from 1: m": 1, "22ms 2: from -1: m": 1, "22ms -1: from 1: m": 0, "32ms -1: from 1: m": 1,
		}},
		{Partition{At: 15 * ms, Nodes: []Address{Coordinator}, Cut: Outwards}, map[string]int{
			"22ms 0: from -1: m": 0, "22ms -1: from 0: m": 1, "22ms 0: from 1: m": 1, "32ms 0: from -1: m": 0,
		}},
		{Partition{At: 15 * ms, Nodes: []Address{Coordinator}, Cut: Inwards}, map[string]int{
			"22ms 0: from -1: m": 1, "22ms -1: from 0: m": 0, "22ms 0: from 1: m": 1,
		}},
		// Sent before, arriving within; sent within, arriving after.
		{Partition{At: 11 * ms, For: 2 * ms, Nodes: []Address{0}}, map[string]int{"12ms 0: from -1: m": 0, "22ms 0: from -1: m": 1}},
		{Partition{At: 19 * ms, For: 2 * ms, Nodes: []Address{0}}, map[string]int{"12ms 0: from -1: m": 1, "22ms 0: from -1: m": 0}},
	} {
		p.log = nil
		s.Partitions = []Partition{tt.cut}
		run(t, s, p)
		from(p.log, tt.want)
	}
}
