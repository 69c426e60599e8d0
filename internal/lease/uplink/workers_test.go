package uplink

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/limit"
)

// spender is what a crew takes from: a bucket or a semaphore.
type spender interface {
	agent.Bucket
	Try(now limit.Time, n int64) (taken, decided bool)
	Freeze()
	Thaw()
	Join(n int64)
	Serve(now limit.Time, n int64) bool
	MaxCost(now limit.Time) int64
	Earliest(now limit.Time, n int64) time.Duration
}

// crew are workers of one instance that wait in line, as those of client.Semaphore and client.Limiter do.
// Each takes 1, works for a while and takes 1 again. A semaphore holds the permit for that while.
type crew struct {
	spender
	tree *tree
	node *node

	working []worker        // not sorted
	line    []time.Duration // the lengths of those that wait
	serveAt limit.Time      // when the first in line is served, if nothing comes before

	first limit.Time    // when a worker was served first; 0 = none was
	last  limit.Time    // when one was served last
	gap   time.Duration // the longest time between two
	took  int64
	held  float64 // permit seconds
	since limit.Time
}

// worker works until a time. Its work always takes as long.
type worker struct {
	until  limit.Time
	length time.Duration
}

// addCrew adds an instance with workers that begin at once.
func (tr *tree) addCrew(parent *node, lengths []time.Duration) *node {
	c := &crew{tree: tr, serveAt: lease.Never, since: tr.now}
	n := &node{name: fmt.Sprint("i", len(tr.nodes)), parent: parent, next: lease.Never, crew: c}
	c.node = n
	tr.nodes = append(tr.nodes, n)
	tr.startInstance(n)
	for _, length := range lengths {
		c.working = append(c.working, worker{tr.now, length})
	}
	return n
}

// Update implements [agent.Bucket]: it serves those in line.
func (c *crew) Update(now limit.Time, rate, burst, add fixed.Amount) (surplus, held fixed.Amount) {
	surplus, held = c.spender.Update(now, rate, burst, add)
	c.serve(now)
	return surplus, held
}

// next is when a worker is done or the first in line is due, by the clock of the tree.
func (c *crew) next() limit.Time {
	next := c.serveAt
	if next != lease.Never {
		next -= c.node.offset
	}
	for _, w := range c.working {
		next = min(next, w.until)
	}
	return next
}

// act has the workers that are done take again.
func (c *crew) act() {
	c.count()
	now, short := c.tree.clock(c.node), false
	var done []time.Duration
	c.working = slices.DeleteFunc(c.working, func(w worker) bool {
		if w.until > c.tree.now {
			return false
		}
		done = append(done, w.length)
		return true
	})
	if s, ok := c.spender.(*bucket.Semaphore); ok {
		s.Release(s.Observe(now).InUse.Floor() - int64(len(c.working)))
	}
	for _, length := range done {
		taken := false
		if len(c.line) == 0 {
			taken, _ = c.Try(now, 1)
		}
		if taken {
			c.work(length)
			continue
		}
		if len(c.line) == 0 {
			c.Freeze()
		}
		c.line = append(c.line, length)
		c.Join(1)
		short = true
	}
	c.serve(now)
	if short {
		c.tree.stepAgent(c.node, agent.Starved{Handle: c.node.handle})
	}
	c.tree.stepAgent(c.node, lease.Tick{})
}

// serve serves those in line for whom there is enough.
func (c *crew) serve(now limit.Time) {
	c.count()
	for len(c.line) > 0 && c.Serve(now, 1) {
		length := c.line[0]
		c.line = c.line[1:]
		c.work(length)
	}
	c.serveAt = lease.Never
	if len(c.line) == 0 {
		c.Thaw()
	} else if c.MaxCost(now) >= 1 {
		if d := c.Earliest(now, 1); d < limit.Never {
			c.serveAt = now.Add(d)
		}
	}
}

// work begins the work of a worker that was served.
func (c *crew) work(length time.Duration) {
	tr := c.tree
	if c.took++; c.first == 0 {
		c.first = tr.now
	} else {
		c.gap = max(c.gap, time.Duration(tr.now-c.last))
	}
	c.last = tr.now
	c.working = append(c.working, worker{tr.now.Add(length), length})
	if tr.terms.Semaphore {
		if n := tr.inUse(); n > tr.terms.Burst.Floor() {
			tr.t.Fatalf("%v: %d permits of %v are in use", time.Duration(tr.now), n, tr.terms.Burst)
		}
	} else if over := tr.central.take(tr.now); over > tr.slack() {
		tr.t.Fatalf("%v: the tree admitted %v more than one bucket would", time.Duration(tr.now), over)
	}
}

// inUse is how many workers hold a permit.
func (tr *tree) inUse() (n int64) {
	for _, i := range tr.nodes {
		if i.crew != nil {
			n += int64(len(i.crew.working))
		}
	}
	return n
}

// count adds up for how long permits were in use.
func (c *crew) count() {
	c.held += float64(len(c.working)) * time.Duration(c.tree.now-c.since).Seconds()
	c.since = c.tree.now
}

// TestWorkersBelowSites draws trees of two or three levels with a limit of a rate or of what is in flight, and
// workers that wait. Each instance has its first permit within two round trips for each level, the
// workers together use at least 0.95 of the smaller of limit and demand, and never more than the limit.
func TestWorkersBelowSites(t *testing.T) {
	seed := rand.Uint64()
	t.Log("seed", seed)
	draw := rand.New(rand.NewPCG(seed, 0))
	for range 40 {
		workersBelowSites(t, draw.Uint64())
	}
	// One permit over three levels: turns of two seconds leave 0.94 of it.
	for _, seed := range []uint64{2105203626835484496, 1890875877493101855, 1360982196068388826} {
		workersBelowSites(t, seed)
	}
}

func workersBelowSites(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 2))
	levels := 2 + rng.IntN(2)
	fail := func(tr *tree, format string, args ...any) {
		t.Helper()
		t.Errorf("seed %d, %d levels, %v/s, burst %v, semaphore %v, delay %v, %d nodes: %s",
			seed, levels, tr.terms.Rate, tr.terms.Burst, tr.terms.Semaphore, tr.delay, len(tr.nodes), fmt.Sprintf(format, args...))
	}
	terms := lease.Terms{Burst: fixed.Whole(1 + rng.Int64N(60)), Semaphore: rng.IntN(2) == 0}
	// Each worker wants 1 each length: below the limit or above it.
	usual := time.Duration(rng.Int64N(int64(2*time.Second))) + 10*time.Millisecond
	lengths := make([]time.Duration, 1+rng.IntN(50))
	crews := make([][]time.Duration, 1+rng.IntN(min(8, len(lengths))))
	for i := range lengths {
		lengths[i] = usual/2 + time.Duration(rng.Int64N(int64(usual)))
		crew := i
		if i >= len(crews) {
			crew = rng.IntN(len(crews))
		}
		crews[crew] = append(crews[crew], lengths[i])
	}
	if !terms.Semaphore {
		terms.Rate = fixed.Whole(1 + rng.Int64N(200))
		terms.Burst = max(terms.Burst, fixed.Whole(int64(4*len(crews))))
	}
	tr := newTree(t, rng.Uint64(), terms)
	tr.delay = time.Duration(1+rng.IntN(25)) * time.Millisecond
	above := []*node{nil}
	for level := 1; level < levels; level++ {
		var row []*node
		for i := range 1 + rng.IntN(3) {
			row = append(row, tr.addSite(above[rng.IntN(len(above))], fmt.Sprintf("s%d.%d", level, i)))
		}
		above = row
	}
	if rng.IntN(2) == 0 {
		tr.run(3 * time.Second) // the sites are connected before the instances come
	}
	for _, lengths := range crews {
		tr.addCrew(above[rng.IntN(len(above))], lengths)
	}
	began := tr.now
	tr.run(10 * time.Second)
	most := time.Duration(levels) * (2*2*tr.delay + lease.MinReportGap)
	workers, burst := int64(len(lengths)), terms.Burst.Floor()
	switch {
	case terms.Semaphore && burst < int64(len(crews)), !terms.Semaphore && workers > burst/2:
		most = limit.Never // the others may have used up all there is
	case terms.Semaphore && workers > burst:
		most += usual * 3 / 2 // the others may have all of it until they are done
	}
	for _, n := range tr.nodes {
		if c := n.crew; c != nil && most != limit.Never && (c.first == 0 || time.Duration(c.first-began) > most) {
			fail(tr, "%s had its first permit after %v, want %v", n.name, time.Duration(c.first-began), most)
		}
	}
	before, held := usedBy(tr)
	const seconds = 60
	tr.run(seconds * time.Second)
	after, heldAfter := usedBy(tr)
	if terms.Semaphore {
		if use, want := (heldAfter-held)/seconds, min(terms.Burst.Float(), float64(workers)); use < 0.95*want {
			fail(tr, "%.2f of %.2f permits are used by %d workers", use, want, workers)
		}
		return
	}
	if use, want := float64(after-before)/seconds, servedByOneBucket(terms, lengths, seconds); use < 0.95*want-(2+math.Sqrt(float64(workers)))/seconds {
		fail(tr, "%.2f/s of the %.2f/s of one bucket are used by %d workers", use, want, workers)
	}
}

// servedByOneBucket is how many per second the workers would be served by one bucket that all of them wait at.
func servedByOneBucket(terms lease.Terms, lengths []time.Duration, seconds int) float64 {
	ready := make([]limit.Time, len(lengths)) // when each worker asks next
	bucket := newReference(terms.Rate, terms.Burst, 0)
	served := 0
	for {
		i := 0
		for j, at := range ready {
			if at < ready[i] {
				i = j
			}
		}
		now := max(ready[i], bucket.pool.At)
		if over := bucket.take(now); over > 0 {
			now = now.Add(time.Duration(over.Float() / terms.Rate.Float() * float64(time.Second)))
			bucket.pool.Refill(now)
		}
		if now > limit.Time(2*seconds)*limit.Time(time.Second) {
			return float64(served) / float64(seconds)
		}
		if now > limit.Time(seconds)*limit.Time(time.Second) {
			served++
		}
		ready[i] = now.Add(lengths[i])
	}
}

func usedBy(tr *tree) (took int64, held float64) {
	for _, n := range tr.nodes {
		if n.crew != nil {
			n.crew.count()
			took += n.crew.took
			held += n.crew.held
		}
	}
	return took, held
}

// TestTurnsOfScarceTokens: instances whose part of the limit is about a token per second or less, each with a worker
// that waits, have their turns one after the other: each is served about as often as one bucket with a fair line would
// serve it.
func TestTurnsOfScarceTokens(t *testing.T) {
	draws := 8
	if testing.Short() {
		draws = 4 // one goroutine: nothing for the race detector
	}
	usual := true
	for seed := range seeding.Draw(t, draws) {
		turnsOfScarceTokens(t, seed, usual)
		usual = false
	}
	// A report arrives some milliseconds before each token, so that a round is due just before the pool is full.
	turnsOfScarceTokens(t, 8193029639160673335, false)
}

func turnsOfScarceTokens(t *testing.T, seed uint64, usual bool) {
	rng := rand.New(rand.NewPCG(seed, 3))
	n := 2 + rng.IntN(19)
	each := 0.05 + 1.15*rng.Float64() // tokens per second and instance
	terms := lease.Terms{Rate: fixed.Amount(each * float64(n) * float64(fixed.Token)), Burst: fixed.Whole(1 + rng.Int64N(int64(n)))}
	delay := time.Duration(1+rng.IntN(10)) * time.Millisecond
	if usual {
		n, delay, terms = 10, 5*time.Millisecond, lease.Terms{Rate: fixed.Token, Burst: fixed.Token}
	}
	tr := newTree(t, rng.Uint64(), terms)
	tr.delay = delay
	for range n {
		tr.addCrew(nil, []time.Duration{time.Millisecond})
	}
	turn := time.Duration(float64(n) / terms.Rate.Float() * float64(time.Second))
	tr.run(3 * turn)
	began, before := tr.now, int64(0)
	for _, x := range tr.nodes {
		x.crew.gap, x.crew.last = 0, tr.now
		before += x.crew.took
	}
	tr.run(max(12*turn, 400*turn/time.Duration(n), time.Minute))
	took, worst := int64(0), time.Duration(0)
	for _, x := range tr.nodes {
		worst = max(worst, x.crew.gap, time.Duration(tr.now-x.crew.last))
		took += x.crew.took
	}
	took -= before
	tokens := terms.Rate.Float() * time.Duration(tr.now-began).Seconds()
	// An instance whose part is more than a token or two in a round trip has several in one turn, and the others wait for it.
	// Such a turn is 20 round trips and a token.
	cycle := time.Duration(float64(n) / terms.Burst.Float() * (20*(2*delay+2*time.Millisecond).Seconds() + terms.Burst.Float()/terms.Rate.Float()) * float64(time.Second))
	if most := max(10*time.Second, turn+turn/4, cycle+cycle/4); took < int64(0.95*tokens) || worst > most {
		t.Errorf("seed %d: %v/s, burst %v, among %d, delay %v: %d of %.1f tokens were used, one was not served for %v, want %v; a turn is %v",
			seed, terms.Rate, terms.Burst, n, delay, took, tokens, worst, most, turn)
	}
}
