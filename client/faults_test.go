package client

import (
	"context"
	"log/slog"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// TestOptimisticExpiryOfAnIdleInstance: what is wanted counts when it is wanted, not when
// the lease ran out: the demand that comes after that is served.
func TestOptimisticExpiryOfAnIdleInstance(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = rateOf(100, 10)
		l := openLimit(t, h.run(t, "one"), "m", LimitOptions{Expiry: Optimistic})
		if err := l.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		time.Sleep(20 * time.Second) // it wants nothing
		h.crash()
		time.Sleep(20 * time.Second) // and its lease runs out
		press(l, 2*time.Second, 20*time.Millisecond)
		if n := press(l, 10*time.Second, 20*time.Millisecond); n < 300 {
			t.Errorf("%d of 500 admitted in 10 s without a lease, by one who was idle before", n)
		}
	})
}

// TestNetworkParted: an instance that reaches nobody spends until its lease ends, and not
// a moment longer; then the others have its part; and it has a part again when it is back.
func TestNetworkParted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = rateOf(100, 20)
		cut, other := openLimit(t, h.run(t, "cut"), "m", LimitOptions{}), openLimit(t, h.run(t, "other"), "m", LimitOptions{})
		var book ledger
		spend := func(d time.Duration) (ns [2]int) {
			for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
				for i, l := range []*Limiter{cut, other} {
					if l.Allow() {
						ns[i]++
						book.admit(1)
					}
				}
			}
			return ns
		}
		spend(2 * time.Second)
		h.set(func() { h.parted = map[string]bool{"cut": true} })
		if ns := spend(3900 * time.Millisecond); ns[0] < 170 || ns[1] < 170 {
			t.Errorf("%d and %d admitted in 3.9 s while both leases ran", ns[0], ns[1])
		}
		spend(lease.DefaultLease - 3900*time.Millisecond)
		if ns := spend(200 * time.Millisecond); ns[0] > 0 {
			t.Errorf("%d admitted after the lease had ended", ns[0])
		}
		if ns := spend(4 * time.Second); ns[0] > 0 || ns[1] < 380 {
			t.Errorf("%d and %d admitted in 4 s, want all by the one that is left", ns[0], ns[1])
		}
		h.set(func() { h.parted = nil })
		spend(2 * time.Second)
		if ns := spend(4 * time.Second); ns[0] < 180 || ns[1] < 180 {
			t.Errorf("%d and %d admitted in 4 s, together again", ns[0], ns[1])
		}
		book.check(t, 100, 20)
	})
}

// TestMessagesLost: one message in five gets lost. All of the limit is used all the same,
// and never more.
func TestMessagesLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		rng := seeding.Rand(t)
		h.loses = func() bool { return rng.IntN(5) == 0 }
		h.terms["m"] = rateOf(100, 20)
		var book ledger
		var wg sync.WaitGroup
		for _, name := range []string{"one", "two", "three"} {
			l := openLimit(t, h.run(t, name), "m", LimitOptions{})
			wg.Go(func() {
				for end := time.Now().Add(time.Minute); time.Now().Before(end); time.Sleep(15 * time.Millisecond) {
					if d, err := l.Take(t.Context(), limit.Request{}); err == nil && d.Allowed {
						book.admit(1)
					}
				}
			})
		}
		wg.Wait()
		if total := book.check(t, 100, 20); total < 5700 {
			t.Errorf("%d admitted in a minute of 100/s", total)
		}
	})
}

// TestSlowCoordinator: a coordinator that answers after a second holds nobody up for longer
// than ask, leases are renewed all the same, and all of the limit is used.
func TestSlowCoordinator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, 500*time.Millisecond)
		h.terms["m"] = rateOf(100, 20)
		l := openLimit(t, h.run(t, "one"), "m", LimitOptions{})
		var book ledger
		var mu sync.Mutex
		var wg sync.WaitGroup
		begin, late := time.Now(), 0
		for ; time.Since(begin) < 30*time.Second; time.Sleep(5 * time.Millisecond) {
			wg.Go(func() {
				asked := time.Now()
				d, err := l.Take(t.Context(), limit.Request{})
				mu.Lock()
				defer mu.Unlock()
				if took := time.Since(asked); err != nil || took > longestAsk {
					t.Errorf("a Take took %v: %v", took, err)
				}
				if d.Allowed {
					book.admit(1)
					if time.Since(begin) > 10*time.Second {
						late++
					}
				}
			})
		}
		wg.Wait()
		book.check(t, 100, 20)
		if late < 1900 {
			t.Errorf("%d admitted in 20 s of 100/s", late)
		}
	})
}

// TestClockStepped: the wall clock of an instance is stepped by an hour, forward and back,
// while it spends and while its lease runs out: nothing happens. A caller who passes a time
// by the wall clock gets no token more.
func TestClockStepped(t *testing.T) {
	if testing.Short() {
		t.Skip("TestCoordinatorKilled has the same goroutines: nothing for the race detector")
	}
	t.Run("times of callers", func(t *testing.T) { synctest.Test(t, steppedCallers) })
	// A bubble has no monotonic clock.
	for _, step := range []time.Duration{time.Hour, -time.Hour} {
		t.Run(step.String(), func(t *testing.T) {
			t.Parallel()
			steppedInstance(t, step)
		})
	}
}

func steppedCallers(t *testing.T) {
	h := newHub(t, link20)
	h.terms["m"] = rateOf(100, 20)
	l := openLimit(t, h.run(t, "one"), "m", LimitOptions{})
	rng := seeding.Rand(t)
	var book ledger
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); time.Sleep(2 * time.Millisecond) {
		wall := time.Now().Add(time.Duration(rng.IntN(3)-1) * time.Hour)
		if l.AllowN(wall, 1) {
			book.admit(1)
		}
		if r := l.ReserveN(wall, 1); r.OK() && r.Delay() == 0 {
			book.admit(1)
		} else {
			r.Cancel()
		}
	}
	if total := book.check(t, 100, 20); total < 2970 {
		t.Errorf("%d admitted in 30 s of 100/s", total)
	}
}

// stepWall makes a time, which has been read off the clocks before, as it is after the
// wall clock was stepped by d: what it has read of the wall clock is d off, and what it
// has read of the monotonic one is right. Its readers do not know.
//
//go:norace
func stepWall(at *time.Time, d time.Duration) {
	// As package time has it: a flag, 33 bits of seconds and 30 of nanoseconds.
	*(*uint64)(unsafe.Pointer(at)) -= uint64(d/time.Second) << 30
}

// steppedInstance goes by the real clocks: by the monotonic one the instance spends as if
// nothing had been, and stops when its lease ends.
func steppedInstance(t *testing.T, step time.Duration) {
	at := time.Now()
	was := at
	if stepWall(&at, step); at.Sub(was) != 0 || was.Round(0).Sub(at.Round(0)) != step {
		t.Fatalf("package time has its times otherwise: %v became %v", was, at)
	}
	h := newHub(t, time.Millisecond)
	h.terms["m"] = rateOf(100, 20)
	c := h.run(t, "one")
	l := openLimit(t, c, "m", LimitOptions{})
	var book ledger
	spend := func(until func() bool) {
		begin := time.Now()
		for i := 0; !until(); i++ {
			before := time.Now()
			if before.Sub(begin) > 30*time.Second {
				t.Fatalf("%d admitted in 30 s", len(book.at))
			}
			if i%2 == 0 && l.Allow() || i%2 == 1 && l.WaitMax(t.Context(), 5*time.Millisecond) == nil {
				book.at, book.cost = append(book.at, before), append(book.cost, 1)
			}
			<-time.After(time.Millisecond)
		}
	}
	for n := 100; n <= 300; n += 100 {
		spend(func() bool { return len(book.at) >= n })
		stepWall(&c.origin, step) // there, back, and there again
		step = -step
	}
	h.crash()
	gone := time.Now()
	spend(func() bool { return time.Since(gone) > lease.DefaultLease+500*time.Millisecond })
	// Who notes the time before it asks, one after the other, is one off at most.
	book.check(t, 100, 21)
	switch ran := book.at[len(book.at)-1].Sub(gone); {
	case ran > lease.DefaultLease:
		t.Errorf("admitted %v after the coordinator had gone, by leases of %v", ran, lease.DefaultLease)
	case ran < lease.DefaultLease-2*time.Second:
		t.Errorf("its lease of %v, which is renewed each second, ran on for %v", lease.DefaultLease, ran)
	}
}

// counted passes messages on and counts the demands and shares in them.
type counted struct {
	Transport
	mu   sync.Mutex
	told int
}

type countedStream struct {
	Stream
	of *counted
}

// Connect implements Transport.
func (c *counted) Connect(ctx context.Context, address string) (Stream, error) {
	s, err := c.Transport.Connect(ctx, address)
	return countedStream{s, c}, err
}

// Send implements Stream.
func (s countedStream) Send(r *lease.Report) error {
	s.of.add(len(r.Demands))
	return s.Stream.Send(r)
}

func (c *counted) add(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.told += n
}

// reset returns what was counted since the last time.
func (c *counted) reset() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	told := c.told
	c.told = 0
	return told
}

// TestIdleKeysAreSilent: keys that were asked for once are reported a few times, and then
// not at all: an instance with ten thousand of them costs nothing while it is idle.
func TestIdleKeysAreSilent(t *testing.T) {
	const keys = 100
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, time.Millisecond)
		h.terms["m"] = rateOf(10, 10)
		count := &counted{Transport: h}
		c, err := New(Options{Transport: count, Address: "a", Instance: "one", Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- c.Run(ctx) }()
		k, err := c.Keyed("m", []string{"account"}, KeyedOptions{Idle: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		for i := range keys {
			req := limit.Request{Attributes: []limit.Attribute{{Name: "account", Value: strconv.Itoa(i)}}}
			if d, err := k.Take(ctx, req); err != nil || !d.Allowed {
				t.Fatalf("key %d: %+v, %v", i, d, err)
			}
		}
		time.Sleep(10 * time.Second)
		if n := count.reset(); n > 20*keys {
			t.Errorf("%d demands for %d keys that were asked for once", n, keys)
		}
		time.Sleep(10 * time.Second)
		if n := count.reset(); n > 0 {
			t.Errorf("%d demands in 10 s for %d keys that nobody asks for", n, keys)
		}
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		h.set(func() { h.timer.Stop() })
	})
}
