package spending_test

import (
	"context"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/server/internal/lending"
	"github.com/stint-io/stint/server/internal/spending"
	"github.com/stint-io/stint/store"
)

// wire is the connection of one client, until it is cut: then nothing comes through, either way, and nobody is told.
type wire struct {
	of          *lending.Service
	cut         atomic.Bool
	taken, held atomic.Int64 // by the client; what it should have taken, what it owes included
}

func (w *wire) Connect(ctx context.Context, _ string) (client.Stream, error) {
	p, err := w.of.Pipe(ctx, 0)
	if err != nil {
		return nil, err
	}
	return &wired{p, w}, nil
}

type wired struct {
	*lending.Pipe
	wire *wire
}

func (s *wired) Send(r *lease.Report) error {
	if s.wire.cut.Load() {
		return nil
	}
	for i := range r.Demands {
		if id := &r.Demands[i].Resource; id.Key != "" { // as the server that the client connects to reads it
			id.Key = string(store.AppendKey(nil, "1"))
		}
	}
	return s.Pipe.Send(r)
}

func (s *wired) Receive() (*lease.Grant, error) {
	for {
		g, err := s.Pipe.Receive()
		if err != nil || !s.wire.cut.Load() {
			return g, err
		}
	}
}

func (s *wired) Close() { _ = s.CloseSend() }

// fleet is servers that reserve and clients that hold, on one coordinator, and what counts of all of them.
type fleet struct {
	*testing.T
	rate, burst int64
	servers     []*desk
	net         atomic.Int64 // what is reserved and committed, what servers owe included
	clients     []*wire
	over, under atomic.Int64
	stop        []func()
}

func newFleet(t *testing.T, text string, rate, burst int64, servers int) *fleet {
	f := &fleet{T: t, rate: rate, burst: burst}
	for range servers {
		o := spending.Options{}
		if len(f.servers) > 0 {
			of := f.servers[0].coordinator
			o.Connect = func(ctx context.Context) (spending.Stream, error) { return of.Pipe(ctx, 0) }
			o.Ask = asking(of)
		}
		s, stop := open(t, o, text)
		f.servers, f.stop = append(f.servers, deskOf(t, s)), append(f.stop, stop)
	}
	return f
}

// end ends all, the coordinator last.
func (f *fleet) end() {
	for i := len(f.stop) - 1; i >= 0; i-- {
		f.stop[i]()
	}
}

// client runs a client. What it takes counts when it takes it, debt too.
func (f *fleet) client(name string) (*client.Client, *wire) {
	w := &wire{of: f.servers[0].coordinator}
	c, err := client.New(client.Options{
		Transport: w, Address: "a", Instance: name, Logger: slog.New(slog.DiscardHandler),
		Hooks: limit.Hooks{OnAdmit: func(_ string, n int64) { f.net.Add(n); w.taken.Add(n) }},
	})
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	f.clients = append(f.clients, w)
	f.stop = append(f.stop, func() {
		cancel()
		if err := <-ended; err != nil {
			f.Error(err)
		}
	})
	return c, w
}

// owed is what servers owe; lent is what clients do that are not cut.
func (f *fleet) owed() (servers, clients int64) {
	for _, s := range f.servers {
		servers += s.Owed()
	}
	for _, w := range f.clients {
		if !w.cut.Load() {
			clients += w.held.Load() - w.taken.Load()
		}
	}
	return servers, clients
}

// watch holds what was taken against one bucket, until end: what is reserved and committed, less what servers still owe,
// never empties it.
func (f *fleet) watch(end time.Time) {
	const every = 10 * time.Millisecond
	level, was := float64(f.burst), int64(0)
	for at := time.Now(); time.Now().Before(end); time.Sleep(every) {
		synctest.Wait()
		owed, others := f.owed()
		taken := f.net.Load() - owed
		level = min(float64(f.burst), level+float64(f.rate)*every.Seconds()-float64(taken-was))
		if was = taken; level < -1e-3 {
			f.Errorf("after %v: %.1f over the limit, beside a debt of %d", time.Since(at), -level, owed+others)
			return
		}
	}
}

// count notes a commit.
func (f *fleet) count(cost, actual int64) {
	if actual > cost {
		f.over.Add(actual - cost)
	} else {
		f.under.Add(cost - actual)
	}
}

// actual is what it cost: less or more than thought, and sometimes much more.
func actual(r *rand.Rand, cost int64) int64 {
	if r.IntN(12) == 0 {
		return cost * (1 + r.Int64N(8))
	}
	return r.Int64N(2 * cost)
}

// reserves uses a server until end.
func (f *fleet) reserves(d *desk, r *rand.Rand, end time.Time) {
	for time.Now().Before(end) {
		time.Sleep(time.Duration(r.ExpFloat64() * float64(60*time.Millisecond)))
		cost := 1 + r.Int64N(60)
		got, _, err := d.book.Reserve(f.Context(), asker(cost), time.Hour, false)
		if err != nil {
			f.Error(err)
			return
		}
		if got.ID == "" {
			continue
		}
		f.net.Add(cost)
		time.Sleep(time.Duration(r.ExpFloat64() * float64(300*time.Millisecond)))
		if r.IntN(3) == 0 {
			used := r.Int64N(2 * cost)
			if _, err := d.book.Renew(f.Context(), got.ID, used, 0); err != nil {
				f.Error(err)
			}
			f.net.Add(max(used, cost) - cost)
			cost = max(used, cost)
			time.Sleep(time.Duration(r.ExpFloat64() * float64(300*time.Millisecond)))
		}
		n := actual(r, cost)
		if r.IntN(5) == 0 {
			n = 0
			_, err = d.book.Release(f.Context(), got.ID)
		} else {
			_, err = d.book.Commit(f.Context(), got.ID, n)
		}
		if err != nil {
			f.Error(err)
		}
		f.net.Add(n - cost)
		f.count(cost, n)
	}
}

// holds uses a client until end, or until it is cut. The last hold of one that is cut stays open.
func (f *fleet) holds(hold func(cost int64) (*client.Hold, error), r *rand.Rand, end time.Time, w *wire) {
	for time.Now().Before(end) {
		time.Sleep(time.Duration(r.ExpFloat64() * float64(60*time.Millisecond)))
		cost := 1 + r.Int64N(60)
		h, err := hold(cost)
		if err != nil {
			f.Error(err)
			return
		}
		if h == nil {
			continue
		}
		w.held.Add(cost)
		time.Sleep(time.Duration(r.ExpFloat64() * float64(300*time.Millisecond)))
		if w.cut.Load() {
			return
		}
		n := actual(r, cost)
		if err := h.Commit(n); err != nil {
			f.Error(err)
		}
		f.net.Add(min(0, n-cost))
		w.held.Add(max(0, n-cost))
		f.count(cost, n)
	}
}

// exact takes all that servers and the client that is left can have in 5 seconds, after a pause: nothing was lost, and nothing
// is there twice.
func (f *fleet) exact(hold func(cost int64) (*client.Hold, error)) {
	taken, begun := int64(0), time.Now()
	for time.Since(begun) < 5*time.Second {
		for _, s := range f.servers {
			if s.reserve(5) != "" {
				taken += 5
			}
		}
		if h, err := hold(5); err != nil {
			f.Error(err)
		} else if h != nil {
			taken += 5
		}
		if most := float64(f.burst) + float64(f.rate)*time.Since(begun).Seconds(); float64(taken) > most+1e-3 {
			f.Errorf("%d were taken in %v, want at most %.0f", taken, time.Since(begun), most)
			return
		}
		time.Sleep(20 * time.Millisecond)
	}
	if least := (f.burst + 5*f.rate) * 9 / 10; taken < least {
		f.Errorf("%d were taken in 5 s of %d/s and a burst of %d, want at least %d", taken, f.rate, f.burst, least)
	}
}

// holder returns how a client holds of the limit, or of its key 1.
func holder(t *testing.T, c *client.Client, keyed bool) func(cost int64) (*client.Hold, error) {
	if keyed {
		k, err := c.Keyed("a", []string{"k"}, client.KeyedOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return func(cost int64) (*client.Hold, error) {
			h, _, err := k.Hold(t.Context(), asker(cost))
			return h, err
		}
	}
	l, err := c.Limit("a", client.LimitOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return func(cost int64) (*client.Hold, error) {
		h, _, err := l.Hold(t.Context(), cost)
		return h, err
	}
}

// Whatever servers reserve, renew, commit and release, and clients hold, with less and with more: what is reserved and
// committed, but for the debt that is not paid yet, is never above what one bucket has. Two clients crash with holds open.
// In the end all debt is paid, and what the bucket has can be had: nothing is lost.
func TestFleetOfReservations(t *testing.T) {
	const rate, burst = 100, 400
	for seed := range seeding.Draw(t, some(4, 1)) {
		for keyed, text := range []string{
			"  - {name: a, rate: 100/s, burst: 400, sharing: leased}\n",
			"  - {name: a, key: [k], rate: 100/s, burst: 400, sharing: leased}\n",
		} {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t, text, rate, burst, 3)
				var wg sync.WaitGroup
				var left func(int64) (*client.Hold, error)
				end := time.Now().Add(40 * time.Second)
				for i, d := range f.servers {
					for k := range 2 {
						wg.Go(func() { f.reserves(d, rand.New(rand.NewPCG(seed, uint64(10*i+k))), end) })
					}
				}
				for i, name := range []string{"one", "two", "three"} {
					c, w := f.client(name)
					hold := holder(t, c, keyed == 1)
					left = hold // of the last, which does not crash
					for k := range 2 {
						wg.Go(func() { f.holds(hold, rand.New(rand.NewPCG(seed, uint64(10*i+k+100))), end, w) })
					}
					if i < 2 {
						wg.Go(func() {
							time.Sleep(time.Duration(10+10*i) * time.Second)
							w.cut.Store(true)
						})
					}
				}
				wg.Go(func() { f.watch(end.Add(10 * time.Second)) })
				wg.Wait()
				time.Sleep(5 * time.Minute) // the debt is paid, and the bucket fills up
				if servers, clients := f.owed(); servers != 0 || clients != 0 {
					t.Errorf("seed %d: %d and %d are owed", seed, servers, clients)
				}
				used := f.net.Load()
				if used < rate*40/2 || f.over.Load() == 0 || f.under.Load() == 0 {
					t.Errorf("seed %d: %d used of %d, %d over, %d under", seed, used, rate*40+burst, f.over.Load(), f.under.Load())
				}
				t.Logf("seed %d: %d used of %d, %d over, %d under", seed, used, rate*40+burst, f.over.Load(), f.under.Load())
				f.exact(left)
				f.end()
			})
		}
	}
}
