//go:build linux

package client_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/cluster/clusterurl"
	"github.com/stint-io/stint/internal/etcdtest"
	"github.com/stint-io/stint/internal/redistest"
)

// node is a member of a cluster, in a process of its own, with a proxy on its way to etcd.
type node struct {
	*service
	name    string
	backend *road
}

// nodes are three members and their etcd.
type nodes struct {
	t        *testing.T
	etcd     *etcdtest.Server
	register cluster.Register
	all      []*node
}

// newNodes prepares three members of which none runs.
func newNodes(t *testing.T, limits string) *nodes {
	t.Helper()
	n := &nodes{t: t, etcd: etcdtest.Start(t)}
	register, err := clusterurl.Open("etcd://" + n.etcd.Addr() + "/stint")
	if err != nil {
		t.Fatal(err)
	}
	n.register = register
	if c, ok := register.(io.Closer); ok {
		t.Cleanup(func() { _ = c.Close() })
	}
	for i := range 3 {
		m := &node{name: fmt.Sprint("member-", i), backend: newRoad(t, n.etcd.Addr())}
		m.service = &service{config: filepath.Join(t.TempDir(), "stint.yaml"), address: net.JoinHostPort("127.0.0.1", strconv.Itoa(redistest.ReservePort(t)))}
		m.env = []string{
			"STINT_TEST_PROCESS=serve", "STINT_TEST_CONFIG=" + m.config, "STINT_TEST_ADDRESS=" + m.address, "STINT_TEST_NODE=" + m.name,
			"STINT_TEST_CLUSTER=etcd://" + m.backend.listener.Addr().String() + "/stint",
		}
		n.all = append(n.all, m)
	}
	n.configure(limits)
	return n
}

// configure writes the limits of all members, which load them again by themselves.
func (n *nodes) configure(limits string) {
	for _, m := range n.all {
		if err := os.WriteFile(m.config, []byte(limits), 0o600); err != nil {
			n.t.Fatal(err)
		}
	}
}

// begin starts the process; ready waits until it serves.
func (m *node) begin(t *testing.T) { m.process = launch(t, m.env...) }

func (m *node) ready(t *testing.T) {
	t.Helper()
	if !m.out.Scan() {
		t.Fatalf("%s did not start", m.name)
	}
}

func (n *nodes) start() {
	n.t.Helper()
	for _, m := range n.all {
		m.begin(n.t)
	}
	for _, m := range n.all {
		m.ready(n.t)
	}
}

// restart ends a process that stands still or has been killed, and starts another.
func (n *nodes) restart(m *node) {
	n.t.Helper()
	m.kill()
	m.later()
	m.begin(n.t)
	m.ready(n.t)
}

// later says that a start is not the first one.
func (m *node) later() {
	if !slices.Contains(m.env, "STINT_TEST_LATER=1") {
		m.env = append(m.env, "STINT_TEST_LATER=1")
	}
}

// spread waits until each of the shards is led by the member that should lead it.
func (n *nodes) spread(shards int) {
	n.t.Helper()
	var members []cluster.Member
	for _, m := range n.all {
		members = append(members, cluster.Member{ID: m.name})
	}
	for shard := range shards {
		scope := fmt.Sprintf("leases-%dof%d", shard, shards)
		preferred, _ := cluster.Preferred(members, scope)
		await(n.t, "the leader of "+scope, func() bool {
			record, err := n.register.Read(n.t.Context(), "leader/"+scope)
			var claim struct {
				ID       string `json:"id"`
				Resigned bool   `json:"resigned"`
			}
			return err == nil && json.Unmarshal(record.Value, &claim) == nil && !claim.Resigned && claim.ID == preferred.ID
		})
	}
}

// leader waits until a member other than except is recorded as the leader.
func (n *nodes) leader(except *node) (leader *node) {
	n.t.Helper()
	await(n.t, "a leader", func() bool {
		record, err := n.register.Read(n.t.Context(), "leader/leases")
		var claim struct {
			ID       string `json:"id"`
			Resigned bool   `json:"resigned"`
		}
		if err != nil || json.Unmarshal(record.Value, &claim) != nil || claim.Resigned {
			return false
		}
		for _, m := range n.all {
			if m.name == claim.ID && m != except {
				leader = m
			}
		}
		return leader != nil
	})
	return leader
}

func (n *nodes) addresses() (list []string) {
	for _, m := range n.all {
		list = append(list, m.address)
	}
	return list
}

// proxied takes the streams to each member through proxies of one client's own, wherever it is
// redirected to.
type proxied struct {
	client.Transport
	roads map[string]*road
}

func (p *proxied) Connect(ctx context.Context, address string) (client.Stream, error) {
	return p.Transport.Connect(ctx, p.roads[address].listener.Addr().String())
}

// cut parts the client from all members, or lets it reach them again.
func (p *proxied) cut(yes bool) {
	for _, r := range p.roads {
		r.set(func() { r.cut = yes })
		if yes {
			r.sever()
		}
	}
}

// worker is an instance in this process. It asks as often as demand says.
type worker struct {
	name    string
	demand  atomic.Int64 // requests per second
	limiter *client.Limiter
	links   *proxied
	carry   float64
}

// fleet is the instances, and what they were admitted.
type fleet struct {
	t       *testing.T
	workers []*worker
	book    events
	asked   atomic.Int64
	slowest atomic.Int64 // the longest call in nanoseconds
	stood   atomic.Int64 // the longest time in nanoseconds for which no goroutine that only sleeps was run
}

// newFleet starts instances; each has proxies of its own if proxies says so.
func newFleet(t *testing.T, n *nodes, size int, limitName string, proxies bool) *fleet {
	t.Helper()
	f := &fleet{t: t}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	addresses := n.addresses()
	for i := range size {
		w := &worker{name: fmt.Sprint("worker-", i)}
		order := append(slices.Clone(addresses[i%len(addresses):]), addresses[:i%len(addresses)]...)
		o := client.Options{Address: order[0], Others: order[1:], Instance: w.name, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
		if proxies {
			w.links = &proxied{Transport: client.NewTransport(o), roads: map[string]*road{}}
			for _, a := range addresses {
				w.links.roads[a] = newRoad(t, a)
			}
			o.Transport = w.links
		}
		c, err := client.New(o)
		if err != nil {
			t.Fatal(err)
		}
		if w.limiter, err = c.Limit(limitName, client.LimitOptions{}); err != nil {
			t.Fatal(err)
		}
		running.Go(func() {
			if err := c.Run(ctx); err != nil {
				t.Errorf("Run: %v", err)
			}
		})
		f.workers = append(f.workers, w)
	}
	// One goroutine asks for 50 instances: a tick for each of a thousand would be most of the load.
	for group := range slices.Chunk(f.workers, 50) {
		running.Go(func() { f.ask(ctx, group) })
	}
	running.Go(func() {
		const slot = 5 * time.Millisecond
		for last := time.Now(); ctx.Err() == nil; last = time.Now() {
			<-time.After(slot)
			f.stood.Store(max(f.stood.Load(), int64(time.Since(last)-slot)))
		}
	})
	t.Cleanup(func() {
		cancel()
		running.Wait()
	})
	return f
}

// ask has the workers ask at their rates. What a busy machine delays is asked late, up to 100 ms.
func (f *fleet) ask(ctx context.Context, group []*worker) {
	tick := time.NewTicker(4 * time.Millisecond)
	defer tick.Stop()
	for last := time.Now(); ctx.Err() == nil; <-tick.C {
		now := time.Now()
		passed := min(now.Sub(last), 100*time.Millisecond)
		last = now
		for _, w := range group {
			w.carry += float64(w.demand.Load()) * passed.Seconds()
			for ; w.carry >= 1; w.carry-- {
				before := time.Now()
				ok := w.limiter.Allow()
				after := time.Now()
				f.asked.Add(1)
				if took := int64(after.Sub(before)); took > f.slowest.Load() {
					f.slowest.Store(took)
				}
				if ok {
					f.book.note(before.UnixNano(), after.UnixNano())
				}
			}
		}
	}
}

// demand gives each of the workers an equal part of a demand.
func demand(perSecond int64, workers []*worker) {
	for _, w := range workers {
		w.demand.Store(perSecond / int64(len(workers)))
	}
}

// events is what the limit protects: when each was let through, by clocks of one machine.
type events struct {
	mu            sync.Mutex
	before, after []int64
}

func (e *events) note(before, after int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.before, e.after = append(e.before, before), append(e.after, after)
}

// copyOf reads the lines of a process that spends.
func (e *events) copyOf(p *process) {
	for p.out.Scan() {
		var before, after int64
		if n, _ := fmt.Sscan(p.out.Text(), &before, &after); n == 2 {
			e.note(before, after)
		}
	}
}

// rate is how many per second were let through from then until then.
func (e *events) rate(from, to time.Time) float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	n := 0
	for _, at := range e.after {
		if at >= from.UnixNano() && at < to.UnixNano() {
			n++
		}
	}
	return float64(n) / to.Sub(from).Seconds()
}

// least is the least rate in any second between, by steps of 100 ms, and when that began.
func (e *events) least(from, to time.Time) (rate float64, at time.Duration) {
	rate = -1
	for begin := from; !begin.Add(time.Second).After(to); begin = begin.Add(100 * time.Millisecond) {
		if r := e.rate(begin, begin.Add(time.Second)); rate < 0 || r < rate {
			rate, at = r, begin.Sub(from)
		}
	}
	return rate, at
}

// back is how long after from the first half of a second began in which so much passes. It waits
// for that up to 30 s.
func (e *events) back(t *testing.T, from time.Time, perSecond float64) time.Duration {
	t.Helper()
	const window = 500 * time.Millisecond
	begin := from
	await(t, "the limit to be used again", func() bool {
		for ; !begin.Add(window).After(time.Now()); begin = begin.Add(20 * time.Millisecond) {
			if e.rate(begin, begin.Add(window)) >= perSecond {
				return true
			}
		}
		return false
	})
	return begin.Sub(from)
}

// burst is the least burst of one bucket of this rate that lets all through: the most of
// n - rate x T over all intervals T, each from before a request until after an admission.
// Subtracted are all that began before the interval, so requests that took long never count twice.
func (e *events) burst(perSecond float64) float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	before, after := slices.Clone(e.before), slices.Clone(e.after)
	slices.Sort(before)
	slices.Sort(after)
	if len(after) == 0 {
		return 0
	}
	base, most, low, i := before[0], 0.0, 0.0, 0
	level := func(n int, at int64) float64 { return float64(n) - perSecond*time.Duration(at-base).Seconds() }
	for j, end := range after {
		for ; i < len(before) && before[i] <= end; i++ {
			low = min(low, level(i, before[i]))
		}
		most = max(most, level(j+1, end)-low)
	}
	return most
}

// neverOver holds all that passed against one bucket.
func (f *fleet) neverOver(perSecond, burst float64) {
	f.t.Helper()
	used := f.book.burst(perSecond)
	f.t.Logf("one bucket of %v/s needs a burst of %.1f for what passed, of %v; the longest call took %v", perSecond, used, burst, time.Duration(f.slowest.Load()))
	if used > burst+1e-6 {
		f.t.Errorf("a burst of %.1f was let through, at most %v is allowed", used, burst)
	}
	if d, stood := time.Duration(f.slowest.Load()), time.Duration(f.stood.Load()); d > 2*time.Second+2*stood {
		f.t.Errorf("a call took %v, and the machine stood still for %v at most", d, stood)
	}
}

// settle waits until the fleet uses the limit by its rate: the burst may be all of what passes in the first of the
// two times.
func (f *fleet) settle(perSecond float64) {
	f.t.Helper()
	for range 2 {
		f.book.back(f.t, time.Now(), 0.9*perSecond)
	}
}

// pauseFor stops the process for d.
func (m *node) pauseFor(d time.Duration) {
	m.pause()
	pass(d)
	m.signal(syscall.SIGCONT)
}

// atLength is d with -fail-over, for which the least second of a time is reported, and 0 without.
func atLength(d time.Duration) time.Duration {
	if *failOverLong {
		return d
	}
	return 0
}
