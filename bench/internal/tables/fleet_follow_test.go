package tables

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/bench/internal/fleet"
)

// Ten real processes whose demands change are never over, and their leases come near what
// is exact before the next change. How soon, a machine that does other work cannot say.
func TestFollow(t *testing.T) {
	t.Parallel() // with the other fleets: their processes mostly wait
	cfg := tinyWithStint(t)
	cfg.FollowFleets, cfg.FollowChanges = 1, 2
	results, err := follow(cfg)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	writeFollow(&Report{Out: &out}, results)
	t.Log(&out)
	r := results[0]
	if over := r.run.SurelyOver(); over > 0 {
		t.Errorf("%v tokens over", over)
	}
	if _, admitted := r.run.Requests(); admitted == 0 || len(r.changes) != 2 {
		t.Errorf("%d admitted, %d changes", admitted, len(r.changes))
	}
	for _, c := range undisturbed(r.changes) {
		if c.last > 0.25 {
			t.Errorf("before the change that came after the one of number %d a lease was off by %.0f %%", c.change, 100*c.last)
		}
	}
}

// steady is what one process got of the limit of d in [0, to): so many admitted and
// refused per second, and a lease of rate.
func steady(d *demands, process int, to int64, admitted, refused int, rate float64) *fleet.Log {
	r := &fleet.Record{Refused: map[int64]int64{}}
	second := int64(time.Second)
	for i := range int64(admitted) * to / second {
		at := i * second / int64(admitted)
		r.Admitted = append(r.Admitted, fleet.Admission{Asked: at, Answered: at})
	}
	for i := range int64(refused) * to / second {
		r.Refused[i*second/int64(refused)/int64(fleet.Bin)]++
	}
	for at := int64(0); at < to; at += int64(followWatch) {
		r.Held = append(r.Held, fleet.Held{At: at, Rate: rate})
	}
	return &fleet.Log{Instance: process, Limits: map[string]*fleet.Record{followLimit(d): r}}
}

// judged is how the only change of d was followed.
func judged(d *demands, logs ...*fleet.Log) followedChange {
	runs, records := make([]*fleet.Run, len(logs)), make([]fleet.Record, len(logs))
	for i, l := range logs {
		runs[i] = fleet.Gather([]*fleet.Log{l}, followLimit(d), 0, 0, false)
		records[i] = *l.Limits[followLimit(d)]
	}
	return d.judge(1, 0, runs, records)
}

func TestJudge(t *testing.T) {
	// 100/s by weights 1 and 3 after 20 is taken: the level is 20 for each weight.
	d := &demands{rate: 100, weights: []uint32{1, 3, 1}, loops: []bool{false, false, true}, end: 10 * time.Second}
	d.changes = []change{{0, []float64{50, 100, 20}}, {0, []float64{50, 100, 20}}}
	if e := d.exact(1); math.Abs(e[0]-20) > 1e-9 || math.Abs(e[1]-60) > 1e-9 || math.Abs(e[2]-20) > 1e-9 {
		t.Fatalf("exact is %v", e)
	}
	end := int64(d.end)
	first, second, third := steady(d, 0, end, 20, 30, 20), steady(d, 1, end, 60, 40, 60), steady(d, 2, end, 20, 0, 20)
	if c := judged(d, first, second, third); c.whole > 0.001 || c.half > 0.001 || c.last > 0 {
		t.Errorf("what is exact is off by %+v", c)
	}
	if c := judged(d, steady(d, 0, end, 20, 30, 21), second, third); math.Abs(c.whole-0.05) > 1e-9 || math.Abs(c.last-0.05) > 1e-9 {
		t.Errorf("a lease 5 %% too large: %+v", c)
	}
	if c := judged(d, first, steady(d, 1, end, 54, 46, 60), third); math.Abs(c.whole-0.1) > 0.005 || !strings.Contains(c.about, "process 1") {
		t.Errorf("a tenth of a lease is not admitted: %+v", c)
	}
	// The loop waits for 4 of 9 seconds from 1 s on: 80 of the 180 that it wants.
	waits := steady(d, 2, end, 20, 0, 20)
	r := waits.Limits[followLimit(d)]
	r.Admitted = r.Admitted[:120]
	r.Waiting = int64(6 * time.Second)
	if c := judged(d, first, second, waits); math.Abs(c.whole-3*79.0/180) > 0.01 {
		t.Errorf("a loop that waits for 4 of 9 s: %+v", c)
	}
	// What comes right after the first half second counts from 0.5 s on only.
	early := steady(d, 0, end, 20, 30, 20)
	for i := range early.Limits[followLimit(d)].Held[:15] {
		early.Limits[followLimit(d)].Held[i].Rate = 10
	}
	if c := judged(d, early, second, third); math.Abs(c.half-0.5) > 1e-9 || c.whole > 0.001 {
		t.Errorf("off until 0.75 s: %+v", c)
	}
}

// The demands drawn change, fit what a machine can ask for, and have all kinds.
func TestDrawDemands(t *testing.T) {
	loops, weights := 0, 0
	for seed := range uint64(200) {
		d := drawDemands(seed, followProcesses, 10)
		for k, c := range d.changes {
			sum := 0.0
			for _, got := range d.exact(k) {
				sum += got
			}
			if len(c.wants) != followProcesses || sum > float64(d.rate)*(1+1e-9) || d.until(k)-c.at < 2*time.Second {
				t.Fatalf("seed %d, change %d: %+v, %v divided of %d", seed, k, c, sum, d.rate)
			}
		}
		for i := range d.loops {
			if d.loops[i] {
				loops++
			}
			if d.weights[i] > 1 {
				weights++
			}
		}
		for p := range d.loops {
			loads := d.loads(p, 0)
			for k, c := range d.changes {
				asked := 0.0
				for _, l := range loads {
					if middle := int64(c.at+d.until(k)) / 2; l.From <= middle && middle < l.To {
						asked += l.PerSecond
					}
				}
				if asked != c.wants[p] {
					t.Fatalf("seed %d: process %d is to ask for %v of the %v that it wants after change %d: %+v", seed, p, asked, c.wants[p], k, loads)
				}
			}
		}
	}
	if loops < 400 || loops > 600 || weights < 300 || weights > 700 {
		t.Errorf("of 2,000 processes %d are loops and %d have a weight", loops, weights)
	}
}
