package rlqs

import (
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
)

// TestBound: Envoys that come, go, start anew, lose their streams and come back, loads that change at any
// moment, messages that take up to Delivery, and a server that is killed and starts again. At every
// request all together have admitted at most the bound more than one bucket with the limit.
func TestBound(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	worst := 0.0
	n := runs(t, 8)
	kills, losses, restarts, changes := 0, 0, 0, 0
	for seed := range seeding.Draw(t, n) {
		rate := int64(20) << (seed % 6)
		w := newWorld(t, seed, termsOf(rate, max(2, rate*int64(1+seed%4)/2)))
		w.delay = time.Duration(w.rand.Int64N(int64(Delivery * 2 / 3)))
		count := 1 + w.rand.IntN(12)
		for range count {
			w.addEnvoy(w.drawRate())
		}
		for range 60 {
			w.run(time.Duration(w.rand.ExpFloat64() * float64(3*time.Second)))
			e := w.envoys[w.rand.IntN(len(w.envoys))]
			switch w.rand.IntN(10) {
			case 0:
				e.lose()
				losses++
			case 1:
				e.restart() // a process that stops; what it was assigned is nobody's then
				restarts++
			case 2:
				if w.up && w.rand.IntN(3) == 0 {
					w.kill()
					w.run(time.Duration(w.rand.Int64N(int64(4 * time.Second))))
					w.start()
					kills++
				}
			case 3:
				if len(w.envoys) < 16 {
					w.addEnvoy(w.drawRate())
				}
			case 4:
				for _, e := range w.envoys {
					e.load(w.drawRate())
				}
			default:
				e.load(w.drawRate())
				changes++
			}
		}
		worst = max(worst, w.worst/w.terms.Burst.Float())
		w.check(seed)
	}
	t.Logf("%d runs, %d kills, %d lost streams, %d restarts, %d moves: most above one bucket %.2f bursts", n, kills, losses, restarts, changes, worst)
}

// TestAssignmentOnItsWay: a stream that ends while an assignment is on its way leaves its Envoy with the one before, which
// the session counts as in use for as long.
func TestAssignmentOnItsWay(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	losses := 0
	for seed := range seeding.Draw(t, 4) {
		rate := int64(20) << (seed % 6)
		w := newWorld(t, seed, termsOf(rate, rate))
		w.delay = Delivery / 2
		w.sent = func(e *envoy) {
			if w.rand.IntN(3) == 0 {
				w.after(time.Duration(w.rand.Int64N(int64(w.delay/2))), e.lose)
				losses++
			}
		}
		for range 2 + w.rand.IntN(4) {
			w.addEnvoy(w.drawRate())
		}
		for range 30 {
			w.run(time.Duration(w.rand.ExpFloat64() * float64(3*time.Second)))
			w.envoys[w.rand.IntN(len(w.envoys))].load(w.drawRate())
		}
	}
	t.Logf("%d streams ended with an assignment on its way", losses)
}

// drawRate draws requests per second: nothing, little, or more than the limit.
func (w *world) drawRate() float64 {
	rate := w.terms.Rate.Float()
	switch w.rand.IntN(5) {
	case 0:
		return 0
	case 1:
		return rate * 0.05 * w.rand.Float64()
	case 2:
		return rate * 3 * w.rand.Float64()
	}
	return rate * w.rand.Float64()
}

// TestSilentStream: an Envoy that is cut off while neither side knows spends what it has until its time
// to live is over, and what it had more than it was told to keep is the excess.
func TestSilentStream(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	worst := 0.0
	n := runs(t, 3)
	for seed := range seeding.Draw(t, n) {
		w := newWorld(t, seed, termsOf(200, 100))
		for range 4 {
			w.addEnvoy(150)
		}
		w.run(time.Duration(20+w.rand.IntN(5)) * time.Second)
		e := w.envoys[0]
		e.mute = true
		before := e.allowed
		w.run(time.Duration(w.rand.Int64N(int64(3 * time.Second))))
		for _, other := range w.envoys[1:] {
			other.load(150 * w.rand.Float64() * 3)
		}
		w.run(TTL + 2*Delivery)
		used := e.allowed
		w.run(10 * time.Second)
		if e.allowed != used {
			t.Errorf("seed %d: an Envoy that was cut off admits %d after its time to live", seed, e.allowed-used)
		}
		worst = max(worst, w.worst)
		// What one Envoy of four may have: a quarter of the limit and of the burst.
		if bound := w.bound() + float64(used-before); w.worst > bound {
			t.Errorf("seed %d: %.1f above one bucket, the bound is %.1f", seed, w.worst, bound)
		}
	}
	t.Logf("%d runs: most above one bucket %.1f tokens", n, worst)
}
