package coordinator

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fairshare"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/internal/lease/ledger"
	"github.com/stint-io/stint/limit"
)

// fleet is a coordinator and some instances under virtual time, with a network that
// does what it wants. It checks after every event that what the instances may spend
// is no more than the limit, and that everything admitted fits one central bucket.
type fleet struct {
	t         testing.TB
	rand      *rand.Rand
	now       limit.Time
	terms     lease.Terms
	coord     *Coordinator
	epoch     uint64
	key       string // of the coordinator's seal
	former    uint64 // epoch of the coordinator before
	instances []*instance
	wires     []wire // sorted by at
	seq       int

	delay, jitter   time.Duration
	loss, duplicate float64

	poisson bool         // random arrivals
	passed  []limit.Time // what was admitted, of a limit shared by suppression

	noting bool         // what was admitted
	noted  []limit.Time // if so: when

	central Bucketed
}

// Bucketed is the one bucket that would hold the limit alone.
type Bucketed struct {
	terms lease.Terms
	level fixed.Amount
	part  uint64
	at    limit.Time
}

type instance struct {
	index   int
	session uint64
	agent   *agent.Agent
	bucket  *bucket.Bucket
	handle  uint32
	offset  limit.Time // of its clock
	paused  bool
	inbox   []wire
	down    bool
	cut     bool
	opts    agent.LeaseOptions
	rate    float64 // arrivals per second
	next    limit.Time
	took    int64
	refused int64
}

type wire struct {
	at     limit.Time
	seq    int
	to     int // -1 = coordinator
	report *lease.Report
	grant  *lease.Grant
}

func newFleet(t testing.TB, seed uint64, n int, terms lease.Terms) *fleet {
	f := &fleet{
		t: t, rand: rand.New(rand.NewPCG(seed, 1)), now: limit.Time(time.Hour), terms: terms,
		delay: 50 * time.Millisecond, epoch: 1,
	}
	f.central = Bucketed{terms: terms, level: terms.Burst, at: f.now}
	f.startCoordinator(0)
	for i := range n {
		in := &instance{index: i, next: lease.Never}
		f.instances = append(f.instances, in)
		f.start(in)
	}
	return f
}

func (f *fleet) startCoordinator(recovery time.Duration) {
	f.coord = New(Options{
		Epoch: f.epoch, Former: f.former, Recovery: recovery, Above: func(received uint64) uint64 { return received + 1 + f.rand.Uint64N(1<<30) }, Seal: NewSeal([]byte(f.key)),
		Resolve: func(lease.ResourceID) (lease.Terms, lease.Status) { return f.terms, lease.StatusOK },
	}, f.now)
}

func (f *fleet) start(in *instance) {
	in.session++
	in.agent = agent.New(agent.Options{Member: lease.Member{Instance: fmt.Sprint(in.index), Session: in.session}, Jitter: f.rand.Float64})
	in.bucket = bucket.NewBucket(in.agent.Deadline())
	in.bucket.Random(f.rand.Float64)
	in.handle = in.agent.Open(f.clock(in), lease.ResourceID{Limit: "l"}, in.opts, in.bucket)
	in.down = false
	f.step(in, lease.Tick{})
}

func (f *fleet) clock(in *instance) limit.Time { return f.now + in.offset }

func (f *fleet) send(w wire) {
	copies := 1
	if f.rand.Float64() < f.duplicate {
		copies = 2
	}
	for range copies {
		if f.rand.Float64() < f.loss {
			continue
		}
		f.seq++
		w.seq = f.seq
		w.at = f.now.Add(f.delay)
		if f.jitter > 0 {
			w.at = w.at.Add(time.Duration(f.rand.Int64N(int64(f.jitter))))
		}
		i, _ := slices.BinarySearchFunc(f.wires, w, func(a, b wire) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.seq, b.seq)) })
		f.wires = slices.Insert(f.wires, i, w)
	}
}

func (f *fleet) step(in *instance, e lease.Event) {
	if r := in.agent.Step(f.clock(in), e); r != nil && !in.cut {
		c := *r
		c.Demands = slices.Clone(r.Demands)
		f.trace("%d report %+v", in.index, c)
		f.send(wire{to: -1, report: &c})
	}
}

func (f *fleet) coordinate(e lease.Event) {
	if f.coord == nil {
		return
	}
	for _, g := range f.coord.Step(f.now, e) {
		for _, in := range f.instances {
			if g.To.Instance == fmt.Sprint(in.index) && !in.cut {
				f.trace("grant %+v", g)
				f.send(wire{to: in.index, grant: &g})
			}
		}
	}
}

// run goes on until a time.
func (f *fleet) run(d time.Duration) {
	end := f.now.Add(d)
	for still, was := 0, f.now; ; still++ {
		if f.now != was {
			still, was = 0, f.now
		}
		if still > 10_000 {
			f.stuck()
		}
		at, what := end, -3
		if len(f.wires) > 0 && f.wires[0].at < at {
			at, what = f.wires[0].at, -2
		}
		if f.coord != nil && f.coord.Next() < at {
			at, what = f.coord.Next(), -1
		}
		for i, in := range f.instances {
			if in.down || in.paused {
				continue
			}
			if n := min(in.next, in.agent.Next()-in.offset); n < at {
				at, what = n, i
			}
		}
		f.now = max(f.now, at)
		switch what {
		case -3:
			return
		case -2:
			f.deliver()
		case -1:
			f.coordinate(lease.Tick{})
		default:
			in := f.instances[what]
			if f.now >= in.next {
				f.arrive(in)
			} else {
				f.step(in, lease.Tick{})
			}
		}
		f.check()
	}
}

// stuck fails the test because time stands still.
func (f *fleet) stuck() {
	for _, in := range f.instances {
		f.t.Logf("%d: next %v, of %+v", in.index, in.agent.Next()-f.clock(in), in.agent.State(in.handle))
	}
	f.t.Fatalf("time stands still at %v", time.Duration(f.now))
}

func (f *fleet) deliver() {
	w := f.wires[0]
	f.wires = f.wires[1:]
	if w.to < 0 {
		f.coordinate(w.report)
		return
	}
	in := f.instances[w.to]
	if in.down || in.cut {
		return
	}
	if in.paused {
		in.inbox = append(in.inbox, w) // it waits in the process's socket
		return
	}
	f.trace("%d hears %d of %d", in.index, w.grant.Number, w.grant.Epoch)
	f.step(in, w.grant)
}

func (f *fleet) load(in *instance, rate float64) {
	in.rate, in.next = rate, lease.Never
	if rate > 0 {
		in.next = f.now.Add(time.Duration(float64(time.Second) / rate))
	}
}

func (f *fleet) arrive(in *instance) {
	if in.next = lease.Never; in.rate > 0 {
		gap := 1.0
		if f.poisson {
			gap = f.rand.ExpFloat64()
		}
		in.next = f.now.Add(time.Duration(gap * float64(time.Second) / in.rate))
	}
	if ok, _ := in.bucket.Allow(f.clock(in), 1); ok {
		in.took++
		if f.noting {
			f.noted = append(f.noted, f.now)
		}
		if f.terms.Suppress != nil {
			f.passed = append(f.passed, f.now)
		} else if !f.own() {
			f.central.take(f, fixed.Token)
		}
	} else {
		in.refused++
		f.step(in, agent.Starved{Handle: in.handle})
	}
	f.step(in, lease.Tick{})
}

// take fails the test when the central bucket has not as much.
func (b *Bucketed) take(f *fleet, n fixed.Amount) {
	p := ledger.Pool{Rate: b.terms.Rate, Burst: b.terms.Burst, Level: b.level, Remainder: b.part, At: b.at}
	p.Refill(f.now)
	b.at, b.level, b.part = f.now, p.Level, p.Remainder
	b.level -= n
	// A millionth per instance is what rounding may cost.
	if b.level < -fixed.Amount(len(f.instances))*10 {
		f.t.Fatalf("%v: the fleet admitted %v more than one bucket would", time.Duration(f.now), -b.level)
	}
}

// own says that each of several instances has a limit of its own.
func (f *fleet) own() bool { return f.terms.Allocation == fairshare.Static && len(f.instances) > 1 }

// check holds what the instances may spend at this moment against the limit.
func (f *fleet) check() {
	if f.terms.Suppress != nil || f.own() {
		return // each holds the whole limit
	}
	var sum lease.Capacity
	for _, in := range f.instances {
		if in.down || int64(f.clock(in)) >= in.agent.Deadline().Load() {
			continue
		}
		sum = sum.Add(in.agent.State(in.handle).Held)
	}
	if sum.Rate > f.terms.Rate || sum.Burst > f.terms.Burst {
		f.t.Fatalf("%v: instances hold %v/s and burst %v of %v/s and %v", time.Duration(f.now), sum.Rate, sum.Burst, f.terms.Rate, f.terms.Burst)
	}
}

func (f *fleet) totals() (took, refused int64) {
	for _, in := range f.instances {
		took += in.took
		refused += in.refused
	}
	return took, refused
}

func TestFleetOneHot(t *testing.T) {
	for _, n := range []int{2, 10, 96} {
		f := newFleet(t, 1, n, lease.Terms{Rate: 1000 * fixed.Token, Burst: 100 * fixed.Token})
		for _, in := range f.instances {
			f.load(in, 2000/float64(n))
		}
		f.run(10 * time.Second)
		before, _ := f.totals()
		for _, in := range f.instances {
			f.load(in, 0)
		}
		f.load(f.instances[n-1], 2000)
		for range 20 {
			f.run(100 * time.Millisecond)
			after, _ := f.totals()
			t.Logf("n=%d %d", n, after-before)
			before = after
		}
		t.Logf("%+v", f.coord.Stats())
	}
}

// arriveOnce is one request at this moment.
func (f *fleet) arriveOnce(in *instance) {
	f.arrive(in)
	in.next = lease.Never
}
