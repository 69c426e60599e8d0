package coordinator

import (
	"cmp"
	"container/heap"
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/bucket"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/internal/lease/ledger"
	"github.com/stint-io/stint/limit"
)

var wholeRecovery = flag.Bool("recovery", false, "whether TestRecovery runs the whole matrix, up to 1,000 instances")

// rescue is one course of events: a fleet that wants more than its limit, whose coordinator
// is killed or paused and comes back, while the demand of half of the instances is gone for
// a moment.
type rescue struct {
	n          int
	mode       agent.ExpiryMode
	paused     bool // not killed
	state      bool // it comes back with a state directory
	down, lull time.Duration
}

func (c rescue) String() string {
	how := "killed"
	switch {
	case c.paused:
		how = "paused"
	case c.state:
		how = "killed with state"
	}
	return fmt.Sprintf("%d instances mode %d %s for %v lull %v", c.n, c.mode, how, c.down, c.lull)
}

// TestRecovery: while the coordinator is away no instance has less than the lease that it had,
// for as long as that lasts, and then what its mode says; and when the coordinator is back
// none has less than before. So at no time for 100 ms. In strict mode everything admitted
// fits one bucket all the time; else what is admitted is no more than the modes say.
func TestRecovery(t *testing.T) {
	sizes := []int{3, 12}
	downs := []time.Duration{300 * time.Millisecond, time.Second, 4 * time.Second, 11 * time.Second}
	lulls := []time.Duration{100 * time.Millisecond, time.Second}
	if *wholeRecovery {
		sizes = []int{3, 20, 100, 500, 1000}
		lulls = []time.Duration{100 * time.Millisecond, 300 * time.Millisecond, time.Second}
	}
	for _, n := range sizes {
		for _, mode := range []agent.ExpiryMode{agent.Pessimistic, agent.Safe, agent.Optimistic} {
			for _, down := range downs {
				for _, lull := range lulls {
					for _, how := range []rescue{{}, {state: true}, {paused: true}} {
						how.n, how.mode, how.down, how.lull = n, mode, down, lull
						t.Run(how.String(), func(t *testing.T) {
							t.Parallel()
							newRescuers(t, how).run()
						})
					}
				}
			}
		}
	}
}

// rescuers is the fleet of one rescue, in virtual time.
type rescuers struct {
	rescue
	t        *testing.T
	rand     *rand.Rand
	now      limit.Time
	terms    lease.Terms
	delay    time.Duration
	coord    *Coordinator
	frozen   bool            // it is paused
	inbox    []*lease.Report // of that time
	tickAt   limit.Time
	fleet    []*rescued
	byName   map[string]*rescued
	events   happenings
	seq      int
	since    limit.Time // when it began, or went on
	gone     limit.Time // when it went
	returned bool

	central fixed.Amount // level of the one bucket
	part    uint64
	at      limit.Time
	took    []limit.Time // admitted, in modes that may exceed the limit
}

// rescued is one of its instances.
type rescued struct {
	index  int
	agent  *agent.Agent
	bucket *rated
	handle uint32
	linked bool
	pause  time.Duration // before the next try to connect
	tickAt limit.Time
	wants  float64      // arrivals per second
	quiet  bool         // its demand is gone for a moment
	lease  fixed.Amount // the rate that it had when the coordinator went
	ends   limit.Time
	back   limit.Time // when it received the epoch of the one that came back; 0 = not yet
	below  limit.Time // since when it has too little; 0 = it has not
}

type happening struct {
	at  limit.Time
	seq int
	do  func()
}

type happenings []happening

func (h happenings) Len() int { return len(h) }
func (h happenings) Less(i, j int) bool {
	return cmp.Or(cmp.Compare(h[i].at, h[j].at), cmp.Compare(h[i].seq, h[j].seq)) < 0
}
func (h happenings) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *happenings) Push(x any)   { *h = append(*h, x.(happening)) }
func (h *happenings) Pop() any {
	last := (*h)[len(*h)-1]
	*h = (*h)[:len(*h)-1]
	return last
}

func newRescuers(t *testing.T, how rescue) *rescuers {
	v := &rescuers{
		rescue: how, t: t, rand: rand.New(rand.NewPCG(uint64(how.n), uint64(how.down+how.lull))), now: limit.Time(time.Hour),
		terms: lease.Terms{Rate: fixed.Whole(int64(20 * how.n)), Burst: fixed.Whole(int64(4 * how.n))}, byName: map[string]*rescued{},
	}
	v.delay = time.Duration(1+v.rand.IntN(15)) * time.Millisecond
	v.central, v.at = v.terms.Burst, v.now
	v.start(1, 0, []byte("k"))
	for i := range how.n {
		in := &rescued{index: i, linked: true, tickAt: lease.Never, pause: 50 * time.Millisecond, wants: 20 * (0.2 + 2.8*v.rand.Float64())}
		name := fmt.Sprint(i)
		in.agent = agent.New(agent.Options{Member: lease.Member{Instance: name, Session: 1}, Jitter: v.rand.Float64})
		in.bucket = &rated{Bucket: bucket.NewBucket(in.agent.Deadline()), deadline: in.agent.Deadline()}
		in.handle = in.agent.Open(v.now, lease.ResourceID{Limit: "l"}, agent.LeaseOptions{Expiry: how.mode}, in.bucket)
		v.fleet, v.byName[name] = append(v.fleet, in), in
		v.plan(time.Duration(v.rand.Int64N(int64(50*time.Millisecond))), func() { v.step(in, lease.Tick{}); v.arrive(in) })
	}
	return v
}

func (v *rescuers) start(epoch uint64, recovery time.Duration, key []byte) {
	v.since = v.now
	v.coord = New(Options{
		Epoch: epoch, Recovery: recovery, Seal: NewSeal(key), Resolve: func(lease.ResourceID) (lease.Terms, lease.Status) { return v.terms, lease.StatusOK },
	}, v.now)
	v.tickAt = lease.Never
	v.coordinate(lease.Tick{})
}

func (v *rescuers) plan(d time.Duration, do func()) {
	v.seq++
	heap.Push(&v.events, happening{v.now.Add(max(d, 0)), v.seq, do})
}

// goOn lets everything happen until d has passed.
func (v *rescuers) goOn(d time.Duration) {
	for end := v.now.Add(d); ; {
		if len(v.events) == 0 || v.events[0].at > end {
			v.now = end
			return
		}
		h := heap.Pop(&v.events).(happening)
		v.now = h.at
		h.do()
	}
}

// step steps an instance, sends what it says, and sets its timer.
func (v *rescuers) step(in *rescued, e lease.Event) {
	if r := in.agent.Step(v.now, e); r != nil && in.linked {
		own := *r
		own.Demands = slices.Clone(r.Demands)
		to := v.coord
		v.plan(v.delay, func() {
			if v.coord == to {
				v.hear(&own)
			}
		})
	}
	if next := in.agent.Next(); next < in.tickAt || in.tickAt <= v.now {
		in.tickAt = next
		v.plan(time.Duration(next-v.now), func() {
			if in.tickAt == next {
				in.tickAt = v.now
				v.step(in, lease.Tick{})
			}
		})
	}
}

func (v *rescuers) hear(r *lease.Report) {
	if v.frozen {
		v.inbox = append(v.inbox, r)
		return
	}
	v.coordinate(r)
}

func (v *rescuers) coordinate(e lease.Event) {
	if v.coord == nil || v.frozen {
		return
	}
	from := v.coord
	for _, g := range v.coord.Step(v.now, e) {
		in, returned := v.byName[g.To.Instance], v.returned
		v.plan(v.delay, func() {
			if !in.linked {
				return
			}
			if in.back == 0 && returned {
				in.back = v.now
			}
			v.step(in, &g)
		})
	}
	if next := v.coord.Next(); next < v.tickAt || v.tickAt <= v.now {
		v.tickAt = next
		v.plan(time.Duration(next-v.now), func() {
			if v.tickAt == next && from == v.coord {
				v.tickAt = v.now
				v.coordinate(lease.Tick{})
			}
		})
	}
}

func (v *rescuers) arrive(in *rescued) {
	v.plan(time.Duration(float64(time.Second)/in.wants), func() { v.arrive(in) })
	if in.quiet {
		return
	}
	if ok, _ := in.bucket.Allow(v.now, 1); ok {
		v.admit()
		return
	}
	v.step(in, agent.Starved{Handle: in.handle})
}

// admit holds what is admitted against the one bucket, or what the mode promises.
func (v *rescuers) admit() {
	if v.mode != agent.Pessimistic {
		v.took = append(v.took, v.now)
		return
	}
	p := ledger.Pool{Rate: v.terms.Rate, Burst: v.terms.Burst, Level: v.central, Remainder: v.part, At: v.at}
	p.Refill(v.now)
	v.at, v.central, v.part = v.now, p.Level-fixed.Token, p.Remainder
	if v.central < -fixed.Amount(v.n)*10 {
		v.t.Fatalf("%v after the start: %v more admitted than one bucket has", time.Duration(v.now-v.since), -v.central)
	}
}

// connect is a client that has lost its coordinator.
func (v *rescuers) connect(in *rescued) {
	v.plan(in.pause/2+time.Duration(v.rand.Int64N(int64(in.pause/2))), func() {
		if v.coord == nil {
			in.pause = min(2*in.pause, reconnectPause)
			v.connect(in)
			return
		}
		in.linked = true
		v.step(in, agent.Connected{})
	})
}

// reconnectPause is the longest pause of package client between tries.
const reconnectPause = time.Second

func (v *rescuers) run() {
	v.goOn(6 * time.Second)
	gone := v.now
	v.gone = gone
	if v.paused {
		v.frozen = true
	} else {
		v.coord = nil
		for _, in := range v.fleet {
			in.linked = false
			v.connect(in)
		}
	}
	for _, in := range v.fleet {
		if in.index%2 == 0 {
			in.quiet = true
			v.plan(v.lull, func() { in.quiet = false })
		}
	}
	v.goOn(2 * v.delay) // what was under way has come
	for _, in := range v.fleet {
		held := in.agent.State(in.handle).Held
		in.lease, in.ends = held.Rate, limit.Time(in.agent.Deadline().Load())
	}
	v.goOn(time.Duration(gone.Add(v.lull) - v.now)) // or what a lull gave back would have come back
	v.watch(gone)
	v.goOn(time.Duration(gone.Add(v.down) - v.now))
	v.since, v.returned = v.now, true
	switch {
	case v.paused:
		v.frozen = false
		for _, r := range v.inbox {
			v.coordinate(r)
		}
		v.coordinate(lease.Tick{})
	case v.state:
		v.start(2, lease.DefaultLease+lease.DefaultLease/64, []byte("k"))
	default:
		v.start(2, lease.DefaultLease+lease.DefaultLease/64, []byte("another"))
	}
	v.goOn(9 * time.Second)
	v.bound(gone)
}

// enough is what an instance must be able to spend per second at this moment.
func (v *rescuers) enough(in *rescued) fixed.Amount {
	share := fixed.Amount(0)
	switch v.mode {
	case agent.Safe:
		share = v.terms.Rate / fixed.Amount(v.n)
	case agent.Optimistic:
		share = v.terms.Rate
	}
	// One whose demand is gone while the coordinator answers gives back what it has, and is
	// measured anew when it wants it again: how fast that is has tests of its own.
	const moment = limit.Time(200 * time.Millisecond)
	idle := in.index%2 == 0 && in.back < v.gone.Add(v.lull)+5*moment
	switch leased := in.agent.State(in.handle).Leased; {
	case in.back == 0 && v.now < in.ends:
		return in.lease
	case in.back == 0:
		return share
	case v.now < in.back+moment || idle:
		return 0 // it is being sent
	case !v.paused && v.coord.Recovering(v.now-2*moment) && (in.back >= in.ends || !v.state):
		if v.now < in.ends {
			return in.lease // it cannot be claimed, and runs on
		}
		if leased {
			return 0 // it is being lent what is free
		}
		return share
	default:
		return min(in.lease, in.agent.State(in.handle).Demand)
	}
}

// watch looks at each instance every 10 ms.
func (v *rescuers) watch(gone limit.Time) {
	const every = 10 * time.Millisecond
	for _, in := range v.fleet {
		has := in.bucket.rateAt(v.now)
		want := v.enough(in)
		switch {
		case has >= want-want/8:
			in.below = 0
		case in.below == 0:
			in.below = v.now
		case v.now-in.below >= limit.Time(100*time.Millisecond):
			v.t.Fatalf("instance %d, %v after the coordinator went: %v/s since %v, want %v/s; it had %v/s until %v; heard again at %v; wants %.1f/s; %+v", in.index, time.Duration(v.now-gone), has,
				time.Duration(in.below-gone), want, in.lease, time.Duration(in.ends-gone), time.Duration(in.back-gone), in.wants, in.agent.State(in.handle))
		}
	}
	v.plan(every, func() { v.watch(gone) })
}

// bound holds what was admitted against what the modes promise.
func (v *rescuers) bound(gone limit.Time) {
	if v.mode == agent.Pessimistic {
		return
	}
	times := fixed.Amount(2) // the limit, and the safe shares of all
	if v.mode == agent.Optimistic {
		times = fixed.Amount(v.n + 1)
	}
	const window = limit.Time(time.Second)
	from := 0
	for to, at := range v.took {
		for v.took[from] <= at-window {
			from++
		}
		if n := fixed.Whole(int64(to - from + 1)); n > times*(v.terms.Rate+v.terms.Burst)+fixed.Whole(int64(2*v.n)) {
			v.t.Fatalf("%v admitted in the second to %v after the coordinator went", n, time.Duration(at-gone))
		}
	}
}

// rated is a bucket that says which rate is in force.
type rated struct {
	*bucket.Bucket
	deadline *bucket.Deadline
	rate     fixed.Amount
	fallback bool
}

func (b *rated) Update(now limit.Time, rate, burst, add fixed.Amount) (surplus, held fixed.Amount) {
	b.rate, b.fallback = rate, false
	return b.Bucket.Update(now, rate, burst, add)
}

func (b *rated) UpdateFallback(now limit.Time, rate, burst fixed.Amount) {
	b.rate, b.fallback = rate, true
	b.Bucket.UpdateFallback(now, rate, burst)
}

func (b *rated) rateAt(now limit.Time) fixed.Amount {
	if b.fallback || int64(now) < b.deadline.Load() {
		return b.rate
	}
	return 0
}
