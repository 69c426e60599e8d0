//go:build linux

package client_test

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"
)

var (
	processSchedules = flag.Uint64("chaos-schedules", 1, "random schedules of TestProcessChaos")
	processFirst     = flag.Uint64("chaos-first", 0, "the seed of its first schedule")
	processLast      = flag.Duration("chaos-faults", 15*time.Second, "how long each has faults")
)

// TestProcessChaos: a real service and real instances in processes of their own, killed,
// ended, stopped, cut off, delayed and reloaded at random, with and without a state
// directory. What was admitted is counted here, not by the instances that admit: in no interval is
// it more than burst + rate x T, and two seconds after the last fault the limit is used.
func TestProcessChaos(t *testing.T) {
	if testing.Short() {
		t.Skip("processes of their own: nothing for the race detector")
	}
	for seed := *processFirst; seed < *processFirst+*processSchedules; seed++ {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			processChaos(t, seed)
		})
	}
}

// road leads from an instance to the service. It can be slow, stall and break.
type road struct {
	listener net.Listener
	to       string

	mu    sync.Mutex
	delay time.Duration
	stall chan struct{} // closed when it goes on; nil = it does
	cut   bool
	conns map[net.Conn]bool
	pumps sync.WaitGroup
}

func newRoad(t *testing.T, to string) *road {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	r := &road{listener: l, to: to, conns: map[net.Conn]bool{}}
	r.pumps.Go(r.accept)
	t.Cleanup(func() {
		l.Close()
		r.set(func() { r.cut = true })
		r.sever()
		r.pumps.Wait()
	})
	return r
}

func (r *road) accept() {
	for {
		in, err := r.listener.Accept()
		if err != nil {
			return
		}
		r.mu.Lock()
		cut := r.cut
		r.mu.Unlock()
		out, err := net.Dial("tcp", r.to)
		if err != nil || cut {
			in.Close()
			if err == nil {
				out.Close()
			}
			continue
		}
		r.set(func() { r.conns[in], r.conns[out] = true, true })
		r.pumps.Go(func() { r.pump(in, out) })
		r.pumps.Go(func() { r.pump(out, in) })
	}
}

// pump carries bytes one way until either end closes.
func (r *road) pump(from, to net.Conn) {
	defer from.Close()
	defer to.Close()
	b := make([]byte, 32<<10)
	for {
		n, err := from.Read(b)
		r.mu.Lock()
		delay, stall := r.delay, r.stall
		r.mu.Unlock()
		pass(delay) // in transit
		if stall != nil {
			<-stall
		}
		if _, failed := to.Write(b[:n]); err != nil || failed != nil {
			r.set(func() { delete(r.conns, from) })
			return
		}
	}
}

func (r *road) set(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

// sever ends all connections, and what stalls.
func (r *road) sever() {
	r.set(func() {
		for c := range r.conns {
			c.Close()
		}
		if r.stall != nil {
			close(r.stall)
			r.stall = nil
		}
	})
}

// term ends it as a supervisor does, and waits.
func (p *process) term() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // it may have ended by itself
	<-p.ended
}

// chaosLimits are the limits that come and go; the larger bounds hold.
var chaosLimits = []string{
	"limits:\n  - {name: messages, rate: 200/s, burst: 40, sharing: leased}\n",
	"limits:\n  - {name: messages, rate: 120/s, burst: 30, sharing: leased}\n",
}

// chaosFleet is a service with its instances, each at the end of its own road.
type chaosFleet struct {
	t         *testing.T
	rng       *rand.Rand
	service   *service
	roads     []*road
	instances []*process
	book      book
	watching  sync.WaitGroup
	begin     time.Time
	recovered time.Time // when nothing is held any more by a process that has ended
}

func (f *chaosFleet) passed() time.Duration { return time.Since(f.begin).Round(time.Millisecond) }

// wait lets a random time pass, within that of the faults.
func (f *chaosFleet) wait(atMost time.Duration) {
	pass(min(time.Duration(f.rng.Int64N(int64(atMost))), max(0, *processLast-f.passed())))
}

// spend starts an instance after the one before it.
func (f *chaosFleet) spend(i, life int) {
	p := launch(f.t, "STINT_TEST_PROCESS=spend", "STINT_TEST_ADDRESS="+f.roads[i].listener.Addr().String(), fmt.Sprintf("STINT_TEST_INSTANCE=%d-%d", i, life))
	f.instances[i] = p
	f.watching.Go(func() { f.book.watch(fmt.Sprint(i), p) })
}

func (f *chaosFleet) reload(limits string) {
	if err := os.WriteFile(f.service.config, []byte(limits), 0o600); err != nil {
		f.t.Fatal(err)
	}
}

// fault breaks something, and mends it after a random time.
func (f *chaosFleet) fault(life int) {
	const most = 8 * time.Second
	i, kind := f.rng.IntN(len(f.roads)), f.rng.IntN(9)
	f.t.Logf("%v: fault %d, instance %d", f.passed(), kind, i)
	p, r := f.instances[i], f.roads[i]
	switch kind {
	case 0, 1, 2:
		if kind == 2 {
			f.service.term()
		} else {
			f.service.kill()
		}
		f.wait([]time.Duration{time.Millisecond, time.Second, most}[f.rng.IntN(3)])
		f.service.start(f.t)
		f.recovered = time.Now().Add(leasedLimit + leasedLimit/64)
	case 3:
		f.service.pause()
		f.wait(most)
		f.service.resume()
	case 4:
		p.pause()
		f.wait(most)
		p.resume()
	case 5:
		r.set(func() { r.cut = true })
		r.sever()
		f.wait(most)
		r.set(func() { r.cut = false })
	case 6:
		r.set(func() { r.stall = make(chan struct{}) })
		f.wait(most)
		r.set(func() { close(r.stall); r.stall = nil })
	case 7:
		p.kill()
		f.spend(i, life)
		f.recovered = time.Now().Add(leasedLimit)
	case 8:
		r.set(func() { r.delay = time.Duration(f.rng.IntN(40)) * time.Millisecond })
		f.reload(chaosLimits[life%len(chaosLimits)])
	}
}

func processChaos(t *testing.T, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 5))
	dir := ""
	if rng.IntN(2) == 0 {
		dir = t.TempDir()
	}
	f := &chaosFleet{t: t, rng: rng, service: serve(t, dir)}
	f.roads = make([]*road, 2+rng.IntN(3))
	f.instances = make([]*process, len(f.roads))
	for i := range f.roads {
		f.roads[i] = newRoad(t, f.service.address)
		f.spend(i, 0)
	}
	f.begin = time.Now()
	f.recovered = f.begin
	for life := 1; f.passed() < *processLast; life++ {
		f.wait(3 * time.Second)
		f.fault(life)
	}
	f.reload(chaosLimits[0])
	t.Logf("%v: all is mended, a state directory: %v", f.passed(), dir != "")
	if last := time.Now(); f.recovered.Before(last) {
		f.recovered = last
	}
	from := f.recovered.Add(slack)
	pass(time.Until(from)) // leases of processes that have ended run out
	var names []string
	for i := range f.instances {
		names = append(names, fmt.Sprint(i))
	}
	f.book.asks(t, 1000, names...)
	to := time.Now()
	n, least := f.book.between("", from, to), f.book.enough("", 0.8, perSecond/float64(len(f.instances)), from, to)
	if n < least {
		t.Errorf("%d admitted in %v after all was well again, want at least %d", n, to.Sub(from), least)
	}
	for _, p := range f.instances {
		p.kill()
	}
	f.watching.Wait()
	f.book.check(t)
}
