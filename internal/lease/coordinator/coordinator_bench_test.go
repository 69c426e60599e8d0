package coordinator

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/limit"
)

// crowd is a coordinator and many agents on one limit, without a network: every
// message arrives at once.
type crowd struct {
	now       limit.Time
	coord     *Coordinator
	agents    []*agent.Agent
	buckets   []*bucket.Bucket
	handles   []uint32
	of        map[lease.Member]int
	reports   int
	reporting time.Duration
	rounds    []time.Duration // each step in which there was a round
	longest   time.Duration   // of the steps in which there was none
	grants    int
}

func newCrowd(n int, terms lease.Terms) *crowd {
	c := &crowd{now: limit.Time(time.Hour), of: map[lease.Member]int{}}
	c.coord = New(Options{
		Epoch: 1, Seal: NewSeal([]byte("k")), Resolve: func(lease.ResourceID) (lease.Terms, lease.Status) { return terms, lease.StatusOK },
	}, c.now)
	for i := range n {
		m := lease.Member{Instance: fmt.Sprintf("instance-%d", i), Session: 1}
		h := agent.New(agent.Options{Member: m})
		b := bucket.NewBucket(h.Deadline())
		c.of[m] = i
		c.agents, c.buckets = append(c.agents, h), append(c.buckets, b)
		c.handles = append(c.handles, h.Open(c.now, lease.ResourceID{Limit: "l"}, agent.LeaseOptions{Estimator: agent.Declared}, b))
	}
	return c
}

// step gives the coordinator an event and returns what it sends, and times it.
func (c *crowd) step(e lease.Event) []lease.Grant {
	before, start := c.coord.Stats().Rounds, time.Now()
	out := c.coord.Step(c.now, e)
	took := time.Since(start)
	if c.coord.Stats().Rounds > before {
		c.rounds = append(c.rounds, took)
	} else {
		c.longest = max(c.longest, took)
		if _, ok := e.(*lease.Report); ok {
			c.reports++
			c.reporting += took
		}
	}
	c.grants += len(out)
	return slices.Clone(out)
}

// deliver brings grants to their agents, and what these report to the coordinator.
func (c *crowd) deliver(grants []lease.Grant) {
	for len(grants) > 0 {
		g := grants[0]
		grants = grants[1:]
		i := c.of[g.To]
		if r := c.agents[i].Step(c.now, &g); r != nil {
			grants = append(grants, c.step(r)...)
		}
	}
}

// tell has agent i observe its demand and report it.
func (c *crowd) tell(i int) {
	if r := c.agents[i].Step(c.now, agent.Starved{Handle: c.handles[i]}); r != nil {
		c.deliver(c.step(r))
	}
}

// run lets virtual time pass.
func (c *crowd) run(d time.Duration) {
	const tick = 10 * time.Millisecond
	for end := c.now.Add(d); c.now < end; c.now = c.now.Add(tick) {
		for _, h := range c.agents {
			if c.now >= h.Next() {
				if r := h.Step(c.now, lease.Tick{}); r != nil {
					c.deliver(c.step(r))
				}
			}
		}
		c.due()
	}
}

// due runs the round that is due, if there is one.
func (c *crowd) due() {
	if c.now >= c.coord.Next() {
		c.deliver(c.step(lease.Tick{}))
	}
}

// BenchmarkRound is one round of the coordinator: dividing one limit among so many
// instances after their demands changed, and writing their grants. In "few" the
// demand of every hundredth instance changed, in "all" that of each. Beside the mean
// it reports the longest round, the longest step without one, and what taking in one
// report costs.
func BenchmarkRound(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		for _, every := range []int{100, 1} {
			name := fmt.Sprintf("instances=%d/changed=%d", n, n/every)
			b.Run(name, func(b *testing.B) { benchmarkRound(b, n, every) })
		}
	}
}

func benchmarkRound(b *testing.B, n, every int) {
	c := newCrowd(n, lease.Terms{Rate: fixed.Whole(int64(n) * 100), Burst: fixed.Whole(int64(n) * 20)})
	for i := range n {
		c.buckets[i].Declare(fixed.Whole(150)) // half as much again as there is
		c.tell(i)
	}
	c.run(3 * time.Second)
	if st := c.coord.Stats(); st.Instances != n || st.Broken > 0 {
		b.Fatalf("%+v, want %d instances", st, n)
	}
	lent := fixed.Amount(0)
	c.coord.Each(c.now, func(r *ResourceState) bool { lent += r.Lent.Rate; return true })
	if lent < fixed.Whole(int64(n)*95) {
		b.Fatalf("%v of %d is lent: the work is not what it should be", lent, n*100)
	}
	c.rounds, c.reports, c.reporting, c.longest, c.grants = nil, 0, 0, 0, 0
	for k := 0; b.Loop(); k++ {
		for i := k % every; i < n; i += every {
			c.buckets[i].Declare(fixed.Whole(int64(50 + 50*((i+k)%5))))
			c.tell(i)
		}
		c.now = max(c.now, c.coord.Next())
		c.due()
		c.run(40 * time.Millisecond)
	}
	if len(c.rounds) == 0 {
		b.Fatal("there was no round")
	}
	total := time.Duration(0)
	for _, d := range c.rounds {
		total += d
	}
	slices.Sort(c.rounds)
	ms := func(d time.Duration) float64 { return d.Seconds() * 1000 }
	b.ReportMetric(0, "ns/op") // of all agents too: it says nothing
	b.ReportMetric(ms(total)/float64(len(c.rounds)), "ms/round")
	b.ReportMetric(ms(c.rounds[len(c.rounds)/2]), "ms/median")
	b.ReportMetric(ms(c.rounds[len(c.rounds)-1]), "ms/longest")
	b.ReportMetric(ms(c.longest), "ms/longest-other")
	b.ReportMetric(float64(len(c.rounds)), "rounds")
	b.ReportMetric(float64(c.reporting.Nanoseconds())/float64(max(1, c.reports)), "ns/report")
	b.ReportMetric(float64(c.grants)/float64(len(c.rounds)), "grants/round")
}
