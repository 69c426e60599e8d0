package sim

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/partition"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/internal/waitline"
	"github.com/stint-io/stint/limit"
)

func splitAt(o OwnSplit, l Limit, instances int) (*lineEnv, Waiter) {
	env := &lineEnv{now: 5e9, wall: 100e9, wake: modelNever}
	return env, o.instance(env, Setup{Limit: l, Instances: instances}, 0).(Waiter)
}

// An instance that has all of 10 per second: a token is due each 100 ms of the clock and
// good until the next one. What is set on the clock is followed by 1 ms a second.
func TestSplitWalkThrough(t *testing.T) {
	env, i := splitAt(OwnSplit{}, limitOf(10, 1), 1)
	for k, step := range []struct {
		pass time.Duration
		set  time.Duration // the wall clock alone
		want bool
	}{
		{0, 0, true}, {0, 0, false}, {99 * ms, 0, false}, {ms, 0, true}, // 100.1
		{350 * ms, 0, true}, {0, 0, false}, {49 * ms, 0, false}, {ms, 0, true}, // 100.5: those not used are gone
		{50 * ms, -10 * time.Second, false}, {49 * ms, 0, false}, {ms, 0, true}, // 100.6
		{399 * ms, 0, true}, {0, 0, false}, {ms, 0, false}, {ms, 0, true}, // a second after the start: 1 ms back
		{0, 20 * time.Second, false}, {899 * ms, 0, true}, {0, 0, false}, {100 * ms, 0, true}, // 1 ms forth again
	} {
		env.pass(step.pass)
		env.wall = env.wall.Add(step.set)
		if got := i.Take(1); got != step.want {
			t.Errorf("step %d, at %v: %v, want %v", k, time.Duration(env.now), got, step.want)
		}
	}
	if i.Share() != 10 {
		t.Errorf("share %v, want 10", i.Share())
	}
	if !i.Take(0) || i.Take(2) {
		t.Error("nothing is free, and two are never there at once")
	}
}

// Windows are those of the wall clock; a controller spreads what is used of them.
func TestSplitWindows(t *testing.T) {
	env, i := splitAt(OwnSplit{Window: time.Second}, limitOf(20, 99), 10)
	env.pass(300 * ms)
	for _, want := range []bool{true, true, false} {
		if i.Take(1) != want {
			t.Errorf("not %v: two of 20 in a second are a tenth's", want)
		}
	}
	env.pass(700 * ms)
	if !i.Take(2) || i.Take(1) {
		t.Error("the next second has two again, at once")
	}
	env, i = splitAt(OwnSplit{Window: time.Second, Pacing: partition.PacePID}, limitOf(20, 1), 1)
	var times []time.Duration
	for range 200*20 - 1 {
		env.pass(5 * ms)
		if i.Take(1) {
			times = append(times, time.Duration(env.now%1e9))
		}
	}
	if n := len(times); n != 400 || times[19] > 100*ms || times[n-1] < 900*ms {
		t.Errorf("%d in 20 s, the first window's last after %v, the last window's after %v", n, times[19], times[n-1])
	}
}

// Those who wait are let go in their order, each when its token is due; who cannot be in
// time is told at once. A change of the limit reaches them.
func TestSplitWaits(t *testing.T) {
	env, i := splitAt(OwnSplit{}, limitOf(10, 1), 1)
	env.pass(400 * ms)
	var log []string
	join := func(name string, wait time.Duration) {
		i.TakeWithin(1, wait, func(admitted bool) {
			log = append(log, fmt.Sprint(name, " ", admitted, " ", time.Duration(env.now-5e9)))
		})
	}
	set := func(l Limit) { i.(LimitSetter).SetLimit(l) }
	join("a", 0)
	join("b", 250*ms)
	join("c", 250*ms)
	join("d", 250*ms) // 100.7 is too late
	join("e", 300*ms)
	if i.Take(1) {
		t.Error("one who does not wait goes before those who do")
	}
	env.until(i, 5e9+550e6)
	set(limitOf(5, 1)) // 100.6 and 100.8: too late for e
	join("f", time.Second)
	env.until(i, 5e9+640e6)
	set(limitOf(20, 1)) // 100.65
	env.until(i, 5e9+660e6)
	join("g", time.Hour)
	join("h", 100*ms)
	set(Limit{Burst: 5}) // nothing ever again
	join("i", time.Hour)
	set(limitOf(1_000_000_000, 1))
	join("j", 0)
	set(limitOf(2_000_000_000, 1)) // more than can be numbered: nothing
	join("k", time.Hour)
	env.until(i, 9e9)
	want := "a true 400ms, d false 400ms, b true 500ms, e false 550ms, c true 600ms, f true 650ms, " +
		"g false 660ms, h false 660ms, i false 660ms, j true 660ms, k false 660ms"
	if got := strings.Join(log, ", "); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
}

// A controller that finds a window used up at its beginning spreads the next one: those
// whose turn is then too late are told when it begins.
func TestSplitWaitsForController(t *testing.T) {
	env, i := splitAt(OwnSplit{Window: time.Second, Pacing: partition.PacePID}, limitOf(20, 1), 1)
	for range 20 {
		i.Take(1)
	}
	env.pass(900 * ms)
	var log []string
	for k := range 3 {
		i.TakeWithin(1, []time.Duration{110 * ms, 140 * ms, 110 * ms}[k], func(admitted bool) {
			log = append(log, fmt.Sprint(k, " ", admitted, " ", time.Duration(env.now-5e9).Round(10*ms)))
		})
	}
	env.until(i, 7e9)
	if got := strings.Join(log, ", "); got != "0 true 1s, 2 false 1s, 1 true 1.03s" {
		t.Errorf("got %s", got)
	}
}

// Each waiter is told once. In a line of random costs and bounds, with limits that
// change, pauses, and windows of all pacings: those who are let go are so in their order and
// in time, and as long as nothing changes who is not told at once is let go. Without
// windows and changes, who is told at once is whom the sum of costs says.
func TestSplitLine(t *testing.T) {
	for seed := range seeding.Draw(t, 300) {
		r := rand.New(rand.NewPCG(seed, 7))
		own := []OwnSplit{{}, {Window: time.Second}, {Window: 100 * ms, Pacing: partition.PaceEven}, {Window: 300 * ms, Pacing: partition.PacePID}}[seed%4]
		changes, late := seed%3 == 0, seed%5 == 0
		kept := !changes && !late && own.Pacing != partition.PacePID // what was said once
		env, i := splitAt(own, limitOf(1+r.Int64N(200), 1+r.Int64N(20)), 1+r.IntN(4))
		n := i.(*ownSplitNode)
		joined, told, last, waits, costs := 0, 0, -1, 0, int64(0)
		for range 400 {
			switch r.IntN(8) {
			case 0, 1:
				env.until(i, env.now.Add(time.Duration(r.Int64N(int64(200*ms)))))
			case 2:
				if late {
					env.pass(time.Duration(r.Int64N(int64(20 * ms)))) // before it wakes
				}
				if env.wake <= env.now {
					env.wake = modelNever
					i.Wake()
				}
			case 3:
				if changes {
					n.SetLimit(limitOf(r.Int64N(200), r.Int64N(20)))
				}
			default:
				k, at, now := joined, env.now, n.now()
				cost, wait := 1+r.Int64N(5)/3, time.Duration(r.Int64N(int64(2*time.Second)))
				earliest := n.split.Earliest(now, costs, cost)
				joined, waits, costs = joined+1, waits+1, costs+cost
				i.TakeWithin(cost, wait, func(admitted bool) {
					told, waits, costs = told+1, waits-1, costs-cost
					switch {
					case admitted && k < last:
						t.Fatalf("seed %d: %d is let go after %d", seed, k, last)
					case admitted && !late && env.now > at.Add(wait):
						t.Fatalf("seed %d: %d waited for %v, and may wait for %v", seed, k, time.Duration(env.now-at), wait)
					case !admitted && kept && env.now != at:
						t.Fatalf("seed %d: %d is told after %v that it waits in vain", seed, k, time.Duration(env.now-at))
					case kept && own.Window == 0 && env.now == at && admitted != (earliest <= now.Add(wait)) && earliest != now:
						t.Fatalf("seed %d: %d: %v, its token is due in %v, and it may wait for %v", seed, k, admitted, time.Duration(earliest-now), wait)
					}
					if admitted {
						last = k
					}
				})
			}
			if waits != inLine(&n.line) || waits > 0 && env.wake > max(n.planned, n.now())-95e9 {
				t.Fatalf("seed %d: %d wait, in line are %d, to be woken at %v", seed, waits, inLine(&n.line), env.wake)
			}
		}
		env.until(i, env.now.Add(5*time.Second))
		if told != joined || last < 10 {
			t.Errorf("seed %d: %d of %d were told, the last that was let go is %d", seed, told, joined, last)
		}
	}
}

// A fleet with right clocks admits at most burst + rate x T, rounded up, in any interval,
// and all of the limit when everybody waits; with clocks that are wrong by whatever, one
// token more for each instance at most. In a window of the clock there is never more than
// the limit, rounded up.
func TestSplitFleet(t *testing.T) {
	for seed := range seeding.Draw(t, 60) {
		r := rand.New(rand.NewPCG(seed, 8))
		n := 1 + r.IntN(30)
		count, period := 1+r.Int64N(300), time.Duration(500+r.Int64N(3000))*ms
		s := Scenario{
			Name: "split", Instances: n, Duration: 20 * time.Second, Seed: seed, Measure: Measure{From: 10 * time.Second},
			Limit: Limit{limit.Rate{Count: count, Period: period}, 1 + r.Int64N(20)},
		}
		rate := s.Limit.PerSecond()
		s.Loads = []Load{{Demand: steady(3*rate + float64(n)), Arrivals: Arrivals(r.IntN(2)), Wait: 8 * time.Second}}
		most := 1.0
		switch seed % 3 {
		case 1:
			most += float64(n)
			for range n {
				s.Clocks = append(s.Clocks, time.Duration(r.Int64N(int64(time.Hour))))
			}
		case 2:
			s.Weights = make([]uint32, n)
			for i := range s.Weights {
				s.Weights[i] = 1 + r.Uint32N(3)
			}
		}
		res := run(t, s, &Ours{Split: &OwnSplit{}})
		if res.Over >= most {
			t.Errorf("seed %d: %v over, want less than %v", seed, res.Over, most)
		}
		if off := rate*10*0.001 + 1 + most; float64(res.Admitted.Tokens) > rate*20+float64(s.Limit.Burst)+off || rate >= float64(n) && res.Mean < 1-off/(rate*10) {
			t.Errorf("seed %d: mean %v of %v/s among %d, admitted %d", seed, res.Mean, rate, n, res.Admitted.Tokens)
		}
		if s.Clocks == nil {
			res := run(t, s, &Ours{Split: &OwnSplit{Window: time.Second, Pacing: partition.Pacing(r.IntN(3))}})
			if aligned := res.Aligned1 * rate; aligned > rate+1 {
				t.Errorf("seed %d: %v in a whole second, of %v", seed, aligned, rate)
			}
		}
	}
}

// A limit that changes for all at one moment is kept before, after and across, and reaches
// those who wait.
func TestSplitChanges(t *testing.T) {
	for seed := range seeding.Draw(t, 20) {
		r := rand.New(rand.NewPCG(seed, 9))
		s := Scenario{
			Name: "split", Limit: limitOf(1+r.Int64N(200), 1+r.Int64N(9)), Instances: 1 + r.IntN(9), Duration: 12 * time.Second, Seed: seed,
			Loads: []Load{{Demand: steady(700), Arrivals: Poisson, Wait: time.Second}},
		}
		for at := time.Second; at < 11*time.Second; at += time.Duration(r.Int64N(int64(2 * time.Second))) {
			s.Changes = append(s.Changes, Change{at, limitOf(r.Int64N(400), 1+r.Int64N(9))})
		}
		res := run(t, s, &Ours{Split: &OwnSplit{}})
		if most := 1 + float64(len(s.Changes)); res.Over > most {
			t.Errorf("seed %d: %v over, want at most %v", seed, res.Over, most)
		}
		if res.Use < 0.9 || res.WaitMost > time.Second {
			t.Errorf("seed %d: use %v, waited for %v", seed, res.Use, res.WaitMost)
		}
	}
}

// What cannot be split admits nothing, and harms nobody.
func TestSplitOfTooMuch(t *testing.T) {
	for _, setup := range []Setup{
		{Limit: limitOf(10, 1), Instances: 3, Weights: []uint32{1, 1 << 31, 1 << 31}},
		{Limit: limitOf(10, 1), Instances: partition.MaxUnits + 1},
		{Limit: limitOf(2_000_000_000, 1), Instances: 2},
		{Limit: Limit{}, Instances: 2},
	} {
		env := &lineEnv{now: 5e9, wall: 100e9, wake: modelNever}
		i := (&OwnSplit{Window: time.Second}).instance(env, setup, 1)
		if i.Take(1) || i.Share() != 0 {
			t.Errorf("%+v: share %v", setup, i.Share())
		}
		i.(Waiter).TakeWithin(1, time.Hour, func(admitted bool) {
			if admitted {
				t.Errorf("%+v: admitted", setup)
			}
		})
		if s, ok := i.(LimitSetter); ok {
			s.SetLimit(limitOf(100, 1))
		}
		env.pass(time.Second)
		i.Wake()
	}
	if got, want := partOf([]uint32{3, 1, 2}, 3, 2), (partition.Part{First: 4, Weight: 2, Of: 6}); got != want {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func inLine(l *waitline.Line[limit.Time]) (n int) {
	l.Review(nil, func(*waitline.Waiter[limit.Time], int64) error {
		n++
		return nil
	})
	return n
}
