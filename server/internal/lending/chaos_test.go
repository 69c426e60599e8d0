package lending

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// TestChaos: the shipped coordinator and clients in virtual time, while everything that can
// fail fails at random, with demand above the limit. In every interval T the instances
// together admit at most burst + rate x T, and two seconds after the last fault they use
// the limit again, each its part.
func TestChaos(t *testing.T) {
	schedules := 12
	if testing.Short() {
		schedules = 1 // with the race detector each takes two seconds
	}
	for seed := range seeding.Draw(t, schedules) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			state := filepath.Join(t.TempDir(), "state")
			synctest.Test(t, func(t *testing.T) { chaos(t, seed, state) })
		})
	}
}

// world is one coordinator at a time, the instances, and the links between them.
type world struct {
	t    *testing.T
	rng  *rand.Rand // of the goroutine that makes the faults
	dir  string     // of the coordinator's state; "" = it keeps none
	old  []byte     // its file at an earlier moment
	sets []*rules.Set
	rate []float64 // of the sets

	mu     sync.Mutex
	coord  *generation // nil while there is none
	origin time.Time
	book   []decided
}

type decided struct {
	at       time.Duration
	cost     int64
	instance int
}

// generation is one run of the coordinator.
type generation struct {
	service *shard
	state   State
	stop    context.CancelFunc
	ran     chan bool
	running gate
}

// gate lets everything pass while it is open.
type gate struct {
	mu   sync.Mutex
	shut chan struct{} // closed when it opens; nil while it is open
}

func (g *gate) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut == nil {
		g.shut = make(chan struct{})
	}
}

func (g *gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.shut != nil {
		close(g.shut)
		g.shut = nil
	}
}

func (g *gate) pass() {
	g.mu.Lock()
	shut := g.shut
	g.mu.Unlock()
	if shut != nil {
		<-shut
	}
}

// start runs a coordinator.
func (w *world) start() {
	state := FreshState(0)
	if w.dir != "" {
		var err error
		if state, err = OpenState(w.dir, 0, false); err != nil {
			w.t.Fatal(err)
		}
	}
	s := newShard(Options{Limits: w.sets[w.rng.IntN(len(w.sets))], State: state, Logger: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	g := &generation{service: s, state: state, stop: cancel, ran: make(chan bool, 1)}
	step := s.step
	s.step = func(now limit.Time, e lease.Event) []lease.Grant {
		g.running.pass() // a process may be stopped after it has read the clock
		return step(now, e)
	}
	go func() { g.ran <- s.run(ctx) }()
	w.mu.Lock()
	w.coord = g
	w.mu.Unlock()
}

// keep remembers the file of the state, and putBack has an old copy in its place.
func (w *world) keep() {
	if w.dir != "" {
		w.old, _ = os.ReadFile(filepath.Join(w.dir, stateFileName))
	}
}

func (w *world) putBack() {
	file := filepath.Join(w.dir, stateFileName)
	if w.rng.IntN(2) == 0 {
		os.Remove(file)
	}
	if err := os.WriteFile(file, w.old, 0o600); err != nil {
		w.t.Error(err)
	}
}

// end ends the coordinator: at once and without a word, or as SIGTERM does.
func (w *world) end(killed bool) {
	w.mu.Lock()
	g := w.coord
	w.coord = nil
	w.mu.Unlock()
	g.running.open()
	g.stop()
	nothingLent := <-g.ran
	if err := g.state.Close(nothingLent && !killed, g.service.lastRecord(g.service.now())); err != nil { // a kill only frees the lock
		w.t.Error(err)
	}
}

// spender is an instance: a client that is asked for more than its part of the limit.
type spender struct {
	w      *world
	number int
	link   gate // of what it sends and receives
	life   gate // of the process

	mu   sync.Mutex
	cut  bool // no connection
	rng  *rand.Rand
	base time.Duration // of the way there
	ends []func()      // of its streams
}

// Connect implements client.Transport.
func (i *spender) Connect(ctx context.Context, _ string) (client.Stream, error) {
	time.Sleep(i.delay())
	i.w.mu.Lock()
	g := i.w.coord
	i.w.mu.Unlock()
	i.mu.Lock()
	defer i.mu.Unlock()
	if g == nil || i.cut {
		return nil, errors.New("refused")
	}
	own, cancel := context.WithCancel(ctx)
	p, err := g.service.pipe(own, true)
	if err != nil {
		cancel()
		return nil, err
	}
	s := &wire{
		i: i, own: own, pipe: p, end: cancel,
		up: make(chan parcel[*lease.Report], 1000), down: make(chan parcel[*lease.Grant], 1000),
	}
	i.ends = append(i.ends, cancel)
	s.pumps.Go(func() {
		defer cancel()
		for s.deliver(s.up, func(r *lease.Report) error { return p.Send(r) }) {
		}
	})
	s.pumps.Go(func() {
		defer cancel()
		for {
			m, err := p.Receive()
			if err != nil || !send(own, s.down, parcel[*lease.Grant]{time.Now().Add(i.delay()), m}) {
				return
			}
		}
	})
	return s, nil
}

// delay is how long a message is under way: mostly the usual time, at times ten times that.
func (i *spender) delay() time.Duration {
	i.mu.Lock()
	defer i.mu.Unlock()
	d := i.base + time.Duration(i.rng.ExpFloat64()*float64(i.base)/4)
	if i.rng.IntN(200) == 0 {
		d *= 10
	}
	return d
}

// sever ends its streams, and with them what is under way.
func (i *spender) sever(cut bool) {
	i.mu.Lock()
	defer i.mu.Unlock()
	i.cut = cut
	for _, end := range i.ends {
		end()
	}
	i.ends = nil
}

// wire is a stream that takes its time, in order.
type wire struct {
	i     *spender
	own   context.Context
	pipe  *Pipe
	end   context.CancelFunc
	up    chan parcel[*lease.Report]
	down  chan parcel[*lease.Grant]
	pumps sync.WaitGroup
}

type parcel[T any] struct {
	at time.Time
	of T
}

func send[T any](ctx context.Context, to chan parcel[T], p parcel[T]) bool {
	select {
	case to <- p:
		return true
	case <-ctx.Done():
		return false
	}
}

// deliver hands over the next report when its time has come.
func (s *wire) deliver(from chan parcel[*lease.Report], to func(*lease.Report) error) bool {
	r, ok := arrive(s, from)
	return ok && to(r) == nil
}

// arrive takes the next message when its time has come and the link is up.
func arrive[T any](s *wire, from chan parcel[T]) (m T, ok bool) {
	select {
	case p, open := <-from:
		if !open {
			return m, false
		}
		time.Sleep(time.Until(p.at))
		s.i.link.pass()
		return p.of, s.own.Err() == nil
	case <-s.own.Done():
		return m, false
	}
}

// Send implements client.Stream.
func (s *wire) Send(r *lease.Report) error {
	if !send(s.own, s.up, parcel[*lease.Report]{time.Now().Add(s.i.delay()), r}) {
		return io.EOF
	}
	return nil
}

// CloseSend implements client.Stream: what was sent arrives.
func (s *wire) CloseSend() error {
	close(s.up)
	return nil
}

// Receive implements client.Stream.
func (s *wire) Receive() (*lease.Grant, error) {
	m, ok := arrive(s, s.down)
	if !ok {
		return nil, io.EOF
	}
	return m, nil
}

// Close implements client.Stream.
func (s *wire) Close() {
	s.end()
	s.pumps.Wait()
}

// spend asks for the limit by all verbs, at some times the rate of arrivals, until the end.
func (i *spender) spend(l *client.Limiter, seed uint64, perSecond float64, end time.Time) {
	rng := rand.New(rand.NewPCG(seed, uint64(i.number)))
	for time.Now().Before(end) {
		i.life.pass()
		n := int64(1)
		if rng.IntN(8) == 0 {
			n = 2
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.IntN(300))*time.Millisecond)
		admitted := false
		switch rng.IntN(4) {
		case 0, 1:
			admitted = l.AllowN(time.Now(), n)
		case 2:
			d, err := l.Take(ctx, limit.Request{Cost: n})
			admitted = err == nil && d.Allowed
		default:
			admitted = l.WaitN(ctx, n) == nil
		}
		cancel()
		if admitted {
			i.w.mu.Lock()
			i.w.book = append(i.w.book, decided{time.Since(i.w.origin), n, i.number})
			i.w.mu.Unlock()
		}
		time.Sleep(time.Duration(rng.ExpFloat64() / perSecond * float64(time.Second)))
	}
}

// join starts an instance, which ends with the world.
func (w *world) join(number int, seed uint64, perSecond float64, end time.Time, all *sync.WaitGroup) *spender {
	i := &spender{w: w, number: number, rng: rand.New(rand.NewPCG(seed, 1000+uint64(number)))}
	i.base = time.Duration(200+i.rng.IntN(20_000)) * time.Microsecond
	c, err := client.New(client.Options{Transport: i, Instance: fmt.Sprintf("i%d", number), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		w.t.Fatal(err)
	}
	l, err := c.Limit("m", client.LimitOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	all.Go(func() {
		ctx, cancel := context.WithDeadline(context.Background(), end)
		defer cancel()
		if err := c.Run(ctx); err != nil {
			w.t.Error(err)
		}
	})
	for k := range uint64(3) {
		all.Go(func() { i.spend(l, seed*10+k, perSecond/3, end) })
	}
	return i
}

// chaos is one schedule.
func chaos(t *testing.T, seed uint64, state string) {
	rng := rand.New(rand.NewPCG(seed, 77))
	w := &world{t: t, rng: rng, origin: time.Now()}
	if rng.IntN(2) == 0 {
		w.dir = state
	}
	rate, burst := 0.0, 0.0
	n := 2 + rng.IntN(6)
	for range 1 + rng.IntN(3) {
		r, b := 40+rng.IntN(400), 3*n+rng.IntN(100)
		w.sets = append(w.sets, limits(t, fmt.Sprintf("limits:\n  - {name: m, rate: %d/s, burst: %d, sharing: leased}\n", r, b)))
		w.rate = append(w.rate, float64(r))
		rate, burst = max(rate, float64(r)), max(burst, float64(b))
	}
	if w.dir != "" && rng.IntN(2) == 0 {
		// What lent nothing has a clean end, of which a copy is worth something.
		first, err := OpenState(w.dir, 0, true)
		if err = errors.Join(err, first.Close(true, nil)); err != nil {
			t.Fatal(err)
		}
		w.keep()
	}
	const faults, calm = 40 * time.Second, 9 * time.Second
	end := w.origin.Add(faults + calm)
	w.start()
	var all sync.WaitGroup
	var instances []*spender
	for k := range n {
		instances = append(instances, w.join(k, seed, 2.5*rate/float64(n), end, &all))
	}
	recovered := w.disturb(instances, faults)
	w.mu.Lock()
	w.coord.service.reconfigure(w.sets[0])
	w.mu.Unlock()
	whole := max(faults, recovered) + 2*time.Second
	all.Wait()
	w.end(false)
	w.check(rate, burst, whole, faults+calm, n)
}

// disturb makes faults until the time is over, and mends them all. It returns when the last
// coordinator has recovered: it lends nothing anew before the leases of the one before it
// that nobody has claimed must have ended.
func (w *world) disturb(instances []*spender, until time.Duration) (recovered time.Duration) {
	passed := func() time.Duration { return time.Since(w.origin) }
	wait := func(atMost time.Duration) {
		time.Sleep(min(time.Duration(w.rng.Int64N(int64(atMost))), max(0, until-passed())))
	}
	note := func(what string, args ...any) {
		w.t.Logf("%6.3f s: "+what, append([]any{passed().Seconds()}, args...)...)
	}
	var mending sync.WaitGroup
	// Instances fail beside each other and beside the coordinator.
	later := func(mend func()) {
		d := min(time.Duration(w.rng.Int64N(int64(9*time.Second))), until-passed())
		mending.Go(func() { time.Sleep(d); mend() })
	}
	for passed() < until {
		wait(2 * time.Second)
		i := instances[w.rng.IntN(len(instances))]
		switch w.rng.IntN(7) {
		case 0, 1: // killed, or ended by a signal
			killed := w.rng.IntN(2) == 0
			note("the coordinator ends, killed: %v, state kept: %v", killed, w.dir != "")
			w.end(killed)
			old := w.old != nil && w.rng.IntN(2) == 0
			if old {
				note("an old copy of the state is put back")
				w.putBack()
			} else if w.old == nil {
				w.keep()
			}
			wait([]time.Duration{time.Millisecond, time.Second, 8 * time.Second}[w.rng.IntN(3)])
			w.start()
			note("another begins")
			recovered = passed() + w.coord.state.Recovery
		case 2: // the coordinator stands still
			note("the coordinator stands still")
			w.coord.running.close()
			wait(9 * time.Second)
			w.coord.running.open()
		case 3:
			note("instance %d stands still", i.number)
			i.life.close()
			i.link.close()
			later(func() { i.link.open(); i.life.open() })
		case 4:
			note("instance %d is cut off", i.number)
			i.sever(true)
			later(func() { i.sever(false) })
		case 5:
			note("all streams end")
			for _, i := range instances {
				i.sever(false)
			}
		case 6:
			note("reload")
			w.coord.service.reconfigure(w.sets[w.rng.IntN(len(w.sets))])
		}
	}
	mending.Wait()
	note("all is mended")
	// It may have recovered anew: an instance has heard a coordinator of which an old state does not know.
	return max(recovered, passed()+w.coord.service.recovering())
}

// check holds every interval against burst + rate x T, and the calm end against the limit.
func (w *world) check(rate, burst float64, from, to time.Duration, n int) {
	level, last := burst, time.Duration(0)
	each := make([]float64, n)
	for _, a := range w.book {
		level = min(burst, level+rate*(a.at-last).Seconds()) - float64(a.cost)
		last = a.at
		if level < -1e-3 {
			w.t.Fatalf("%.1f above the limit after %v", -level, a.at)
		}
		if a.at >= from && a.at < to {
			each[a.instance] += float64(a.cost)
		}
	}
	if from > to-time.Second {
		return // the calm is what the leases before needed
	}
	least := w.rate[0] * (to - from).Seconds()
	sum := 0.0
	for i, got := range each {
		sum += got
		if got < 0.7*least/float64(n) {
			w.t.Errorf("instance %d admitted %.0f of %.0f after all was well again", i, got, least/float64(n))
		}
	}
	if sum < 0.95*least {
		w.t.Errorf("%.0f admitted of %.0f after all was well again", sum, least)
	}
}
