//go:build linux

package client_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/limit"
)

// leasedLimit is how long leases last by default, and what a machine that is slow may add
// before something is seen.
const leasedLimit, slack = 5 * time.Second, 2 * time.Second

// learning is the recovery: for how long a service lends nothing new that does not know what a former one
// has lent.
const learning = leasedLimit + leasedLimit/50

// TestOneNameTwice: of two processes with one name the second gets an error, by every verb,
// and the first is not disturbed. When the first has gone, the second has what it asks for.
func TestOneNameTwice(t *testing.T) {
	t.Parallel()
	s := serve(t, t.TempDir())
	var b book
	first := b.spendApart(t, s.address, "worker")
	await(t, "the first to be admitted", func() bool { return b.between("worker", time.Time{}, time.Now()) > 2*burst })
	c, _ := join(t, s.address, "worker")
	messages, err := c.Limit("messages", client.LimitOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	begin := time.Now()
	if err := messages.Wait(ctx); !errors.Is(err, client.ErrDuplicate) {
		t.Fatalf("Wait under the name of another: %v", err)
	}
	if _, err := messages.Take(ctx, limit.Request{}); !errors.Is(err, client.ErrDuplicate) || !errors.Is(c.Err(), client.ErrDuplicate) || !errors.Is(messages.Lease().Err, client.ErrDuplicate) {
		t.Errorf("Take under the name of another: %v; the client: %v", err, c.Err())
	}
	b.asks(t, 500, "worker")
	now := time.Now()
	if n, least := b.between("worker", begin, now), b.enough("worker", 0.8, perSecond, begin, now); n < least {
		t.Errorf("the first was admitted %d times, want at least %d: it is disturbed", n, least)
	}
	first.kill()
	await(t, "the second to get a lease", func() bool { return messages.Wait(ctx) == nil })
	if c.Err() != nil || messages.Lease().Err != nil {
		t.Errorf("it has a lease, and the error %v, %v", c.Err(), messages.Lease().Err)
	}
}

// TestCoordinatorKilled: the service is killed and comes back. Leases run on; with a state
// directory they are claimed and go on without a gap, without one they end, and new ones
// come when the former ones must have ended. The limit holds all the time.
func TestCoordinatorKilled(t *testing.T) {
	for name, dir := range map[string]string{"with a state directory": t.TempDir(), "without": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := serve(t, dir)
			begin := time.Now()
			var b book
			b.spend(t, s.address, "one")
			b.spend(t, s.address, "two")
			// Without a state directory it begins by waiting.
			await(t, "both to be admitted", func() bool {
				return b.between("one", begin, time.Now()) > 50 && b.between("two", begin, time.Now()) > 50
			})
			b.parted(t, "one", "two")
			even := b.evenly(t, "one", "two")
			s.kill()
			killed := time.Now()
			pass(time.Second) // a renewal, which each makes in a second, finds nobody
			started := time.Now()
			s.start(t)
			back := time.Now()
			until := killed.Add(leasedLimit - slack) // leases, which are renewed each second, run on until then
			if dir != "" {
				until = back.Add(leasedLimit) // those of before would have ended
				pass(time.Until(until))
			} else {
				await(t, "new leases", func() bool { return b.between("", started.Add(leasedLimit), time.Now()) > 0 })
			}
			for _, name := range []string{"one", "two"} {
				rate := b.share(name, killed)
				for from := killed; !from.Add(time.Second).After(until); from = from.Add(time.Second) {
					to := from.Add(time.Second)
					if n, least := b.between(name, from, to), b.enough(name, 0.5, rate, from, to); even && n < least {
						t.Errorf("%s was admitted %d times in the second from %v on after the service was killed, want at least %d", name, n, from.Sub(killed), least)
					}
				}
			}
			if dir == "" {
				// What was lent has ended, and nothing is lent before it must have.
				if n := b.between("", killed.Add(leasedLimit), started.Add(leasedLimit)); n > 0 {
					t.Errorf("%d admitted without a lease", n)
				}
				if took := b.first(killed.Add(leasedLimit)).Sub(back); took > learning+slack {
					t.Errorf("new leases came %v after it was back, want %v", took, learning)
				}
			}
			if dir == "" {
				b.parted(t, "one", "two")
			}
			well := time.Now()
			b.asks(t, 500, "one", "two")
			now := time.Now()
			if n, least := b.between("", well, now), b.enough("", 0.8, perSecond/2, well, now); n < least {
				t.Errorf("%d admitted, a lease after it was back, want at least %d", n, least)
			}
			b.check(t)
		})
	}
}

// TestCoordinatorPaused: the service stands still for longer than leases last. Nobody
// spends after the end of its lease, and everybody goes on when it does.
func TestCoordinatorPaused(t *testing.T) {
	if testing.Short() {
		t.Skip("TestCoordinatorKilled has the same goroutines: nothing for the race detector")
	}
	t.Parallel()
	s := serve(t, t.TempDir())
	begin := time.Now()
	var b book
	b.spend(t, s.address, "one")
	b.spendApart(t, s.address, "two")
	await(t, "both to be admitted", func() bool {
		return b.between("one", begin, time.Now()) > 100 && b.between("two", begin, time.Now()) > 100
	})
	b.parted(t, "one", "two")
	even := b.evenly(t, "one", "two")
	s.pause()
	paused := time.Now()
	pass(leasedLimit + time.Second) // in the last second nothing is admitted
	resumed := time.Now()
	s.resume()
	for _, name := range []string{"one", "two"} {
		to := paused.Add(3 * time.Second)
		if n, least := b.between(name, paused, to), b.enough(name, 0.7, b.share(name, paused), paused, to); even && n < least {
			t.Errorf("%s was admitted %d times in the 3 s in which its lease ran on, want at least %d; %d in the 2 s before", name, n, least, b.between(name, paused.Add(-2*time.Second), paused))
		}
		if n := b.between(name, paused.Add(leasedLimit), resumed); n > 0 {
			t.Errorf("%s was admitted %d times after the end of its lease", name, n)
		}
	}
	await(t, "both to go on", func() bool {
		return b.between("one", resumed, time.Now()) > 100 && b.between("two", resumed, time.Now()) > 100
	})
	b.check(t)
}

// TestInstancePaused: an instance stands still for longer than its lease. The other one has
// all of the limit then; and it spends nothing when it goes on, before it has a new lease.
func TestInstancePaused(t *testing.T) {
	if testing.Short() {
		t.Skip("TestCoordinatorKilled has the same goroutines: nothing for the race detector")
	}
	t.Parallel()
	s := serve(t, t.TempDir())
	begin := time.Now()
	var b book
	one := b.spendApart(t, s.address, "one")
	b.spend(t, s.address, "two")
	await(t, "both to be admitted", func() bool {
		return b.between("one", begin, time.Now()) > 100 && b.between("two", begin, time.Now()) > 100
	})
	one.pause()
	pass(leasedLimit) // its lease ends
	if took := b.alone(t, "two"); took > leasedLimit {
		t.Errorf("the other has all of the limit %v after the end of the lease", took)
	}
	// While the service stands still there is no new lease to be had.
	s.pause()
	resumed := time.Now()
	one.resume()
	await(t, "the one that was paused to ask", func() bool { return b.refusedSince("one", resumed.Add(time.Second)) })
	if n := b.between("one", resumed, time.Now()); n > 0 {
		t.Errorf("%d admitted by the one that was paused, before it had a new lease", n)
	}
	s.resume()
	await(t, "the one that was paused to go on", func() bool { return b.between("one", resumed, time.Now()) > 100 })
	b.check(t)
}

// TestInstanceCrashed: an instance is killed. The other one has its part when its lease has
// ended.
func TestInstanceCrashed(t *testing.T) {
	if testing.Short() {
		t.Skip("TestCoordinatorKilled has the same goroutines: nothing for the race detector")
	}
	t.Parallel()
	s := serve(t, t.TempDir())
	begin := time.Now()
	var b book
	one := b.spendApart(t, s.address, "one")
	b.spend(t, s.address, "two")
	await(t, "both to be admitted", func() bool {
		return b.between("one", begin, time.Now()) > 100 && b.between("two", begin, time.Now()) > 100
	})
	b.parted(t, "one", "two")
	one.kill()
	if took := b.alone(t, "two"); took > 2*leasedLimit {
		t.Errorf("the other has all of the limit after %v, by leases of %v", took, leasedLimit)
	}
	b.check(t)
}

// TestTenThousandKeys: one client has ten thousand leases of a real service, in bounded
// time and memory, and costs next to nothing while nobody asks for any.
func TestTenThousandKeys(t *testing.T) {
	const callers = 64
	keys := 10_000
	if raceEnabled {
		keys = 1000
	}
	s := serve(t, t.TempDir())
	c, _ := join(t, s.address, "many")
	k, err := c.Keyed("per-account", []string{"account"}, client.KeyedOptions{Idle: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	heap, cpu := heapInUse(), processorTime(t)
	var wg sync.WaitGroup
	var failed atomic.Value // the first error
	for caller := range callers {
		wg.Go(func() {
			for i := caller; i < keys && ctx.Err() == nil; i += callers {
				req := limit.Request{Attributes: []limit.Attribute{{Name: "account", Value: fmt.Sprint("account-", i)}}}
				for {
					if d, err := k.Take(ctx, req); err != nil {
						cancel() // one error says enough
						failed.CompareAndSwap(nil, fmt.Errorf("key %d: %w", i, err))
						return
					} else if d.Allowed {
						break
					}
				}
			}
		})
	}
	wg.Wait()
	took := processorTime(t) - cpu
	if k.Keys() != keys {
		t.Fatalf("%d keys, want %d: %v", k.Keys(), keys, failed.Load())
	}
	if raceEnabled {
		return // the detector uses memory and processor on its own account
	}
	perKey := (heapInUse() - heap) / int64(keys)
	// What is not used is given back first. Other work on the machine makes that late, and
	// only adds to the processor time: the least of several windows counts.
	const most = 5.0
	idle := math.Inf(1)
	for range 8 {
		cpu, wall := processorTime(t), time.Now()
		pass(4 * time.Second) // the use of a processor is measured
		idle = min(idle, (processorTime(t)-cpu).Seconds()/time.Since(wall).Seconds()*1000)
		if idle <= most {
			break
		}
	}
	t.Logf("%d keys in %v of processor; %d bytes each; %.1f ms of processor per second when idle", keys, took.Round(time.Millisecond), perKey, idle)
	if took > 10*time.Second || perKey > 4000 || idle > most {
		t.Errorf("%d keys in %v of processor; %d bytes each; %.1f ms of processor per second when idle", keys, took, perKey, idle)
	}
}

func heapInUse() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// processorTime is what this process has used.
func processorTime(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
