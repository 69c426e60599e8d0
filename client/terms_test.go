package client

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/agent"
	"github.com/stint-io/stint/internal/leasewire"
	"github.com/stint-io/stint/limit"
)

// adjusting returns a Limiter that adjusts what it is lent, without a network.
func adjusting(t *testing.T, rate, depth int64) *Limiter {
	t.Helper()
	c := leased(t, 0, 0).lease.client
	l := openLimit(t, c, "adjusted", LimitOptions{Adjust: &Adjustment{Interval: time.Second, SlowRate: 2, HeartbeatRate: 0.5}})
	stand(&l.lease, 0, depth, rate, agent.State{Known: true, Saturated: true, Limit: lease.Terms{Rate: fixed.Whole(rate), Burst: fixed.Whole(depth)}})
	return l
}

// fail makes the receiver fail until the rate of the lease is cut down.
func fail(l *Limiter) {
	for range 3 {
		l.Report(0, 1000)
		time.Sleep(time.Second)
		l.Failed()
	}
}

// admits counts what a Limiter admits in a while.
func admits(l *Limiter, d time.Duration) (n int) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if l.Allow() {
			n++
		}
	}
	return n
}

// TestSlowRateOutlivesTheLease: a receiver that fails is spared whatever the coordinator
// lends meanwhile, with a lease and without one; the coordinator gets a report that all of the
// lease is held. Without a receiver that fails the whole lease is spent.
func TestSlowRateOutlivesTheLease(t *testing.T) {
	for _, leaseless := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			l := adjusting(t, 100, 10)
			if n := admits(l, time.Second); n < 99 {
				t.Errorf("%d admitted in 1 s of 100/s, while nothing fails", n)
			}
			fail(l)
			admits(l, time.Second)
			if n := admits(l, 10*time.Second); n < 4 || n > 21 {
				t.Errorf("%d admitted in 10 s at the slow rate", n)
			}
			now := l.lease.client.now()
			if leaseless {
				l.lease.UpdateFallback(now, fixed.Whole(300), fixed.Whole(30))
			} else {
				surplus, held := l.lease.Update(now, fixed.Whole(300), fixed.Whole(30), fixed.Whole(30))
				if held != fixed.Whole(30) || surplus > fixed.Whole(10) {
					t.Errorf("it holds %v and gives back %v, want a depth of 30 and what overflows", held, surplus)
				}
			}
			if n := admits(l, 10*time.Second); n < 4 || n > 24 {
				t.Errorf("leaseless %v: %d admitted in 10 s at the slow rate, after more was lent", leaseless, n)
			}
			for range 120 {
				l.Report(1000, 0)
				time.Sleep(time.Second)
				l.Succeeded()
			}
			if n := admits(l, time.Second); n < 280 || n > 331 {
				t.Errorf("leaseless %v: %d admitted in 1 s of 300/s, well again", leaseless, n)
			}
		})
	}
}

// TestOutcomesAreJudgedInTime: a receiver that fails is spared when the interval is over, not
// a nanosecond before, and that brings no tokens.
func TestOutcomesAreJudgedInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := adjusting(t, 100, 10)
		slow := func() bool { return l.lease.spender.Earliest(l.lease.client.now(), 10) > time.Second }
		l.Report(1, 0) // the first interval begins
		l.Report(0, 1000)
		time.Sleep(time.Second - 1)
		if l.Failed(); slow() {
			t.Error("slow before the interval is over")
		}
		for l.Allow() {
		}
		time.Sleep(1)
		before := l.bucket.Observe(l.lease.client.now()).Level
		if l.Failed(); !slow() {
			t.Error("as before when the interval is over")
		}
		if after := l.bucket.Observe(l.lease.client.now()).Level; after > before || after < before-fixed.Token {
			t.Errorf("a level of %v became %v", before, after)
		}
	})
}

// TestReportsThatMeanNothing: negative outcomes, and outcomes without an Adjustment, change
// nothing.
func TestReportsThatMeanNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := adjusting(t, 100, 10)
		for range 3 {
			l.Report(-1, 1000)
			l.Report(0, -1)
			time.Sleep(time.Second)
		}
		if n := admits(l, time.Second); n < 100 || n > 111 {
			t.Errorf("%d admitted in 1 s of 100/s", n)
		}
		plain := lentAll(t, 100, 10)
		plain.Report(0, 1000)
		plain.Failed()
		if n := admits(plain, time.Second); n < 100 || n > 111 {
			t.Errorf("%d admitted in 1 s of 100/s, which is not adjusted", n)
		}
	})
}

// TestUsageOfManyLimits: what is decided by different limits is reported for each by itself, and
// what does not fit in one report is reported in the next.
func TestUsageOfManyLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limits = leasewire.MaxUsage + 50
		c := leased(t, 0, 0).lease.client
		for i := range limits {
			l := openLimit(t, c, fmt.Sprint("limit ", i), LimitOptions{})
			l.lease.Update(c.now(), 0, fixed.Whole(int64(i)), fixed.Whole(int64(i)))
			if i > 0 && !l.AllowN(time.Now(), int64(i)) || l.Allow() {
				t.Fatal("it is lent that much")
			}
		}
		sent := map[string]lease.Usage{}
		var sizes []int
		for range 3 {
			time.Sleep(usageEvery)
			c.lanes()[0].mu.Lock()
			for _, u := range c.lanes()[0].usage(c.now(), false) {
				if _, twice := sent[u.Limit]; twice {
					t.Errorf("%s is told twice", u.Limit)
				}
				sent[u.Limit] = u
			}
			if early := c.lanes()[0].usage(c.now().Add(usageEvery-1), false); early != nil {
				t.Errorf("%d are told before %v were over", len(early), usageEvery)
			}
			c.lanes()[0].mu.Unlock()
			sizes = append(sizes, len(sent))
		}
		for i := range limits {
			if u := sent[fmt.Sprint("limit ", i)]; u.Admitted != uint64(i) || u.Refused != 1 {
				t.Errorf("limit %d: %+v", i, u)
			}
		}
		if !slices.Equal(sizes, []int{leasewire.MaxUsage, limits, limits}) {
			t.Errorf("told of %v", sizes)
		}
	})
}

// TestFaultsAreLoggedOnce: a reason for which nothing is lent is logged when it begins, once for
// all keys, and again only after it had ended; of a limit that was closed nothing is logged.
func TestFaultsAreLoggedOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	c := leased(t, 0, 0).lease.client
	one, other := openLimit(t, c, "one", LimitOptions{}), openLimit(t, c, "other", LimitOptions{})
	good := agent.State{Known: true, Limit: rateOf(1, 1)}
	unknown := agent.State{Known: true, Status: lease.StatusUnknownLimit}
	many := agent.State{Known: true, Status: lease.StatusTooMany}
	kind := agent.State{Known: true, Limit: placesOf(1)}
	state := map[*Limiter]agent.State{}
	for i, tt := range []struct {
		of   *Limiter
		now  agent.State
		told error
	}{
		{one, unknown, ErrRefused},
		{one, unknown, nil},
		{other, unknown, ErrRefused},
		{one, many, ErrRefused},
		{one, unknown, nil}, // it has not ended for good
		{one, good, nil},
		{one, unknown, ErrRefused},
		{one, good, nil},
		{one, kind, ErrKind},
		{one, kind, nil},
		{one, good, nil},
		{one, kind, ErrKind},
		{other, unknown, nil},
		{other, good, nil},
		{other, unknown, ErrRefused},
	} {
		before := state[tt.of]
		state[tt.of] = tt.now
		tt.of.lease.state.Store(&tt.now)
		if err := tt.of.lease.noteFault(before, tt.now); !errors.Is(err, tt.told) || tt.told == nil && err != nil {
			t.Errorf("step %d: %v, want %v", i, err, tt.told)
		}
	}
	for i := range 2 * maxFaults {
		l := openLimit(t, c, fmt.Sprint("wrong ", i), LimitOptions{})
		l.lease.state.Store(&unknown)
		room := len(c.faults.known) < maxFaults
		if err := l.lease.noteFault(agent.State{}, unknown); (err != nil) != room || len(c.faults.known) > maxFaults {
			t.Fatalf("fault %d: %v, of %d known", i, err, len(c.faults.known))
		}
	}
	one.lease.state.Store(&unknown)
	if one.Close(); one.lease.noteFault(good, unknown) != nil {
		t.Error("a closed limit is told of")
	}
}

// liar is a coordinator that answers each report with one grant.
type liar struct {
	leasepb.UnimplementedLeasesServer
	grant *leasepb.Grant
	mu    sync.Mutex
	heard int
}

// Prepare implements the service.
func (l *liar) Hold(stream leasepb.Leases_HoldServer) error {
	for {
		if _, err := stream.Recv(); err != nil {
			return nil //nolint:nilerr // it hung up
		}
		l.mu.Lock()
		l.heard++
		l.mu.Unlock()
		if err := stream.Send(l.grant); err != nil {
			return err
		}
	}
}

// TestGrantThatIsNone: a stream whose grant cannot be one is left, Err says so, and nothing of
// the grant is spent.
func TestGrantThatIsNone(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer()
	leasepb.RegisterLeasesServer(server, &liar{grant: &leasepb.Grant{Lease: -1}})
	served := make(chan error, 1)
	go func() { served <- server.Serve(listener) }()
	c, err := New(Options{Address: listener.Addr().String(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	l := openLimit(t, c, "m", LimitOptions{})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	end := time.Now().Add(30 * time.Second)
	for !errors.Is(c.Err(), leasewire.ErrGrant) && time.Now().Before(end) {
		time.Sleep(time.Millisecond)
	}
	if err := c.Err(); !errors.Is(err, leasewire.ErrGrant) || !strings.Contains(err.Error(), "negative") {
		t.Errorf("Err: %v", err)
	}
	if l.Allow() || l.Lease().Known {
		t.Errorf("lent %+v", l.Lease())
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	server.Stop()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// TestPermitsAreCounted: of the permits of a lease each verb takes as many as it says, and they
// come back; nobody overtakes waiters, and a negative number is an error.
func TestPermitsAreCounted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := leased(t, 0, 0).lease.client
		var refused []int64
		c.opts.Hooks.OnRefuse = func(_ string, n int64, _ limit.Reason) { refused = append(refused, max(n, 0)) }
		g := openGauge(t, c, "jobs")
		g.lease.Update(c.now(), 0, fixed.Whole(5), 0)
		g.lease.state.Store(&agent.State{Known: true, Saturated: true, Held: lease.Capacity{Burst: fixed.Whole(5)}, Limit: placesOf(5)})
		inUse := func(want int64, when string) {
			t.Helper()
			if r := g.semaphore.Observe(c.now()); g.InUse() != want || r.InUse.Floor() != want || r.Waiting != 0 {
				t.Errorf("%s: %d in use, %+v, want %d", when, g.InUse(), r, want)
			}
		}
		if !g.TryAcquire(3) || g.TryAcquire(3) || g.TryAcquire(-1) || g.Remaining() != 2 || g.Name() != "jobs" {
			t.Errorf("3 of 5 leave 2, and not %d", g.Remaining())
		}
		inUse(3, "after TryAcquire")
		if err := g.AcquireMax(t.Context(), 2, 0); err != nil || g.Remaining() != 0 {
			t.Errorf("two are left: %v", err)
		}
		begin := time.Now()
		if err := g.AcquireMax(t.Context(), 1, time.Second); !errors.Is(err, limit.ErrWaitTooLong) || time.Since(begin) != time.Second {
			t.Errorf("none is left: %v after %v", err, time.Since(begin))
		}
		if err := g.Acquire(t.Context(), 6); !errors.Is(err, limit.ErrExceedsQuota) {
			t.Errorf("above the limit: %v", err)
		}
		if err := g.Acquire(t.Context(), -1); !errors.Is(err, limit.ErrNegativeCost) {
			t.Errorf("negative: %v", err)
		}
		inUse(5, "when all are")
		var wg sync.WaitGroup
		wg.Go(func() {
			if err := g.Acquire(t.Context(), 4); err != nil {
				t.Error(err)
			}
		})
		synctest.Wait()
		g.Release(2)
		if g.TryAcquire(1) || g.Remaining() != 0 {
			t.Error("it passed one who waits")
		}
		d, err := g.Take(t.Context(), limit.Request{})
		if r := d.Results[0]; err != nil || d.Allowed || d.Permit != 0 || r.Reason != limit.ReasonConcurrency || r.Algorithm != limit.Concurrency || r.Quota != 5 || r.Window != 0 || r.RetryAfter != longestAsk || r.ResetAfter != 0 {
			t.Errorf("a Take: %+v, %v", d, err)
		}
		g.Release(2)
		wg.Wait()
		inUse(5, "when the one that waited is served")
		g.Release(5)
		inUse(0, "when all came back")
		d, err = g.Take(t.Context(), limit.Request{Cost: 4, Peek: true})
		if err != nil || !d.Allowed || d.Permit != 0 || g.InUse() != 0 {
			t.Errorf("a look: %+v, %v", d, err)
		}
		d, err = g.Take(t.Context(), limit.Request{Cost: 4})
		if err != nil || !d.Allowed || d.Permit == 0 || g.InUse() != 4 || d.Results[0].Remaining != 1 {
			t.Errorf("a Take: %+v, %v", d, err)
		}
		again, err := g.Take(t.Context(), limit.Request{})
		if err != nil || again.Permit == d.Permit || g.InUse() != 5 {
			t.Errorf("another: %+v, %v", again, err)
		}
		for range 2 {
			if err := g.Finish(t.Context(), limit.Request{}, d.Permit); err != nil || g.InUse() != 1 {
				t.Errorf("%d in use after the first has ended: %v", g.InUse(), err)
			}
		}
		if !slices.Equal(refused, []int64{3, 0, 1, 1}) {
			t.Errorf("hooks were told of refusals of %v", refused)
		}
	})
}
