package coordinator

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/internal/seeding"
)

// TestRandomFaults: whatever the network, the clocks, the processes and the
// coordinator do, the rate and the burst that instances may spend at any moment are
// together no more than the limit, no instance spends after its lease, and everything
// admitted fits one central bucket of the limit. After the faults the fleet uses its
// limit again.
func TestRandomFaults(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 100) {
		randomFaults(t, seed)
		if t.Failed() {
			return
		}
	}
}

func randomFaults(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 2))
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	t.Helper()
	rates := []fixed.Amount{fixed.Token / 2, fixed.Token, 3 * fixed.Token, 20 * fixed.Token, 300 * fixed.Token}
	rate := rates[r.IntN(len(rates))]
	terms := lease.Terms{Rate: rate, Burst: max(fixed.Token, rate.Scale(fixed.Amount(1+r.IntN(20)), 10)/fixed.Token*fixed.Token)}
	terms.Allocation = []fairshare.Allocation{fairshare.MaxMin, fairshare.MaxMin, fairshare.MaxMin, fairshare.Proportional, fairshare.Equal}[r.IntN(5)]
	f := newFleet(t, seed, 1+r.IntN(6), terms)
	f.delay = time.Duration(1+r.IntN(80)) * time.Millisecond
	f.jitter = time.Duration(r.IntN(100)) * time.Millisecond
	f.loss, f.duplicate = r.Float64()*0.4, r.Float64()*0.3
	for _, in := range f.instances {
		in.opts = agent.LeaseOptions{Weight: uint32(r.IntN(4)), Band: uint8(r.IntN(2)), Silent: r.IntN(8) == 0}
		f.load(in, rate.Float()*r.Float64()*2)
	}
	for range 5 + r.IntN(15) {
		f.run(time.Duration(r.Int64N(int64(2 * time.Second))))
		f.mishap(r)
	}
	f.heal()
	f.run(12 * time.Second)
	before, _ := f.totals()
	for _, in := range f.instances {
		f.load(in, 2*rate.Float()+1)
	}
	f.run(30 * time.Second)
	after, _ := f.totals()
	if want := rate.Float() * 30 * 0.5; float64(after-before) < want && !f.anySilent() {
		t.Errorf("seed %d: after the faults %d were admitted in 30 s of %+v among %d", seed, after-before, terms, len(f.instances))
	}
}

func (f *fleet) anySilent() bool {
	for _, in := range f.instances {
		if in.opts.Silent {
			return true
		}
	}
	return f.terms.Allocation == fairshare.Equal
}

func (f *fleet) mishap(r *rand.Rand) {
	in := f.instances[r.IntN(len(f.instances))]
	kind := r.IntN(9)
	f.trace("mishap %d %d", kind, in.index)
	switch kind {
	case 0:
		in.cut = !in.cut
	case 1:
		if in.paused {
			f.resume(in)
		} else {
			in.paused = true
		}
	case 2:
		in.down = true // crashed
	case 3:
		if in.down {
			f.start(in)
		}
	case 4:
		if !in.down && !in.paused {
			f.step(in, agent.Leave{})
			in.down = true
		}
	case 5:
		if f.coord != nil {
			f.former, f.coord = f.coord.Epoch(), nil
		} else {
			f.restart(r)
		}
	case 6:
		if !in.down {
			f.step(in, agent.Connected{})
		}
	default:
		f.load(in, f.terms.Rate.Float()*r.Float64()*3)
	}
}

// restart begins with another coordinator. It may have lost the key of the former one, so
// that nothing can be claimed, and count epochs from the beginning, below what instances
// have heard.
func (f *fleet) restart(r *rand.Rand) {
	f.epoch = max(f.epoch+1, uint64(f.now))
	switch r.IntN(4) {
	case 0:
		f.key = fmt.Sprint("another ", f.epoch)
	case 1:
		f.epoch = max(1, uint64(f.now)-r.Uint64N(uint64(time.Minute)))
		f.key = fmt.Sprint("lost ", f.now)
		f.former *= r.Uint64N(2) // it may know its predecessor all the same
	}
	f.startCoordinator(lease.DefaultLease + lease.DefaultLease/lease.DriftMargin)
}

// heal ends all faults.
func (f *fleet) heal() {
	f.loss, f.duplicate = 0, 0
	if f.coord == nil {
		f.epoch = max(f.epoch+1, uint64(f.now))
		f.startCoordinator(lease.DefaultLease + lease.DefaultLease/lease.DriftMargin)
	}
	for _, in := range f.instances {
		in.cut = false
		f.resume(in)
		if in.down {
			f.start(in)
		}
	}
}

// resume lets a paused process go on: first its requests, then what it was sent.
func (f *fleet) resume(in *instance) {
	in.paused = false
	if in.next <= f.now && !in.down {
		f.arrive(in)
		f.check()
	}
	inbox := in.inbox
	in.inbox = nil
	for _, w := range inbox {
		if !in.down {
			f.step(in, w.grant)
			f.check()
		}
	}
}
