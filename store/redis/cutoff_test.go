package redis

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// services are some instances at one Redis, whose limits are divided among them while they cannot reach it.
// Time is the test's.
type services struct {
	testing.TB
	clock  atomic.Int64
	stores []*Store
	bound  []store.Counters
	beats  []int64 // when each sends its next heartbeat
}

func (s *services) now() limit.Time { return limit.Time(s.clock.Load()) }

func newServices(t testing.TB, server *redistest.Server, n int) *services {
	s := &services{TB: t, bound: make([]store.Counters, n), beats: make([]int64, n)}
	s.clock.Store(1_700_000_000_000_000_000)
	for range n {
		o := quiet(server.Addr())
		o.Prefix = fmt.Sprintf("services%d:", n)
		o.Local, o.Instances = memory.New(memory.Options{Now: s.now}), n
		one := connected(t, o, s.now)
		one.hold = 1e12 // the server's clock is not ours
		s.stores = append(s.stores, one)
	}
	return s
}

func (s *services) bind(id string, p limit.Policy) {
	for i, one := range s.stores {
		s.bound[i] = bind(s, one, id, p)
	}
}

// take takes one token at service i.
func (s *services) take(i int) bool {
	one := []store.Charge{local(s.bound[i], 0)}
	ok, err := s.stores[i].Take(s.Context(), one)
	if err != nil {
		s.Fatal(err)
	}
	if b := s.stores[i].lanes[0].breaker; ok && one[0].Failed && !b.open.Load() {
		s.settled(i)
	}
	return ok
}

// settled waits until what service i has admitted without Redis is charged.
func (s *services) settled(i int) {
	o := newOperation(verbPeek, 0)
	o.fill([]store.Charge{charge(s.bound[i], "k", 0)}, true)
	if o = s.stores[i].perform(s.Context(), o); o.err != nil {
		s.Fatal(o.err)
	}
	o.release()
}

// reach cuts service i off, or ends that.
func (s *services) reach(i int, on bool) {
	one := s.stores[i]
	b := one.lanes[0].breaker
	if on {
		if err := b.close(); err != nil {
			s.Fatal(err)
		}
		return
	}
	b.trip()
}

// cut says when a service cannot reach Redis, in seconds.
type cut struct {
	service  int
	from, to float64
}

// drawCuts draws when each of n services is cut off: all of them together, as when Redis ends, or each
// for itself.
func drawCuts(r *rand.Rand, n int, together bool, unit float64) (cuts []cut) {
	for at := unit * r.Float64(); len(cuts) < 4*n; at += unit * (1 + 4*r.Float64()) {
		long := unit * math.Pow(2, 4*r.Float64()-2)
		for i := range n {
			switch {
			case together: // and each is back within the time of two probes
				cuts = append(cuts, cut{i, at, at + long + 0.1*r.Float64()})
			case r.IntN(n) == 0:
				from := at + unit*r.Float64()
				cuts = append(cuts, cut{i, from, from + long*(0.5+r.Float64())})
			}
		}
		at += 2 * long
	}
	return cuts
}

// TestCutOff holds the bound for services of which some cannot reach Redis, whichever, whenever and for
// however long: in each interval of T seconds they admit at most
//
//	burst + rate x T + the sum over the services that were cut off of (burst + rate x D)/n
//
// where D is how long the service was cut off in it; or if Redis was away and all are back within
// breaker.grace, how long it was while another was not. And afterwards the limit is used as before.
//
//	STINT_HISTORIES=10000 go test ./store/redis -run 'TestCutOff$' -timeout 2h
func TestCutOff(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	server := redistest.Start(t)
	fleets := map[int]*services{}
	for n := 2; n <= 5; n++ {
		fleets[n] = newServices(t, server, n)
	}
	first := environment(t, "STINT_SEED", 1+rand.IntN(1e9))
	for i := range environment(t, "STINT_HISTORIES", 8) {
		seed := uint64(first) + uint64(i)
		r := rand.New(rand.NewPCG(seed, 28))
		n := 2 + r.IntN(4)
		rate := int64(n) * (1 + r.Int64N(40))
		period := []time.Duration{time.Second, 10 * time.Second, time.Minute}[r.IntN(3)]
		p := limit.Policy{Rate: limit.Rate{Count: rate, Period: period}, Burst: int64(n) * (1 + r.Int64N(rate))}
		if r.IntN(3) == 0 {
			p.Algorithm, p.Burst = limit.LeakyBucket, p.Burst-1
		}
		c := cutOff{services: fleets[n], r: r, policy: p, together: r.IntN(3) == 0}
		c.demand = []float64{0.6, 1.5, 3, 6}[r.IntN(4)]
		c.cuts = drawCuts(r, n, c.together, math.Max(1, period.Seconds()/2))
		c.run(fmt.Sprint("cut", seed))
		if t.Failed() {
			t.Fatalf("STINT_SEED=%d: %d services, %v, burst %d, demand %v times the rate, together %v, cuts %v", seed, n, p.Rate, p.Burst, c.demand, c.together, c.cuts)
		}
	}
}

// cutOff is one history.
type cutOff struct {
	*services
	r        *rand.Rand
	policy   limit.Policy
	together bool
	demand   float64
	cuts     []cut
}

func (c *cutOff) run(id string) {
	c.bind(id, c.policy)
	n, start := len(c.stores), c.clock.Load()
	rate := float64(c.policy.Rate.Count) / c.policy.Rate.Period.Seconds()
	quota := float64(c.policy.Quota())
	end := 0.0
	for _, k := range c.cuts {
		end = max(end, k.to)
	}
	over := end + 0.5                  // every cut is over,
	soon := over + max(1, 8/rate)      // and nobody waits for long for what was admitted in it,
	settled := over + 4*quota/rate + 5 // until all of that is settled
	end = settled + max(10, 30/rate)
	step := min(0.05, 0.2/rate)
	if end/step > 20_000 {
		step = end / 20_000
	}
	off, grace := make([]int, n), make([]bool, n)
	share := make(map[int]bool) // services whose burst counts
	admitted, excess, lowest := 0.0, 0.0, 0.0
	after, first, want := 0.0, 0.0, 0.0
	book, state := limit.NewBucket(c.policy), limit.BucketState{} // without any cut
	for at := 0.0; at < end; at += step {
		c.clock.Store(start + int64(at*1e6)*1000)
		for _, k := range c.cuts {
			for _, on := range []bool{false, true} {
				if moment := map[bool]float64{false: k.from, true: k.to}[on]; moment >= at || moment < at-step {
					continue
				}
				if on {
					if off[k.service]--; off[k.service] == 0 {
						c.reach(k.service, true)
						grace[k.service] = true
					}
				} else if off[k.service]++; off[k.service] == 1 {
					c.reach(k.service, false)
					share[k.service] = true
				}
			}
		}
		away := 0
		for i := range n {
			if b := c.stores[i].lanes[0].breaker; grace[i] && !b.rejoining() && !b.open.Load() {
				grace[i] = false
			}
			if off[i] > 0 || grace[i] {
				away++
			}
			if off[i] > 0 {
			} else if now := c.clock.Load(); now >= c.beats[i] {
				c.stores[i].settleAll()
				c.beats[i] = now + int64(heartbeat) + c.r.Int64N(int64(heartbeat))
			}
		}
		if !c.together || away < n {
			excess += rate * step * float64(away) / float64(n)
		}
		for tries := rate * c.demand * step; tries > 0; tries-- {
			if c.r.Float64() >= tries {
				continue
			}
			if book.Take(&state, c.now(), 1).Allowed && at >= settled {
				want++
			}
			if c.take(c.r.IntN(n)) {
				admitted++
				if at >= settled {
					after++
				}
				if at >= over && at < soon {
					first++
				}
			}
		}
		// The sum since the lowest point is the most of all intervals that end here.
		used := admitted - rate*at - excess
		most := quota + quota*float64(len(share))/float64(n)
		if used-lowest > most+1+rate*2*step {
			c.Errorf("%.1f admitted above the rate and the excess in an interval that ends at %.2f s, want at most %.0f", used-lowest, at, most)
			return
		}
		lowest = min(lowest, used)
	}
	if least := rate * (soon - over); c.demand > 1 && first < 0.8*least-math.Sqrt(least)-2 {
		c.Errorf("%.0f admitted in the %.2f s after the last cut, want about %.0f", first, soon-over, least)
	}
	if after < 0.9*want-math.Sqrt(want)-3 {
		c.Errorf("%.0f admitted in the last %.0f s, want %.0f as without a cut", after, end-settled, want)
	}
	for i, one := range c.stores {
		if err := one.Unbind(c.bound[i]); err != nil {
			c.Fatal(err)
		}
		one.localCharges.mu.Lock()
		one.localCharges.keys = nil
		one.localCharges.mu.Unlock()
		c.beats[i] = 0
	}
	c.clock.Add(int64(24 * time.Hour))
}

// TestCutOffServer cuts services off from a real server by their networks, and holds the bound of TestCutOff.
func TestCutOffServer(t *testing.T) {
	for n := 2; n <= 3; n++ {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			const rate, burst = 240, 120
			var proxies []*redistest.Proxy
			var loads []*load
			var away, admitted atomic.Int64 // nanoseconds in which one was cut off, and requests
			for range n {
				proxy := redistest.StartProxy(t, server.Addr())
				o := quiet(proxy.Addr())
				o.Timeout, o.Local, o.Instances = unhurried, memory.New(memory.Options{}), n
				s := connected(t, o, nil)
				c := bind(t, s, "l", tokens(rate, time.Second, burst))
				last := time.Now()
				loads = append(loads, startLoad(t, 1, time.Millisecond, func(int) (store.Charge, bool, error) {
					one := []store.Charge{local(c, 0)}
					ok, err := s.Take(context.Background(), one)
					if ok {
						admitted.Add(1)
					}
					now := time.Now()
					if one[0].Failed {
						away.Add(int64(now.Sub(last)))
					}
					last = now
					return one[0], ok, err
				}))
				proxies = append(proxies, proxy)
			}
			began := time.Now()
			await(t, "the burst to be used up", func() bool { return admitted.Load() > burst })
			for _, p := range proxies[1:] {
				p.Refuse(true)
				p.Cut()
			}
			for _, l := range loads[1:] {
				alone := l.failed.Load()
				await(t, "requests for several times a share without the server", func() bool { return l.failed.Load() > alone+5*burst })
			}
			for _, p := range proxies[1:] {
				p.Refuse(false)
			}
			for _, l := range loads[1:] {
				await(t, "all to be served by the server again", func() bool {
					before := l.failed.Load()
					l.each(t, 100)
					return l.failed.Load() == before
				})
			}
			back, then := time.Now(), admitted.Load()
			pass(time.Second) // a rate is measured
			after, took := float64(admitted.Load()-then), time.Since(back).Seconds()
			for _, l := range loads {
				l.end()
			}
			sum, all := float64(admitted.Load()), time.Since(began).Seconds()
			D := time.Duration(away.Load()).Seconds()
			most := burst + rate*all + burst*float64(n-1)/float64(n) + rate*D/float64(n) + 1
			t.Logf("%d services: %.0f admitted in %.2f s, at most %.0f; cut off for %.2f s together; %.0f/s afterwards, the limit is %d/s", n, sum, all, most, D, after/took, rate)
			if sum > most {
				t.Errorf("%.0f admitted, want at most %.0f", sum, most)
			}
			if after < 0.7*rate*took {
				t.Errorf("%.0f admitted in the %.2f s after all were back, want %.0f", after, took, rate*took)
			}
		})
	}
}
