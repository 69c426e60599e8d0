package coordinator

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/seeding"
)

// TestOneRequestThenSilence: an instance that was asked once says so, gives back what
// it got for it, and then only renews.
func TestOneRequestThenSilence(t *testing.T) {
	f := newFleet(t, 1, 2, lease.Terms{Rate: 10 * fixed.Token, Burst: 10 * fixed.Token})
	f.delay = time.Millisecond
	f.run(time.Second)
	f.arriveOnce(f.instances[0])
	f.run(20 * time.Second)
	before := f.coord.Stats()
	f.run(10 * time.Second)
	after := f.coord.Stats()
	// Each of two renews a little more often than once a second.
	if n := after.Reports - before.Reports; n > 2*14 {
		t.Errorf("%d reports in 10 s of silence", n)
	}
	if n := after.Rounds - before.Rounds; n > 0 {
		t.Errorf("%d rounds in 10 s of silence", n)
	}
	if n := before.Reports; n > 2*35+20 {
		t.Errorf("%d reports after one request", n)
	}
}

// TestStandstillKeepsTheLease: an instance whose process the machine does not run for a while
// has the same demand when it runs again, whether the requests of that time have waited or not. Beside one that wants all there is, it keeps its
// lease through a standstill of up to a second, and gives nothing back after it. One in some 450 does not: a standstill
// that ends just after a sample was due cannot be told from silence, which ends an even load.
func TestStandstillKeepsTheLease(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	var lost []string
	for seed := range seeding.Draw(t, 60) {
		r := rand.New(rand.NewPCG(seed, 1))
		f := newFleet(t, seed, 3, lease.Terms{Rate: 1000 * fixed.Token, Burst: 100 * fixed.Token})
		f.delay = time.Duration(r.Int64N(int64(10 * time.Millisecond)))
		some := f.instances[0]
		f.load(some, 20+280*r.Float64())
		f.load(f.instances[1], 100)
		f.load(f.instances[2], 2000)
		f.run(5*time.Second + time.Duration(r.Int64N(int64(time.Second))))
		held := func() fixed.Amount { return some.agent.State(some.handle).Held.Rate }
		before, least := held(), held()
		stood := time.Duration(20+r.IntN(900)) * time.Millisecond
		some.paused = true
		f.run(stood)
		some.paused = false
		f.step(some, lease.Tick{}) // its timer is sooner than what it is asked
		for _, w := range some.inbox {
			f.step(some, w.grant)
		}
		some.inbox = nil
		for n := int(stood.Seconds() * some.rate); seed%2 == 1 && n > 0; n-- {
			f.arrive(some) // the requests of that time have waited
		}
		for range 200 {
			f.run(5 * time.Millisecond)
			least = min(least, held())
		}
		if least < before-before/16 {
			lost = append(lost, fmt.Sprintf("seed %d: asked at %.0f/s it stood still for %v; it held %v/s before, and %v/s within the second after", seed, some.rate, stood, before, least))
		}
	}
	if len(lost) > 2 {
		t.Errorf("%d of 60 lost their leases:\n%s", len(lost), strings.Join(lost, "\n"))
	}
}
