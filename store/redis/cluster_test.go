package redis

import (
	"context"
	"flag"
	"fmt"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// byMaster returns n keys of each master, by the master's address.
func byMaster(t *testing.T, cluster *redistest.Cluster, s *Store, c store.Counters, n int) map[string][]string {
	t.Helper()
	keys := make(map[string][]string)
	head := c.(*Counters).bound.Load().head
	owner := make(map[int]string) // by lane, whose slots are those of one master but for two
	for i := 0; len(keys) < 3 || slices.ContainsFunc(slices.Collect(values(keys)), func(k []string) bool { return len(k) < n }); i++ {
		key := fmt.Sprint("k", i)
		full := string(appendKey([]byte(head), []byte(key)))
		lane := int(slot(full)) / (slots / clusterLanes)
		if lane == 21 || lane == 42 {
			continue // shared by two masters
		}
		if owner[lane] == "" {
			owner[lane] = cluster.Master(full).Addr()
		}
		if at := owner[lane]; len(keys[at]) < n {
			keys[at] = append(keys[at], key)
		}
	}
	return keys
}

func values(m map[string][]string) func(func([]string) bool) {
	return func(yield func([]string) bool) {
		for _, v := range m {
			if !yield(v) {
				return
			}
		}
	}
}

// TestClusterMasterKilled kills a master under load.
func TestClusterMasterKilled(t *testing.T) {
	// Otherwise every node refuses everything until the failover.
	cluster := redistest.StartCluster(t, "--cluster-require-full-coverage", "no")
	for _, master := range cluster.Nodes[:3] {
		awaitStream(t, master)
	}
	lines := new(journal)
	s := connected(t, Options{Topology: Cluster, Addrs: cluster.Addrs(), Timeout: 2 * unhurried, Logger: lines.logger()}, nil)
	const burst, perKey = 1 << 30, 24
	c := bind(t, s, "l", still(burst))
	keys := byMaster(t, cluster, s, c, perKey)
	lost := cluster.Nodes[0]
	var names []string
	for _, k := range keys {
		names = append(names, k...)
	}
	admitted, failed := make(map[string]*atomic.Int64), make(map[string]*atomic.Int64)
	for _, k := range names {
		admitted[k], failed[k] = new(atomic.Int64), new(atomic.Int64)
	}
	onLost := func(k string) bool { return slices.Contains(keys[lost.Addr()], k) }
	var away, there waits // how long requests for its keys waited, and the others
	var failedThere atomic.Int64
	var mu sync.Mutex
	l := startLoad(t, len(names), 4*time.Millisecond, func(worker int) (store.Charge, bool, error) {
		key := names[worker]
		one := []store.Charge{charge(c, key, 1)}
		began := time.Now()
		ok, err := s.Take(context.Background(), one)
		took := time.Since(began)
		mu.Lock()
		if onLost(key) {
			away = append(away, took)
		} else {
			there = append(there, took)
			if err != nil {
				failedThere.Add(1)
			}
		}
		mu.Unlock()
		if ok && err == nil {
			admitted[key].Add(1)
		} else if err != nil {
			failed[key].Add(1)
		}
		return one[0], ok, err
	})
	l.each(t, 50)
	_, late := l.cut()
	mu.Lock()
	punctual(t, "before", append(slices.Clone(away), there...), s.opts.Timeout, late)
	away, there = nil, nil
	mu.Unlock()
	failedThere.Store(0)
	address := lost.Addr()
	one := keys[address][0]
	fails := failed[one].Load()
	lost.Kill()
	killed := time.Now()
	attempts := countAt(t, address)
	await(t, "the loss to be noticed", func() bool { return failed[one].Load() > fails })
	before := admitted[one].Load()
	await(t, "the failover", func() bool { return admitted[one].Load() > before })
	failover := time.Since(killed)
	await(t, "all keys to be decided again", func() bool { return s.Ready() == nil })
	whole := time.Since(killed)
	l.end()
	_, late = l.cut()
	mu.Lock()
	punctual(t, "keys of the master that was killed", away, s.opts.Timeout, late)
	punctual(t, "keys of others", there, s.opts.Timeout, late)
	mu.Unlock()
	t.Logf("decided again %v after the kill, ready %v after; %d requests for other masters failed of %d; %d connection attempts to the dead master",
		failover.Round(time.Millisecond), whole.Round(time.Millisecond), failedThere.Load(), len(there), attempts.came.Load())
	atMost(t, lines, 12)
	if failedThere.Load() > 0 && late < s.opts.Timeout/8 { // what the machine does not explain
		t.Errorf("%d requests for other masters failed", failedThere.Load())
	}
	accounts(t, s, c, names, onLost, late, admitted, failed)
	for _, k := range keys[address] {
		exact(t, s, c, k)
	}
}

// atMost fails when more lines were logged.
func atMost(t *testing.T, lines *journal, most int) {
	t.Helper()
	if n := len(lines.all()); n > most {
		t.Errorf("%d lines were logged:\n%s", n, lines)
	}
}

// accounts compares what was admitted with what is charged after a failover. Those
// keys whose master was lost may have lost what it had not passed on, for as long as the
// machine gave it no processor besides.
func accounts(t *testing.T, s *Store, c store.Counters, names []string, lost func(string) bool, late time.Duration, admitted, failed map[string]*atomic.Int64) {
	t.Helper()
	var over, under, most int64
	for _, k := range names {
		diff := admitted[k].Load() - used(t, s, c, k)
		// A request that was not answered in time, as on a busy machine, may have been charged.
		if !lost(k) && (diff > 0 || -diff > failed[k].Load()) {
			t.Errorf("key %s of another master: %d more admitted than charged, %d not answered", k, diff, failed[k].Load())
		}
		over, under, most = over+max(diff, 0), under+max(-diff, 0), max(most, diff)
	}
	t.Logf("admitted and lost with the master: %d in all, at most %d for one key; charged and not told: %d", over, most, under)
	if most > 20+int64(late/(4*time.Millisecond)) {
		t.Errorf("%d admissions of one key were lost, more than a tenth of a second of its requests", most)
	}
}

// exact has each of some requests charged once.
func exact(t *testing.T, s *Store, c store.Counters, k string) {
	t.Helper()
	was := used(t, s, c, k)
	for range 20 {
		if ok, err := s.Take(t.Context(), []store.Charge{charge(c, k, 1)}); !ok || err != nil {
			t.Fatalf("key %s after the failover: %v, %v", k, ok, err)
		}
	}
	if got := used(t, s, c, k); got != was+20 {
		t.Errorf("key %s after the failover: %d charged, want %d", k, got-was, 20)
	}
}

// countAt listens at the address of a server that is gone, closes what comes and
// counts it.
func countAt(t *testing.T, address string) *door {
	t.Helper()
	return openDoorAt(t, address, func(net.Conn) {})
}

// TestClusterPairs charges pairs of keys in different slots from both sides.
func TestClusterPairs(t *testing.T) {
	// No master is replaced because it stands still.
	cluster := redistest.StartCluster(t, "--cluster-node-timeout", "60000")
	s := connected(t, Options{Topology: Cluster, Addrs: cluster.Addrs(), Timeout: patient, Logger: new(journal).logger()}, nil)
	t.Run("totals", func(t *testing.T) { pairTotals(t, s) })
	t.Run("refusals leave nothing", func(t *testing.T) { nothingLeft(t, s) })
	t.Run("ready when all is back", func(t *testing.T) {
		for round := range 100 {
			for i := range s.lanes {
				key := string(appendKey([]byte("{b:l:"), fmt.Append(nil, round, i)))
				s.lanes[i].breaker.failed(errAnswer, s.clock(), key)
			}
			await(t, "all breakers to close", func() bool { return s.Stats().BreakerOpen == 0 })
			if err := s.Ready(); err != nil {
				t.Fatalf("round %d: every breaker is closed and Ready says %v", round, err)
			}
		}
	})
	t.Run("void in a slot never asked before", func(t *testing.T) { voidSlots(t, cluster) })
	t.Run("one of two masters stands still", func(t *testing.T) { halfFrozen(t, cluster) })
	t.Run("giving back after the window", func(t *testing.T) {
		givingBackLate(t, cluster)
	})
	for _, algorithm := range []limit.Algorithm{limit.FixedWindow, limit.SlidingWindowCounter, limit.SlidingWindowLog} {
		t.Run(fmt.Sprintf("giving back when windows turn, %v", algorithm), func(t *testing.T) {
			turning(t, s, algorithm)
		})
	}
}

// turning sends pairs that are refused, so that the charge of their first key is given back, and
// single requests for that key, across the edges of its windows. No window may admit more than
// its count.
func turning(t *testing.T, s *Store, algorithm limit.Algorithm) {
	const count, period = 100, 50 * time.Millisecond
	a := bind(t, s, fmt.Sprint("turn", algorithm), limit.Policy{Algorithm: algorithm, Rate: limit.Rate{Count: count, Period: period}})
	none := bind(t, s, "none3", still(0))
	var mu sync.Mutex
	var list []bracket
	l := startLoad(t, 16, time.Millisecond, func(worker int) (store.Charge, bool, error) {
		if worker%2 == 0 {
			pair := []store.Charge{charge(a, "x", 10), charge(none, "z", 1)}
			ok, err := s.Take(context.Background(), pair)
			return pair[0], ok, err
		}
		one := []store.Charge{charge(a, "x", 1)}
		before := time.Now()
		ok, err := s.Take(context.Background(), one)
		if ok && err == nil {
			mu.Lock()
			list = append(list, bracket{before.UnixNano(), time.Now().UnixNano()})
			mu.Unlock()
		}
		return one[0], ok, err
	})
	await(t, "admissions in ten windows", func() bool {
		mu.Lock()
		defer mu.Unlock()
		windows := map[int64]bool{}
		for _, b := range list {
			windows[b.after/int64(period)] = true
		}
		return len(windows) >= 10
	})
	l.end()
	worst := worstSpan(list, int64(period))
	if algorithm == limit.FixedWindow {
		worst = worstWindow(list, int64(period))
	}
	t.Logf("admitted %d, the most in one window %d of %d", len(list), worst, count)
	most := int64(count)
	if algorithm == limit.SlidingWindowCounter {
		most = 2 * count // it estimates the span before
	}
	if worst > most {
		t.Errorf("%d were admitted in one window, want at most %d", worst, most)
	}
}

// givingBackLate gives back what was taken in a window that has ended. That must
// not make room in the next.
func givingBackLate(t *testing.T, cluster *redistest.Cluster) {
	var now atomic.Int64
	now.Store(int64(100 * time.Hour))
	s := connected(t, Options{Topology: Cluster, Addrs: cluster.Addrs(), Timeout: patient, Prefix: "late:", Logger: new(journal).logger()}, func() limit.Time { return limit.Time(now.Load()) })
	for _, algorithm := range []limit.Algorithm{limit.FixedWindow, limit.SlidingWindowCounter, limit.SlidingWindowLog} {
		c := bind(t, s, fmt.Sprint("l", algorithm), limit.Policy{Algorithm: algorithm, Rate: limit.Rate{Count: 10, Period: time.Second}})
		take := func(cost int64) *operation {
			o := newOperation(verbTake, s.clock())
			o.fill([]store.Charge{charge(c, "k", cost)}, true)
			o.split = true
			if o = s.ask(t.Context(), o); o.err != nil || !o.allowed {
				t.Fatalf("%v: taking %d: %v, %v", algorithm, cost, o.allowed, o.err)
			}
			return o
		}
		first := take(3)
		now.Add(int64(3 * time.Second / 2))
		take(5)
		s.giveBack(first)
		await(t, "the giving back", func() bool {
			l := s.laneOf(first.parts[0].key)
			l.mu.Lock()
			defer l.mu.Unlock()
			return len(l.working) == 0
		})
		if got := used(t, s, c, "k"); got < 5 {
			t.Errorf("%v: 5 were admitted in this window, and %d are charged: giving back of 3 of the last one makes room", algorithm, got)
		}
	}
}

// voidSlots freezes a master for less than it takes to lose its part, and asks for
// keys of slots that were never asked for.
func voidSlots(t *testing.T, cluster *redistest.Cluster) {
	s := connected(t, Options{Topology: Cluster, Addrs: cluster.Addrs(), Timeout: unhurried, Prefix: "void:", Logger: new(journal).logger()}, nil)
	c := bind(t, s, "l", still(100))
	master := cluster.Nodes[0]
	keys := byMaster(t, cluster, s, c, 60)[master.Addr()]
	lanes := make(map[*lane]bool)
	var fresh []string
	for _, k := range keys {
		l := s.laneOf(string(appendKey([]byte(c.(*Counters).bound.Load().head), []byte(k))))
		if lanes[l] {
			fresh = append(fresh, k)
			continue
		}
		lanes[l] = true
		if ok, err := s.Take(t.Context(), []store.Charge{charge(c, k, 1)}); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	master.Freeze()
	var wg sync.WaitGroup
	for _, k := range fresh {
		wg.Go(func() {
			if ok, err := s.Take(t.Context(), []store.Charge{charge(c, k, 1)}); ok || err == nil {
				t.Errorf("key %s: %v, %v of a master that stands still", k, ok, err)
			}
		})
	}
	wg.Wait()
	pass(inTransit)
	master.Thaw()
	await(t, "Ready", func() bool { return s.Ready() == nil })
	charged := int64(0)
	for _, k := range fresh {
		charged += used(t, s, c, k)
	}
	t.Logf("%d keys in %d lanes: %d charged", len(fresh), len(lanes), charged)
	if charged > 0 {
		t.Errorf("%d of %d that were answered without their counters are charged", charged, len(fresh))
	}
}

var quietMachine = flag.Bool("quiet-machine", false, "hold TestClusterPairs to the time-out itself, which a busy machine does not meet")

// halfFrozen takes pairs of which one key's master stands still.
func halfFrozen(t *testing.T, cluster *redistest.Cluster) {
	s := connected(t, Options{Topology: Cluster, Addrs: cluster.Addrs(), Timeout: unhurried, Prefix: "half:", Logger: new(journal).logger()}, nil)
	c := bind(t, s, "l", still(100))
	keys := byMaster(t, cluster, s, c, 4)
	frozen := cluster.Nodes[0]
	gone, there := keys[frozen.Addr()], keys[cluster.Nodes[1].Addr()]
	for _, k := range slices.Concat(gone, there) {
		if ok, err := s.Take(t.Context(), []store.Charge{charge(c, k, 1)}); !ok || err != nil {
			t.Fatal(ok, err)
		}
	}
	machine := machineLate(t)
	for i, f := range []struct {
		how     store.OnFailure
		allowed bool
		left    int64 // charged to the key that is there
	}{{store.FailTake, false, 1}, {store.FailReject, false, 1}, {store.FailAllow, true, 2}} {
		frozen.Freeze()
		machine()
		pair := []store.Charge{charge(c, gone[i], 1), charge(c, there[i], 1)}
		pair[0].OnFailure, pair[1].OnFailure = f.how, f.how
		began := time.Now()
		ok, err := s.Take(t.Context(), pair)
		answered := time.Since(began)
		if ok != f.allowed || (err != nil) != (f.how == store.FailTake) {
			t.Errorf("way %d: %v, %v", f.how, ok, err)
		}
		await(t, "the other key to be whole", func() bool { return used(t, s, c, there[i]) == f.left })
		whole, late := time.Since(began), machine()
		// By then it must not charge: it may for as long after the time-out as a call is in transit,
		// which is milliseconds on a busy machine.
		pass(20*time.Millisecond + late)
		frozen.Thaw()
		await(t, "Ready", func() bool { return s.Ready() == nil })
		t.Logf("way %d: answered after %v, the other key whole after %v", f.how, answered.Round(time.Microsecond), whole.Round(time.Microsecond))
		bound := 2 * s.opts.Timeout // the master stands still for longer; a busy machine wakes goroutines late
		if *quietMachine {
			bound = s.opts.Timeout + 5*time.Millisecond
		}
		if answered > bound+2*late || whole > 3*s.opts.Timeout+2*late {
			t.Errorf("way %d: answered after %v, whole after %v, want within %v and %v; the machine adds %v", f.how, answered, whole, bound, 3*s.opts.Timeout, late)
		}
		if got := used(t, s, c, gone[i]); got != 1 {
			t.Errorf("way %d: %d are charged where the master stood still, want 1", f.how, got)
		}
	}
}

// pairTotals has 64 goroutines charge one pair in both orders, until one key is used up.
func pairTotals(t *testing.T, s *Store) {
	const quota = 3000
	a, b := bind(t, s, "a", still(quota)), bind(t, s, "b", still(quota+500))
	var both, refused atomic.Int64
	var wg sync.WaitGroup
	for n := range 64 {
		wg.Go(func() {
			for i := range 80 {
				pair := []store.Charge{charge(a, "x", 1), charge(b, "y", 1)}
				if (n+i)%2 == 0 {
					slices.Reverse(pair)
				}
				ok, err := s.Take(t.Context(), pair)
				switch {
				case err != nil:
					t.Errorf("Take: %v", err)
				case ok:
					both.Add(1)
				default:
					refused.Add(1)
				}
			}
		})
	}
	wg.Wait()
	// What is given back is on its way.
	began := time.Now()
	await(t, "both keys to hold what was admitted", func() bool {
		return used(t, s, a, "x") == both.Load() && used(t, s, b, "y") == both.Load()
	})
	t.Logf("admitted %d, refused %d; whole %v after the last answer", both.Load(), refused.Load(), time.Since(began).Round(time.Microsecond))
	if both.Load() != quota {
		t.Errorf("admitted %d, want %d", both.Load(), quota)
	}
}

// nothingLeft has a request over five limits refused by one, and admitted when that is a
// shadow.
func nothingLeft(t *testing.T, s *Store) {
	a, none := bind(t, s, "a2", still(1000)), bind(t, s, "none2", still(0))
	c := bind(t, s, "c2", limit.Policy{Algorithm: limit.Concurrency, MaxInFlight: 10, Timeout: time.Minute})
	log := bind(t, s, "log2", limit.Policy{Algorithm: limit.SlidingWindowLog, Rate: limit.Rate{Count: 10, Period: time.Hour}})
	counted := bind(t, s, "count2", limit.Policy{Algorithm: limit.SlidingWindowCounter, Rate: limit.Rate{Count: 1000, Period: 1000 * time.Hour}, CountRefused: true})
	list := []store.Charge{charge(a, "x", 3), charge(none, "z", 1), charge(c, "p", 2), charge(log, "q", 4), charge(counted, "r", 5)}
	list[2].Permit = 77
	ok, err := s.Take(t.Context(), list)
	if ok || err != nil {
		t.Fatalf("Take: %v, %v, want a refusal", ok, err)
	}
	for i, want := range []int64{1000, 0, 10, 10, 995} {
		if got := list[i].Verdict.Remaining; got != want {
			t.Errorf("the refusal says that %d remain of limit %d, want %d", got, i, want)
		}
	}
	await(t, "all to be given back", func() bool {
		return used(t, s, a, "x") == 0 && used(t, s, c, "p") == 0 && used(t, s, log, "q") == 0 && used(t, s, counted, "r") == 5
	})
	list[1].Shadow = true
	list[2].Permit = 78
	if ok, err := s.Take(t.Context(), list); !ok || err != nil {
		t.Fatalf("Take with a shadow that does not fit: %v, %v", ok, err)
	}
	if got := []int64{used(t, s, a, "x"), used(t, s, c, "p"), used(t, s, log, "q"), used(t, s, counted, "r")}; !slices.Equal(got, []int64{3, 2, 4, 10}) {
		t.Errorf("charged %v, want 3, 2, 4 and 10", got)
	}
	if err := s.Finish(t.Context(), list); err != nil {
		t.Error(err)
	}
	if got := used(t, s, c, "p"); got != 0 {
		t.Errorf("%d places are taken after Finish", got)
	}
}
