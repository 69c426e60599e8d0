package redis

import (
	"context"
	"log/slog"
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/rueidis"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// network is a server of scalar states and the ways to it, in virtual time. A call is on its way, waits while the
// server stands still, is run unless it is void by then, and its answer is on its way; either way it is lost
// while the service is cut off.
type network struct {
	mu      sync.Mutex
	r       *rand.Rand
	rows    map[string]string
	frozen  chan struct{} // closed when the server goes on; nil = it does not stand still
	cut     []bool        // by service
	loses   []float64     // by service, the part of the calls and answers that is lost
	latency []time.Duration

	stores []*Store
	early  map[uint64]int64 // by permit, the takes that were run while the service had that much to settle
}

// way takes the time of one way and reports whether the other end is reached.
func (w *network) way(service int) bool {
	w.mu.Lock()
	d := time.Duration(w.r.ExpFloat64() * float64(w.latency[service]))
	w.mu.Unlock()
	time.Sleep(d)
	w.mu.Lock()
	defer w.mu.Unlock()
	return !w.cut[service] && w.r.Float64() >= w.loses[service]
}

// server returns the server as a service sees it.
func (w *network) server(service int) func(context.Context, []*batch, []int64) []reply {
	return func(ctx context.Context, batches []*batch, void []int64) []reply {
		calls := make([]*batch, len(batches)) // the sender uses its own again
		for i, b := range batches {
			calls[i] = &batch{scalars: b.scalars, buckets: append([]bucket(nil), b.buckets...)}
			for _, o := range b.ops {
				one := &operation{verb: o.verb, owed: o.owed, parts: append([]part(nil), o.parts...), in: append([]int(nil), o.in...)}
				calls[i].ops = append(calls[i].ops, one)
			}
		}
		answers := make(chan []reply, 1)
		go func() {
			if !w.way(service) {
				return
			}
			w.mu.Lock()
			for w.frozen != nil {
				wait := w.frozen
				w.mu.Unlock()
				<-wait
				w.mu.Lock()
			}
			replies := make([]reply, len(calls))
			for i, b := range calls {
				replies[i] = w.run(service, b, void[i])
			}
			w.mu.Unlock()
			if w.way(service) {
				answers <- replies
			}
		}()
		select {
		case replies := <-answers:
			return replies
		case <-ctx.Done():
			replies := make([]reply, len(batches))
			for i := range replies {
				replies[i].err = ctx.Err()
			}
			return replies
		}
	}
}

// run does what the script does. mu is held.
func (w *network) run(service int, b *batch, void int64) reply {
	now := limit.At(time.Now()) / 1000 * 1000
	a := reply{now: int64(now) / 1000}
	if void > 0 && a.now > void {
		a.out = late
		return a
	}
	for i := range b.buckets {
		k := &b.buckets[i]
		text, there := w.rows[k.key]
		a.raws = append(a.raws, raw{text, there})
		k.state = k.rule.decode(text)
	}
	for _, o := range b.ops {
		allowed := true
		for i, p := range o.parts {
			k := &b.buckets[o.in[i]]
			if o.verb == verbSettle {
				k.rule.settle(&k.state, now, p.cost, o.owed, p.terms.counts)
			} else {
				allowed = allowed && (k.rule.peek(k.state, now, p.cost, p.terms).Allowed || p.shadow)
			}
		}
		if o.verb != verbSettle && allowed {
			a.admitted++
		}
		for i, p := range o.parts {
			k := &b.buckets[o.in[i]]
			if o.verb == verbTake && allowed && p.cost > 0 && k.rule.peek(k.state, now, p.cost, p.terms).Allowed {
				k.rule.take(&k.state, now, p.cost, p.terms)
				// A token is lost in fractions.
				if left := w.stores[service].unsettled(p.key); p.permit != 0 && left > 1 {
					w.early[p.permit] = left
				}
			}
		}
	}
	for i := range b.buckets {
		k := &b.buckets[i]
		w.rows[k.key] = k.rule.encode(k.state)
	}
	return a
}

// unsettled is what a share refilled of what it admitted, and the server is not charged with.
func (s *Store) unsettled(key string) int64 {
	s.localCharges.mu.Lock()
	defer s.localCharges.mu.Unlock()
	e := s.localCharges.keys[key]
	if e == nil {
		return 0
	}
	if n := s.laneOf(key).breaker.outage(); n != 0 && e.outage == n {
		return e.cost + e.owed - s.lacks(key, e)
	}
	return e.cost
}

// noClient takes the place of a client that is never called.
type noClient struct{ rueidis.Client }

func (noClient) Close() {}

// TestFoundAgain: after an outage of any length Redis is asked again within a second, whether its server refused or did
// not answer meanwhile.
func TestFoundAgain(t *testing.T) {
	for seed := range seeding.Draw(t, 2) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 3))
			var away, silent atomic.Bool
			o := Options{Addrs: []string{"127.0.0.1:1"}, Timeout: 50 * time.Millisecond, Logger: slog.New(slog.DiscardHandler)}
			o.Topology = []Topology{Standalone, Cluster}[r.IntN(2)]
			s, err := build(o, nil)
			if err != nil {
				t.Fatal(err)
			}
			s.server = func(ctx context.Context, batches []*batch, _ []int64) []reply {
				replies := make([]reply, len(batches))
				if away.Load() {
					if silent.Load() {
						<-ctx.Done()
					}
					for i := range replies {
						replies[i].err = store.ErrUnavailable
					}
				}
				return replies
			}
			close(s.tried)
			if !s.meet(new(rueidis.Client(noClient{}))) {
				t.Fatal("closed")
			}
			b := s.laneOf("k").breaker
			for range 5 {
				time.Sleep(time.Millisecond)
				away.Store(true)
				silent.Store(r.IntN(2) == 0)
				b.failed(store.ErrUnavailable, s.clock(), "k")
				long := time.Duration(float64(time.Second) * math.Pow(2, 6*r.Float64()))
				time.Sleep(long)
				away.Store(false)
				time.Sleep(time.Second)
				if b.open.Load() {
					t.Errorf("seed %d: a second after an outage of %v Redis is not asked yet", seed, long)
				}
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestOutages holds the bounds of explanation/failures.md in virtual time, with servers that stand still, networks
// that are cut, answers that are lost or late, again and again, and any number of requests under way. The stores
// are real, but for the script and the connection. No answer of Redis is used that it gave while the service had
// something to settle. Afterwards the limit is used, and without requests all
// is paid that is owed. The log says of each outage that it began and ended.
//
//	STINT_HISTORIES=20000 go test ./store/redis -run 'TestOutages$' -timeout 2h
func TestOutages(t *testing.T) {
	first := environment(t, "STINT_SEED", 1+rand.IntN(1e9))
	histories := 25
	if testing.Short() {
		histories = 5 // which have all goroutines that the race detector watches
	}
	for i := range environment(t, "STINT_HISTORIES", histories) {
		outages(t, uint64(first)+uint64(i))
	}
}

func outages(t *testing.T, seed uint64) {
	fresh := func() { operations = sync.Pool{New: operations.New} } // their channels belong to the bubble
	fresh()
	defer fresh()
	defer func() {
		if t.Failed() {
			t.Logf("STINT_SEED=%d", seed)
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		r := rand.New(rand.NewPCG(seed, 1))
		n := 1 + max(0, r.IntN(7)-3)
		h := &outageHistory{TB: t, r: r, n: n, together: n > 1 && r.IntN(2) == 0}
		h.timeout = time.Duration(10+r.IntN(50)) * time.Millisecond
		rate := int64(n) * (1 + r.Int64N(int64(400/n)))
		h.policy = tokens(rate, time.Second, int64(n)*(1+r.Int64N(1+rate/2)))
		if r.IntN(4) == 0 {
			h.policy.Algorithm, h.policy.Burst = limit.LeakyBucket, h.policy.Burst-1
		}
		h.book = limit.NewBucket(h.policy)
		h.demand = []float64{0.5, 1.2, 3}[r.IntN(3)]
		h.run()
	})
}

// outageHistory is one history.
type outageHistory struct {
	testing.TB
	r        *rand.Rand
	n        int
	together bool // the server is away for all, or for none
	timeout  time.Duration
	policy   limit.Policy
	demand   float64 // of the rate

	net      *network
	stores   []*Store
	logs     []*journal
	bound    []store.Counters
	admitted atomic.Int64
	asked    atomic.Uint64

	book  limit.Bucket // which never fails
	state limit.BucketState
}

func (h *outageHistory) run() {
	h.net = &network{
		r: rand.New(rand.NewPCG(h.r.Uint64(), 2)), rows: map[string]string{},
		cut: make([]bool, h.n), loses: make([]float64, h.n), latency: make([]time.Duration, h.n),
		early: map[uint64]int64{},
	}
	rate, quota := float64(h.policy.Rate.Count), float64(h.policy.Quota())
	var beats sync.WaitGroup
	for i := range h.n {
		h.logs = append(h.logs, new(journal))
		o := Options{Addrs: []string{"127.0.0.1:1"}, Timeout: h.timeout, Instances: h.n, Local: memory.New(memory.Options{}), Logger: h.logs[i].logger()}
		s, err := build(o, nil)
		if err != nil {
			h.Fatal(err)
		}
		s.server = h.net.server(i)
		close(s.tried)
		if !s.meet(new(rueidis.Client(noClient{}))) {
			h.Fatal("closed")
		}
		// Calls are few and far between where the quota fills in a round trip.
		h.net.latency[i] = time.Duration(h.r.Float64() * min(float64(h.timeout)/10, quota/rate/10*float64(time.Second)))
		h.stores, h.bound = append(h.stores, s), append(h.bound, bind(h, s, "l", h.policy))
		beats.Go(func() {
			for s.wait(jitter(2 * heartbeat)) {
				s.settleAll()
			}
		})
	}
	h.net.stores = h.stores
	h.load(h.fault)
	// The limit is used as without an outage once what shares owe is paid.
	settled := time.Duration(math.Ceil(4*quota/rate+5)) * time.Second
	if h.demand < 1 {
		time.Sleep(settled)
		h.idle()
	}
	// From here on it admits what a limit admits that never fails, but for what is paid meanwhile.
	time.Sleep(2 * h.timeout)
	before, owed := h.admitted.Load(), h.owed()
	rule := h.bound[0].(*Counters).bound.Load().rule
	h.net.mu.Lock()
	h.state = rule.decode(h.net.rows[h.stores[0].keyOf(h.bound[0], "k")]).bucket
	h.net.mu.Unlock()
	want := h.load(nil) - float64(owed)
	if got := float64(h.admitted.Load() - before); got < 0.9*want-math.Sqrt(max(0, want))-3 {
		h.Errorf("%d services, %+v, demand %v: %.0f admitted after all outages, want %.0f", h.n, h.policy, h.demand, got, want)
	}
	time.Sleep(settled)
	h.idle()
	for _, s := range h.stores {
		if err := s.Close(); err != nil {
			h.Fatal(err)
		}
	}
	beats.Wait()
	for i, log := range h.logs {
		h.saysBoth(i, log)
	}
}

// saysBoth holds the log of a service to what operators are to see of each outage: that the store does not answer, and why,
// and that it answers again.
func (h *outageHistory) saysBoth(service int, log *journal) {
	out, first := false, true // it begins with a store that was not reached yet
	for _, line := range log.all() {
		switch {
		case strings.Contains(line, "the store does not answer"):
			out = true
		case !strings.Contains(line, "the store answers"):
		case !out && !first:
			h.Errorf("service %d: %q without a line that says that it did not", service, line)
		default:
			out, first = false, false
		}
	}
	if out {
		h.Errorf("service %d: no line says that the store answers again: %v", service, log)
	}
}

// owed is what shares owe.
func (h *outageHistory) owed() (sum int64) {
	for _, s := range h.stores {
		s.localCharges.mu.Lock()
		for _, c := range s.localCharges.keys {
			sum += c.owed + c.cost
		}
		s.localCharges.mu.Unlock()
	}
	return sum
}

// idle holds that all is paid, but for the last token, which is for requests.
func (h *outageHistory) idle() {
	if owed := h.owed(); owed > 0 && h.policy.Quota() > 1 {
		h.Errorf("%d services, %+v: shares still owe %d", h.n, h.policy, owed)
	}
}

// fault lets something fail once, for a while.
func (h *outageHistory) fault() {
	w, r := h.net, h.r
	long := time.Duration(float64(h.timeout) * math.Pow(2, 6*r.Float64()-1))
	i := r.IntN(h.n)
	what := r.IntN(4)
	if h.together {
		what = 0
	}
	w.mu.Lock()
	lasts := w.latency[i]
	switch what {
	case 0:
		w.frozen = make(chan struct{})
	case 1:
		w.cut[i] = true
	case 2:
		w.loses[i] = r.Float64()
	case 3:
		w.latency[i] = time.Duration(r.Float64() * float64(h.timeout))
	}
	w.mu.Unlock()
	time.Sleep(long)
	w.mu.Lock()
	if w.frozen != nil {
		close(w.frozen)
	}
	w.frozen, w.cut[i], w.loses[i], w.latency[i] = nil, false, 0, lasts
	if !h.together && r.IntN(2) == 0 { // some of what follows is lost
		w.loses[i] = r.Float64()
		w.mu.Unlock()
		time.Sleep(time.Duration(r.Int64N(int64(2 * longestPause))))
		w.mu.Lock()
		w.loses[i] = 0
	}
	w.mu.Unlock()
}

// load has requests asked for as long as up to 24 faults take, or for some seconds without any, and holds the
// bound. It returns how many a limit admits that never fails.
func (h *outageHistory) load(fault func()) (want float64) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var all sync.WaitGroup
	var mu sync.Mutex
	for i := range h.n {
		pause := float64(h.n) / (float64(h.policy.Rate.Count) * h.demand) * float64(time.Second)
		r := rand.New(rand.NewPCG(h.r.Uint64(), 3))
		all.Go(func() {
			for ctx.Err() == nil {
				many := 1 + r.IntN(4)
				time.Sleep(time.Duration(r.ExpFloat64() * pause * float64(many)))
				for range many {
					mu.Lock()
					if h.book.Take(&h.state, limit.At(time.Now()), 1).Allowed {
						want++
					}
					mu.Unlock()
					all.Go(func() {
						id := h.asked.Add(1)
						one := []store.Charge{local(h.bound[i], id)}
						ok, err := h.stores[i].Take(context.Background(), one)
						if err != nil {
							h.Error(err)
						}
						if ok {
							h.admitted.Add(1)
						}
						h.net.mu.Lock()
						if left := h.net.early[id]; left > 0 && ok && !one[0].Failed {
							h.Errorf("Redis admitted a request while the service had %d to settle", left)
						}
						h.net.mu.Unlock()
					})
				}
			}
		})
	}
	all.Go(func() { h.watch(ctx) })
	if fault == nil {
		time.Sleep(time.Duration(math.Ceil(2+10/float64(h.policy.Rate.Count))) * time.Second)
	} else {
		for range 1 + h.r.IntN(24) {
			time.Sleep(time.Duration(float64(h.timeout) * math.Pow(2, 5*h.r.Float64()-1)))
			fault()
		}
		time.Sleep(time.Second)
	}
	cancel()
	all.Wait()
	return want
}

// watch holds the bound until ctx ends.
func (h *outageHistory) watch(ctx context.Context) {
	const glance = time.Millisecond
	rate, quota := float64(h.policy.Rate.Count), float64(h.policy.Quota())
	most := 2*quota + 1 + float64(h.n) + rate*2*glance.Seconds() // fractions of tokens are lost for each share
	// Requests that were charged before an interval that does not begin with the load are answered in it.
	flying := rate * h.timeout.Seconds()
	began, before := time.Now(), h.admitted.Load()
	excess, lowest := 0.0, 0.0
	for ctx.Err() == nil {
		time.Sleep(glance)
		away := 0
		for _, s := range h.stores {
			if s.lanes[0].breaker.outage() != 0 || s.lanes[0].breaker.open.Load() {
				away++
			}
		}
		if h.n > 1 && !(h.together && away == h.n) {
			excess += rate * glance.Seconds() * float64(away) / float64(h.n)
		}
		used := float64(h.admitted.Load()-before) - rate*time.Since(began).Seconds() - excess
		if used > most || used-lowest > most+flying {
			h.Errorf("%d services, %+v, together %v: %.1f admitted above the rate and the excess in %v, and %.1f in an interval of it, want at most %.1f and %.1f more",
				h.n, h.policy, h.together, used, time.Since(began), used-lowest, most, flying)
			return
		}
		lowest = min(lowest, used)
	}
}
