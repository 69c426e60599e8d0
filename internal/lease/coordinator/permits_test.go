package coordinator

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

// semaphoreFleet is a fleet whose instances hold permits of a semaphore instead of tokens.
type semaphoreFleet struct {
	*fleet
	users []*user
	caps  []capacityAt // the capacities, as they were put in force
}

type capacityAt struct {
	from limit.Time
	size fixed.Amount
}

// user is an instance that keeps some requests in flight.
type user struct {
	*instance
	permits  *bucket.Semaphore
	wants    int           // in flight, if it can
	hold     time.Duration // how long each takes
	ends     []limit.Time  // of those in flight, by the lease in force
	orphans  []limit.Time  // of those that outlived their lease
	admitted int
}

const moment = 5 * time.Millisecond

func newSemaphoreFleet(t testing.TB, seed uint64, n int, permits fixed.Amount) *semaphoreFleet {
	g := &semaphoreFleet{fleet: newFleet(t, seed, 0, lease.Terms{Burst: permits, Semaphore: true})}
	g.caps = []capacityAt{{g.now, permits}}
	for i := range n {
		in := &instance{index: i, next: lease.Never}
		g.instances = append(g.instances, in)
		u := &user{instance: in, hold: 50 * time.Millisecond}
		g.users = append(g.users, u)
		g.begin(u)
	}
	return g
}

// begin starts a process.
func (g *semaphoreFleet) begin(u *user) {
	u.session++
	u.agent = agent.New(agent.Options{Member: lease.Member{Instance: fmt.Sprint(u.index), Session: u.session}, Jitter: g.rand.Float64})
	u.permits = bucket.NewSemaphore(u.agent.Deadline())
	u.handle = u.agent.Open(g.now, theLimit, u.opts, u.permits)
	u.down, u.ends, u.orphans = false, nil, nil
	g.step(u.instance, lease.Tick{})
}

// crash ends a process: what it had in flight is gone, its lease is not.
func (g *semaphoreFleet) crash(u *user) { u.down, u.ends, u.orphans = true, nil, nil }

func (g *semaphoreFleet) resize(permits fixed.Amount) {
	g.terms.Burst = permits
	g.caps = append(g.caps, capacityAt{g.now, permits})
	g.coordinate(Reconfigure{})
}

// most is the largest capacity of the time for which a lease, and who is in flight by
// it, may last.
func (g *semaphoreFleet) most() fixed.Amount {
	size := g.caps[len(g.caps)-1].size
	for i := len(g.caps) - 1; i > 0 && g.now-g.caps[i].from < limit.Time(2*lease.DefaultLease); i-- {
		size = max(size, g.caps[i-1].size)
	}
	return size
}

// goOn lets the fleet run, each instance with its load.
func (g *semaphoreFleet) goOn(d time.Duration) {
	for end := g.now.Add(d); g.now < end; {
		g.momentPasses()
		inUse := fixed.Amount(0)
		for _, u := range g.users {
			if u.down {
				continue
			}
			if int64(g.now) >= u.agent.Deadline().Load() {
				u.orphans, u.ends = append(u.orphans, u.ends...), nil
			}
			u.finish(g.now)
			for len(u.ends) < u.wants {
				if !u.permits.Acquire(g.now, 1) {
					g.step(u.instance, agent.Starved{Handle: u.handle})
					break
				}
				u.admitted++
				u.ends = append(u.ends, g.now.Add(u.hold))
			}
			inUse += fixed.Whole(int64(len(u.ends)))
		}
		if inUse > g.most() {
			g.t.Fatalf("%v: %v permits are in use of %v", time.Duration(g.now), inUse, g.most())
		}
	}
}

// momentPasses is run for one moment. The limit that instances are held against is the
// largest recent one: a cut takes a round trip.
func (g *semaphoreFleet) momentPasses() {
	real := g.terms
	g.terms.Burst = g.most()
	f := g.coord.opts.Resolve
	g.coord.opts.Resolve = func(lease.ResourceID) (lease.Terms, lease.Status) { return real, lease.StatusOK }
	g.run(moment)
	g.coord.opts.Resolve = f
	g.terms = real
}

func (u *user) finish(now limit.Time) {
	for _, list := range []*[]limit.Time{&u.ends, &u.orphans} {
		kept := (*list)[:0]
		for _, end := range *list {
			if now >= end {
				u.permits.Release(1)
				continue
			}
			kept = append(kept, end)
		}
		*list = kept
	}
}

// TestSemaphoreRotation: of fewer permits than instances each has its part.
func TestSemaphoreRotation(t *testing.T) {
	for _, permits := range []fixed.Amount{fixed.Token, 3 * fixed.Token, 8 * fixed.Token, 20 * fixed.Token} {
		g := newSemaphoreFleet(t, 1, 8, permits)
		g.delay = 10 * time.Millisecond
		for _, u := range g.users {
			u.wants, u.hold = 5, 200*time.Millisecond
		}
		g.goOn(10 * time.Second)
		before := g.counts()
		grants := g.coord.Stats().Grants
		g.goOn(60 * time.Second)
		total, least, most := 0, 1<<30, 0
		for i, n := range g.counts() {
			n -= before[i]
			total, least, most = total+n, min(least, n), max(most, n)
		}
		full := int(60 / 0.2 * permits.Float())
		t.Logf("permits %v: %d to %d each, %d of %d in all; %d grants", permits, least, most, total, full, g.coord.Stats().Grants-grants)
		if least == 0 || most > 2*least+10 {
			t.Errorf("permits %v: %d to %d were admitted to instances alike", permits, least, most)
		}
		if total > full+int(permits.Floor())*2 || total < full*9/10 {
			t.Errorf("permits %v: %d were admitted of %d", permits, total, full)
		}
	}
}

func (g *semaphoreFleet) counts() []int {
	var counts []int
	for _, u := range g.users {
		counts = append(counts, u.admitted)
	}
	return counts
}

// TestSemaphoreCrash: the permits of an instance that crashed come back when its lease ends, not
// before.
func TestSemaphoreCrash(t *testing.T) {
	g := newSemaphoreFleet(t, 1, 2, 10*fixed.Token)
	g.users[0].wants, g.users[0].hold = 10, time.Hour
	g.goOn(2 * time.Second)
	if n := len(g.users[0].ends); n != 10 {
		t.Fatalf("the first has %d of 10 permits", n)
	}
	g.crash(g.users[0])
	g.users[1].wants, g.users[1].hold = 10, time.Hour
	g.goOn(3500 * time.Millisecond)
	if n := len(g.users[1].ends); n != 0 {
		t.Errorf("the second has %d permits that are not known to be free", n)
	}
	g.goOn(5 * time.Second)
	if n := len(g.users[1].ends); n != 10 {
		t.Errorf("the second has %d of 10 permits after the lease of the first has ended", n)
	}
}

// TestSemaphoreIsForgotten: once no instance uses a semaphore its coordinator keeps nothing of it.
func TestSemaphoreIsForgotten(t *testing.T) {
	g := newSemaphoreFleet(t, 1, 3, 10*fixed.Token)
	for _, u := range g.users {
		u.wants = 4
	}
	g.goOn(5 * time.Second)
	for _, u := range g.users {
		u.wants = 0
	}
	g.goOn(time.Second)
	for _, u := range g.users {
		g.step(u.instance, agent.Leave{})
		u.down = true
	}
	g.goOn(3 * time.Second)
	if s := g.coord.Stats(); s.Resources != 0 || s.Instances != 0 {
		t.Errorf("%+v", s)
	}
}

// TestSemaphoreRandom: through moves, cuts, crashes, loss and long requests, those in
// flight by live leases are never more than the permits.
func TestSemaphoreRandom(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 40) {
		r := rand.New(rand.NewPCG(seed, 3))
		g := newSemaphoreFleet(t, seed, 1+r.IntN(6), fixed.Whole(1+r.Int64N(12)))
		g.delay, g.jitter = time.Duration(1+r.IntN(40))*time.Millisecond, time.Duration(r.IntN(50))*time.Millisecond
		g.loss, g.duplicate = r.Float64()*0.3, r.Float64()*0.2
		for range 12 {
			u := g.users[r.IntN(len(g.users))]
			switch r.IntN(6) {
			case 0:
				g.crash(u)
			case 1:
				if u.down {
					g.begin(u)
				}
			case 2:
				g.resize(fixed.Whole(r.Int64N(12)))
			case 3:
				u.cut = !u.cut
			default:
				u.wants, u.hold = r.IntN(10), time.Duration(1+r.IntN(1000))*time.Millisecond
			}
			g.goOn(time.Duration(r.Int64N(int64(2 * time.Second))))
		}
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
		g.loss, g.duplicate = 0, 0
		g.resize(4 * fixed.Token)
		for _, u := range g.users {
			if u.cut = false; u.down {
				g.begin(u)
			}
			u.wants, u.hold = 2, 20*time.Millisecond
		}
		g.goOn(12 * time.Second)
		before := g.counts()
		g.goOn(10 * time.Second)
		for i, n := range g.counts() {
			if n == before[i] {
				t.Fatalf("seed %d: after the faults instance %d gets nothing in 10 s", seed, i)
			}
		}
	}
}
