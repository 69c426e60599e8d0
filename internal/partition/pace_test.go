package partition

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

// drain takes from s whatever it can between two times, once in each hundredth of a
// window of a second, up to most in all; it returns what came in each tenth.
func drain(s *Limiter, start limit.Time, most int) (tenths [10]int) {
	for at := start; at < start+1000*ms; at += 10 * ms {
		for most > 0 && s.Allow(at, 1) {
			tenths[(at-start)/(100*ms)]++
			most--
		}
	}
	return tenths
}

// TestPaceWalkThrough: permits that all go at the beginning of their windows are spread
// evenly within six windows, and come at once again when there are more than are wanted.
func TestPaceWalkThrough(t *testing.T) {
	s := newSplit(t, Options{Window: time.Second, Pacing: PacePID}, Terms{Total: limit.PerSecond(10000), Part: alike(3, 10)})
	first := drain(s, 0, 1e6)
	if first[0] != 1000 {
		t.Errorf("the first window has %v, want all in its first tenth", first)
	}
	for w := limit.Time(1); w <= 6; w++ {
		drain(s, w*1000*ms, 1e6)
	}
	sum := 0
	for i, n := range drain(s, 7*1000*ms, 1e6) {
		if sum += n; n < 80 || n > 120 {
			t.Errorf("tenth %d of the eighth window has %d, want 80 to 120", i, n)
		}
	}
	if sum < 995 || sum > 1000 {
		t.Errorf("the eighth window has %d, want all 1000", sum)
	}
	for w := limit.Time(8); w <= 13; w++ {
		for at := w * 1000 * ms; at < (w+1)*1000*ms; at += 2 * ms {
			if !s.Allow(at, 1) && w > 11 {
				t.Errorf("with half the demand, evenly: refused at %v, spread %d", at, s.Spread())
			}
		}
	}
	if s.Spread() != 0 {
		t.Errorf("spread %d with half the demand, want 0", s.Spread())
	}
}

// TestPaceSettles: in closed loop with the window that uses up its permits as fast as it
// may, the error is below 2 % after six windows, from wherever the controller is.
func TestPaceSettles(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 1))
	for range 1000 {
		p := pace{spread: rng.Int64N(SpreadWhole + 1), e1: rng.Int64N(SpreadWhole) - SpreadWhole/2, e2: rng.Int64N(SpreadWhole) - SpreadWhole/2}
		for range 6 {
			p.correct(SpreadWhole - p.spread)
		}
		if off := SpreadWhole - p.spread; off > SpreadWhole*2/100 {
			t.Fatalf("%d off after six windows", off)
		}
	}
}

// TestPaceBounded: no error, however often, takes the spread out of its range or winds the
// controller up: after any history the permits come at once within three windows that
// nobody wanted, and are spread within six that were used up.
func TestPaceBounded(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 500 {
		var p pace
		for range rng.IntN(2000) {
			p.correct(rng.Int64N(2*SpreadWhole+1) - SpreadWhole)
			if p.spread < 0 || p.spread > SpreadWhole {
				t.Fatalf("spread %d", p.spread)
			}
		}
		q := p
		for range 3 {
			p.correct(-SpreadWhole)
		}
		for range 6 {
			q.correct(SpreadWhole - q.spread)
		}
		if p.spread != 0 || q.spread < SpreadWhole*98/100 {
			t.Fatalf("spread %d and %d, want 0 and nearly %d", p.spread, q.spread, SpreadWhole)
		}
	}
}

// TestPaceRoots: the roots of the loop's polynomial are where the documentation says.
func TestPaceRoots(t *testing.T) {
	ki, kp, kd := float64(paceKi)/SpreadWhole, float64(paceKp)/SpreadWhole, float64(paceKd)/SpreadWhole
	for _, root := range []float64{0.448, 0.249, -0.447} {
		f := func(z float64) float64 { return z*z*z - (1-ki-kp-kd)*z*z - (kp+2*kd)*z + kd }
		if f(root-0.01)*f(root+0.01) > 0 {
			t.Errorf("no root near %v", root)
		}
	}
}

// TestPaceNeverOver: however the controller moves the permits, a window has at most its
// own, and what one window leaves another does not get.
func TestPaceNeverOver(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 3))
	for range 50 {
		n := 1 + rng.Int64N(5)
		total := limit.PerSecond(1 + rng.Int64N(500))
		windows := map[limit.Time]int64{}
		for i := range n {
			s := newSplit(t, Options{Window: time.Second, Pacing: PacePID}, Terms{Total: total, Part: alike(i, n)})
			for at := limit.Time(0); at < 20*1000*ms; at += limit.Time(rng.Int64N(int64(100 * ms))) {
				for rng.IntN(10) > 0 && s.Allow(at, 1) {
					windows[at/(1000*ms)]++
				}
			}
		}
		for w, n := range windows {
			if n > total.Count {
				t.Fatalf("window %d has %d of %v", w, n, total)
			}
		}
	}
}

func TestPaceShare(t *testing.T) {
	for _, tt := range []struct{ part, all, want int64 }{
		{0, 5, 0}, {5, 5, SpreadWhole}, {1, 2, SpreadWhole / 2}, {math.MaxInt64 / 2, math.MaxInt64, SpreadWhole / 2}, {1, math.MaxInt64, 0},
	} {
		if got := paceShare(tt.part, tt.all); got < tt.want-1 || got > tt.want {
			t.Errorf("paceShare(%d, %d) = %d, want %d", tt.part, tt.all, got, tt.want)
		}
	}
}

// TestPhase: whatever the wall clock says, the time runs at its rate to one part in a
// thousand and never goes back by more than a step; and it gets to where a wall clock
// that stays is, or with windows to a whole number of windows from it.
func TestPhase(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 4))
	for round := range 200 {
		window := limit.Time(0)
		if round%2 == 0 {
			window = 1000 * ms
		}
		mono, wall := limit.Time(rng.Int64N(1e12)), limit.Time(1.8e18)
		p := NewPhase(mono, wall)
		begin := mono + p.Shift()
		elapsed := limit.Time(0)
		for range 200 {
			step := limit.Time(rng.Int64N(int64(3 * PhaseEvery)))
			mono += step
			elapsed += step
			p.Adjust(mono, limit.Time(rng.Int64()), window)
			run := mono + p.Shift() - begin
			if off := max(run-elapsed, elapsed-run); off > elapsed/1000 {
				t.Fatalf("off by %d after %d", off, elapsed)
			}
		}
		off := limit.Time(rng.Int64N(int64(window + 1000*ms)))
		for range 2100 {
			mono += PhaseEvery
			p.Adjust(mono, mono+p.Shift()+off, window)
			if window == 0 {
				off -= min(off, PhaseStep)
			}
		}
		for range 600 {
			mono += PhaseEvery
			p.Adjust(mono, mono+wall, window)
		}
		if window > 0 && (mono+p.Shift()-mono-wall)%window != 0 {
			t.Fatalf("off by %v of %v", (p.Shift()-wall)%window, window)
		}
	}
	p := NewPhase(5, 100)
	for range 10000 {
		p.Adjust(5, 1e15, 0)
	}
	if p.Shift() != 95 {
		t.Errorf("looked more often than each %d", PhaseEvery)
	}
	p = NewPhase(0, 1e18)
	mono := limit.Time(0)
	for range 250 {
		mono += PhaseEvery
		p.Adjust(mono, 1e18+mono-250*ms, 0)
	}
	if p.Shift() != 1e18-250*ms {
		t.Errorf("shift %d after 250 s", p.Shift())
	}
}

// TestPhaseMovesToTheNearest: one look moves the time by a step at most, towards the wall clock or,
// with a window, towards the nearest moment that is at the same place in its window; never away.
func TestPhaseMovesToTheNearest(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const window = 100 * ms
	for _, tt := range []struct{ off, window, moved limit.Time }{
		{0, 0, 0},
		{1, 0, 1},
		{-1, 0, -1},
		{PhaseStep - 1, 0, PhaseStep - 1},
		{PhaseStep + 1, 0, PhaseStep},
		{-PhaseStep - 1, 0, -PhaseStep},
		{60 * ms, 0, PhaseStep},
		{60 * ms, window, -PhaseStep},
		{-60 * ms, window, PhaseStep},
		{40 * ms, window, PhaseStep},
		{-40 * ms, window, -PhaseStep},
		{window, window, 0},
		{-window, window, 0},
		{window + 1, window, 1},
		{-window - 1, window, -1},
		{window - 1, window, -1},
		{1 - window, window, 1},
		{window / 2, window, PhaseStep},
		{window/2 + 1, window, -PhaseStep},
		{-window / 2, window, -PhaseStep},
		{-window/2 - 1, window, PhaseStep},
		{7*window + 60*ms, window, -PhaseStep},
		{-7*window - 60*ms, window, PhaseStep},
	} {
		p := NewPhase(0, 1e18)
		mono := PhaseEvery
		if p.Adjust(mono-1, 5, tt.window); p.Shift() != 1e18 || p.Due(mono-1) || !p.Due(mono) {
			t.Errorf("it looks before %v have passed", time.Duration(PhaseEvery))
		}
		p.Adjust(mono, mono+1e18+tt.off, tt.window)
		if moved := p.Shift() - 1e18; moved != tt.moved {
			t.Errorf("off by %d in windows of %d it moves by %d, want %d", tt.off, tt.window, moved, tt.moved)
		}
	}
}

// TestPaceWithoutItsWindow: what is used at a time before the window that is counted, as by a clock
// that steps back, is used and not counted; the controller goes on.
func TestPaceWithoutItsWindow(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	s := newSplit(t, Options{Window: time.Second, Pacing: PacePID}, Terms{Total: limit.Rate{Count: 100, Period: time.Second}, Part: Part{0, 1, 1}})
	for now := limit.Time(0); now < 20*second; now += 10 * ms {
		s.Allow(now, 1)
		s.Allow(max(0, now-1500*ms), 1)
	}
	if got := s.Spread(); got <= 0 || got > SpreadWhole {
		t.Errorf("a spread of %d", got)
	}
	p := pace{begin: second, began: true}
	p.admit(second-1, second, 3)
	p.admit(second, second, 1)
	p.admit(2*second-1, second, 2)
	p.admit(2*second, second, 5)
	if want := [slots]int64{0: 1, slots - 1: 2}; p.used != want {
		t.Errorf("%v were counted, want %v", p.used, want)
	}
}

// TestPaceIsTheController: the spread follows its formula, computed in real numbers here, whatever the
// errors are, as long as it is within its bounds.
func TestPaceIsTheController(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	rng := rand.New(rand.NewPCG(1, 5))
	for range 500 {
		p := pace{spread: SpreadWhole / 2}
		u, e1, e2 := 0.5, 0.0, 0.0
		for step := range 10 {
			e := (rng.Float64() - 0.5) / 10
			p.correct(int64(e * SpreadWhole))
			u += 0.6*e + 0.1*(e-e1) + 0.05*(e-2*e1+e2)
			if e1, e2 = e, e1; u < 0.01 || u > 0.99 {
				break
			}
			if off := float64(p.spread)/SpreadWhole - u; off > 1e-3 || off < -1e-3 {
				t.Fatalf("a spread of %.5f after %d errors, want %.5f", float64(p.spread)/SpreadWhole, step+1, u)
			}
		}
	}
}
