package uplink

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/internal/lease/ledger"
	"github.com/stint-io/stint/limit"
)

// tree is a root, sites and instances under virtual time, with a network that does what it wants.
// It checks after every event that what the instances may spend is no more than the limit, and
// that everything admitted fits one bucket, of the limit and of each cap.
type tree struct {
	t     testing.TB
	rand  *rand.Rand
	now   limit.Time
	terms lease.Terms
	root  *coordinator.Coordinator
	epoch uint64
	nodes []*node // sites and instances; parents before children
	wires []wire
	seq   int

	delay, jitter   time.Duration
	loss, duplicate float64
	unknown         bool // the root has no limit of that name
	lenient         bool // some mode at expiry may exceed the limit

	central reference
	caps    map[*node]*reference
}

// node is a site, or an instance that spends.
type node struct {
	name    string
	parent  *node // nil = the root
	site    *Site
	offset  limit.Time // of its clock
	session uint64
	epoch   uint64 // of a site's coordinator
	down    bool
	cut     bool // its link to the parent
	expiry  agent.ExpiryMode
	own     lease.Terms // of a site: its own file; zero = the limit

	agent   *agent.Agent
	bucket  *bucket.Bucket
	crew    *crew // workers that wait; nil = arrivals that do not
	handle  uint32
	opts    agent.LeaseOptions
	rate    float64
	next    limit.Time
	took    int64
	refused int64
}

type wire struct {
	at     limit.Time
	seq    int
	to     *node // who gets the grant; whose parent gets the report
	report *lease.Report
	grant  *lease.Grant
}

// reference is the one bucket that would hold a limit alone.
type reference struct{ pool ledger.Pool }

func newReference(rate, burst fixed.Amount, now limit.Time) *reference {
	return &reference{ledger.Pool{Rate: rate, Burst: burst, Level: burst, At: now}}
}

// take reports how far below zero the level is.
func (r *reference) take(now limit.Time) fixed.Amount {
	r.pool.Refill(now)
	r.pool.Level -= fixed.Token
	return -r.pool.Level
}

func newTree(t testing.TB, seed uint64, terms lease.Terms) *tree {
	tr := &tree{
		t: t, rand: rand.New(rand.NewPCG(seed, 1)), now: limit.Time(time.Hour), terms: terms, delay: 5 * time.Millisecond,
		epoch: 1, caps: map[*node]*reference{},
	}
	tr.central = *newReference(terms.Rate, terms.Burst, tr.now)
	tr.startRoot(0)
	return tr
}

func (tr *tree) startRoot(recovery time.Duration) {
	tr.root = coordinator.New(coordinator.Options{
		Epoch: tr.epoch, Former: tr.epoch - 1, Recovery: recovery, Name: fmt.Sprint("root/", tr.epoch), Seal: coordinator.NewSeal([]byte("root")),
		Resolve: func(lease.ResourceID) (lease.Terms, lease.Status) {
			if tr.unknown {
				return lease.Terms{}, lease.StatusUnknownLimit
			}
			return tr.terms, lease.StatusOK
		},
	}, tr.now)
}

// addSite adds a site below a parent; nil = the root.
func (tr *tree) addSite(parent *node, name string) *node {
	n := &node{name: name, parent: parent, next: lease.Never}
	tr.nodes = append(tr.nodes, n)
	for _, c := range tr.terms.Sites {
		if c.Name == name {
			tr.caps[n] = newReference(c.Rate, c.Burst, tr.now)
		}
	}
	tr.startSite(n)
	return n
}

func (tr *tree) startSite(n *node) {
	n.session++
	n.epoch += 1 << 32
	n.down = false
	o := Options{
		Member: lease.Member{Instance: n.name, Session: n.session}, Name: fmt.Sprint(n.name, "/", n.session), Jitter: tr.rand.Float64, Expiry: n.expiry,
		Session: func() uint64 { n.session++; return n.session },
		Send: func(r *lease.Report) {
			if !n.cut {
				tr.send(wire{to: n, report: r})
			}
		},
	}
	n.site = New(o, coordinator.Options{
		Epoch: n.epoch, Seal: coordinator.NewSeal([]byte(n.name)),
		Resolve: func(lease.ResourceID) (lease.Terms, lease.Status) {
			if n.own.Burst > 0 {
				return n.own, lease.StatusOK
			}
			return tr.terms, lease.StatusOK
		},
	}, tr.clock(n))
	tr.stepSite(n, lease.Tick{})
}

// addInstances adds instances below a site; nil = the root.
func (tr *tree) addInstances(parent *node, count int) []*node {
	var added []*node
	for range count {
		n := &node{name: fmt.Sprint("i", len(tr.nodes)), parent: parent, next: lease.Never}
		tr.nodes = append(tr.nodes, n)
		tr.startInstance(n)
		added = append(added, n)
	}
	return added
}

func (tr *tree) startInstance(n *node) {
	n.session++
	n.down = false
	n.agent = agent.New(agent.Options{Member: lease.Member{Instance: n.name, Session: n.session}, Jitter: tr.rand.Float64})
	n.bucket = bucket.NewBucket(n.agent.Deadline())
	n.bucket.Random(tr.rand.Float64)
	spent := agent.Bucket(n.bucket)
	if n.crew != nil {
		n.crew.spender = n.bucket
		if tr.terms.Semaphore {
			n.crew.spender = bucket.NewSemaphore(n.agent.Deadline())
		}
		spent = n.crew
	}
	n.handle = n.agent.Open(tr.clock(n), lease.ResourceID{Limit: "l"}, n.opts, spent)
	tr.stepAgent(n, lease.Tick{})
}

func (tr *tree) clock(n *node) limit.Time { return tr.now + n.offset }

func (tr *tree) send(w wire) {
	copies := 1
	if tr.rand.Float64() < tr.duplicate {
		copies = 2
	}
	for range copies {
		if tr.rand.Float64() < tr.loss {
			continue
		}
		tr.seq++
		w.seq = tr.seq
		w.at = tr.now.Add(tr.delay)
		if tr.jitter > 0 {
			w.at = w.at.Add(time.Duration(tr.rand.Int64N(int64(tr.jitter))))
		}
		i, _ := slices.BinarySearchFunc(tr.wires, w, func(a, b wire) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.seq, b.seq)) })
		tr.wires = slices.Insert(tr.wires, i, w)
	}
}

func (tr *tree) stepAgent(n *node, e lease.Event) {
	if r := n.agent.Step(tr.clock(n), e); r != nil && !n.cut {
		c := *r
		c.Demands = slices.Clone(r.Demands)
		tr.send(wire{to: n, report: &c})
	}
}

func (tr *tree) stepSite(n *node, e lease.Event) { tr.sendGrants(n, n.site.Step(tr.clock(n), e)) }

func (tr *tree) stepRoot(e lease.Event) { tr.sendGrants(nil, tr.root.Step(tr.now, e)) }

func (tr *tree) sendGrants(from *node, grants []lease.Grant) {
	for _, g := range grants {
		for _, n := range tr.nodes {
			if n.parent == from && n.name == g.To.Instance && !n.cut {
				g.Shares = slices.Clone(g.Shares)
				tr.send(wire{to: n, grant: &g})
			}
		}
	}
}

func (tr *tree) deliver() {
	w := tr.wires[0]
	tr.wires = tr.wires[1:]
	switch {
	case w.to.cut:
	case w.report != nil && w.to.parent == nil:
		tr.stepRoot(w.report)
	case w.report != nil:
		if !w.to.parent.down {
			tr.stepSite(w.to.parent, w.report)
		}
	case w.to.down:
	case w.to.site != nil:
		tr.stepSite(w.to, FromParent{w.grant})
	default:
		tr.stepAgent(w.to, w.grant)
	}
}

// run goes on for so long.
func (tr *tree) run(d time.Duration) {
	end := tr.now.Add(d)
	for still, was := 0, tr.now; ; still++ {
		if tr.now != was {
			still, was = 0, tr.now
		}
		if still > 20_000 {
			tr.t.Fatalf("time stands still at %v", time.Duration(tr.now))
		}
		at, what := end, (*node)(nil)
		kind := 'e'
		if len(tr.wires) > 0 && tr.wires[0].at < at {
			at, kind = tr.wires[0].at, 'w'
		}
		if next := tr.root.Next(); next < at {
			at, kind = next, 'r'
		}
		for _, n := range tr.nodes {
			if n.down {
				continue
			}
			if next := n.due(); next < at {
				at, kind, what = next, 'n', n
			}
		}
		tr.now = max(tr.now, at)
		switch kind {
		case 'e':
			return
		case 'w':
			tr.deliver()
		case 'r':
			tr.stepRoot(lease.Tick{})
		case 'n':
			switch {
			case what.site != nil:
				tr.stepSite(what, lease.Tick{})
			case what.crew != nil && tr.now >= what.crew.next():
				what.crew.act()
			case tr.now >= what.next:
				tr.arrive(what)
			default:
				tr.stepAgent(what, lease.Tick{})
			}
		}
		tr.check()
	}
}

func (n *node) due() limit.Time {
	if n.site != nil {
		return n.site.Next() - n.offset
	}
	next := min(n.next, n.agent.Next()-n.offset)
	if n.crew != nil {
		next = min(next, n.crew.next())
	}
	return next
}

func (tr *tree) load(n *node, rate float64) {
	n.rate, n.next = rate, lease.Never
	if rate > 0 {
		n.next = tr.now.Add(time.Duration(tr.rand.Float64() * float64(time.Second) / rate))
	}
}

func (tr *tree) arrive(n *node) {
	n.next = tr.now.Add(time.Duration(float64(time.Second) / n.rate))
	if ok, _ := n.bucket.Allow(tr.clock(n), 1); ok {
		n.took++
		if over := tr.central.take(tr.now); over > tr.slack() && !tr.lenient {
			tr.t.Fatalf("%v: the tree admitted %v more than one bucket would", time.Duration(tr.now), over)
		}
		for p := n.parent; p != nil; p = p.parent {
			if c := tr.caps[p]; c != nil {
				if over := c.take(tr.now); over > tr.slack() && !tr.lenient {
					tr.t.Fatalf("%v: %s admitted %v more than its cap", time.Duration(tr.now), p.name, over)
				}
			}
		}
	} else {
		n.refused++
		tr.stepAgent(n, agent.Starved{Handle: n.handle})
	}
	tr.stepAgent(n, lease.Tick{})
}

// slack is what rounding may cost: some millionths for each node.
func (tr *tree) slack() fixed.Amount { return fixed.Amount(len(tr.nodes)) * 10 }

// check holds what the instances may spend at this moment against the limit and the caps.
func (tr *tree) check() {
	if tr.lenient {
		return
	}
	var sum lease.Capacity
	for _, n := range tr.nodes {
		if n.site != nil {
			if err := n.check(); err != nil && !n.down {
				tr.t.Fatalf("%v: %s: %v", time.Duration(tr.now), n.name, err)
			}
			continue
		}
		if n.down || int64(tr.clock(n)) >= n.agent.Deadline().Load() {
			continue
		}
		sum = sum.Add(n.agent.State(n.handle).Held)
	}
	if sum.Rate > tr.terms.Rate || sum.Burst > tr.terms.Burst {
		tr.t.Fatalf("%v: instances hold %v/s and burst %v of %v/s and %v", time.Duration(tr.now), sum.Rate, sum.Burst, tr.terms.Rate, tr.terms.Burst)
	}
}

func (n *node) check() error {
	for r := range n.site.supplies {
		if err := r.Check(); err != nil {
			return err
		}
		if r.Broken {
			return fmt.Errorf("broken")
		}
	}
	return nil
}

func total(nodes []*node) (took int64) {
	for _, n := range nodes {
		took += n.took
	}
	return took
}

func limitTime(d int64) limit.Time { return limit.Time(d) }
