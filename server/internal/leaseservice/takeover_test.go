package leaseservice

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/server/internal/leasestate"
)

// passes lets time pass until cond holds, and returns how long that took.
func passes(t *testing.T, most time.Duration, cond func() bool) time.Duration {
	t.Helper()
	begun := time.Now()
	for synctest.Wait(); !cond(); synctest.Wait() {
		if time.Since(begun) > most {
			t.Fatalf("not within %v", most)
		}
		time.Sleep(10 * time.Millisecond)
	}
	return time.Since(begun)
}

// A service lends at once only where it is known that nobody lent before it. Where Redis
// knows nothing of that, or may have said so in an answer that was lost, it learns first,
// under a new epoch.
func TestUnknownFormerIsLearnt(t *testing.T) {
	for name, c := range map[string]struct {
		clean bool
		mute  int // questions that are taken and not answered
		learn bool
	}{
		"the one before ended well":            {true, 0, false},
		"nothing is known":                     {false, 0, true},
		"the one before ended well, unheard":   {true, 1, true},
		"nothing is known, and that is unsaid": {false, 2, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := &place{clean: c.clean, mute: map[string]int{}}
				var raised []uint64
				begun := time.Now()
				s := run(t, p, 1, func(o *Options) {
					o.Raise = func(epoch uint64) error { raised = append(raised, epoch); return nil }
					var named claim
					named.init(o)
					p.mute[named.id] = c.mute
				})
				first := s.opts.State.Epoch
				passes(t, 20*time.Second, s.may)
				took := time.Since(begun)
				switch {
				case !c.learn && (took > 50*time.Millisecond || len(raised) > 0):
					t.Errorf("it lends after %v, raised to %v", took, raised)
				case c.learn && (took < lease.DefaultLease+claimEvery || took > lease.DefaultLease+3*claimEvery):
					t.Errorf("it lends after %v", took)
				case c.learn && (len(raised) != 1 || raised[0] <= first):
					t.Errorf("it began at the epoch %d, and raised to %v", first, raised)
				}
			})
		})
	}
}

// A start waits no longer for Redis than Redis is away, and a tenth of a second. Meanwhile
// the answer is that nothing is known yet.
func TestStartWithoutRedis(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &place{clean: true, down: true}
		s := run(t, p, 1)
		if time.Sleep(time.Second + claimSoon/2); !s.Asking() || s.Elsewhere() != "" || s.lends(s.now()) {
			t.Errorf("asking: %v, elsewhere: %q", s.Asking(), s.Elsewhere())
		}
		s.dial(t).wantEnd(t, codes.Unavailable, "does not lend yet")
		p.set(func() { p.down = false })
		// What the questions without an answer did is not known: they may have been taken.
		if took := passes(t, 20*time.Second, func() bool { return s.lends(s.now()) }); took > 1560*time.Millisecond {
			t.Errorf("it lends %v after Redis came back", took)
		}
		if s.Asking() || s.Elsewhere() != "" {
			t.Errorf("asking: %v, elsewhere: %q", s.Asking(), s.Elsewhere())
		}
		second := run(t, p, 2)
		synctest.Wait()
		if second.Asking() || second.Elsewhere() != s.claim.id {
			t.Errorf("asking: %v, elsewhere: %q", second.Asking(), second.Elsewhere())
		}
		second.dial(t).wantEnd(t, codes.FailedPrecondition, s.claim.id)
		until := limit.Time(s.claim.until.Load())
		if !s.lends(until-1) || s.lends(until) || s.lends(until+1) {
			t.Errorf("it lends at and after the end of its claim")
		}
	})
}

// A holder goes on while Redis does not answer. When Redis comes back empty, another can have
// lent only if the holder was away for a lease: from then on it recovers, under a new epoch that
// is sent to its instances at once.
func TestHolderAfterRedisWasAway(t *testing.T) {
	for _, c := range []struct {
		away  time.Duration // of the question that is answered again, from the last that was
		learn bool
		hangs bool
	}{
		{lease.DefaultLease - claimSoon, false, false}, {lease.DefaultLease, true, false}, {time.Minute, true, false}, {time.Minute, true, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := &place{clean: true, cut: map[string]bool{}}
			s := run(t, p, 1)
			synctest.Wait()
			i := s.dial(t)
			i.report("a", 1, demand(1, "shared", 10))
			p.set(func() { p.down, p.hangs = !c.hangs, c.hangs })
			reported := time.Now()
			for end := time.Now().Add(c.away - claimSoon/2); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
				if synctest.Wait(); !s.may() {
					t.Fatalf("it does not lend while Redis is away")
				}
				if time.Since(reported) > time.Second {
					reported = time.Now()
					i.report("a", 1)
				}
			}
			before := len(i.received())
			p.set(func() { p.down, p.hangs, p.holder, p.until, p.clean = false, false, "", time.Time{}, false })
			time.Sleep(claimEvery + claimSoon)
			if synctest.Wait(); (s.Recovering() > 0) != c.learn || !s.lends(s.now()) || s.Recovering() > lease.DefaultLease+lease.DefaultLease/64 {
				t.Errorf("away for %v, hangs %v: learns for %v", c.away, c.hangs, s.Recovering())
			}
			risen := slices.ContainsFunc(i.received()[before:], func(g *leasepb.Grant) bool { return g.GetEpoch() > s.opts.State.Epoch })
			if risen != c.learn || i.over() {
				t.Errorf("away for %v: told of a new epoch: %v, ended: %v", c.away, risen, i.err)
			}
		})
	}
}

// A service lends by a claim, or gives it up, only when its loop knows: what the loop does
// before, it does as the one that it was.
func TestLoopKnowsFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &place{clean: true, cut: map[string]bool{}}
		first := run(t, p, 1)
		synctest.Wait()
		second := run(t, p, 2)
		synctest.Wait()
		busy := func(c claimant) (release func()) {
			held := make(chan struct{})
			go c.inLoop(t.Context(), func(limit.Time) { <-held })
			synctest.Wait()
			return func() { close(held); synctest.Wait() }
		}
		release := busy(first)
		first.Reload(limits(t, "limits: [{name: other, rate: 1/s}]"))
		time.Sleep(2 * claimEvery)
		if p.held() != first.claim.id {
			t.Error("the claim is given up, and the loop lends")
		}
		releaseSecond := busy(second)
		release()
		// Nothing was lent by the loop since; but that is not known here.
		if !slices.Equal(p.given, []bool{false}) {
			t.Errorf("given up as clean: %v", p.given)
		}
		for range 500 {
			time.Sleep(10 * time.Millisecond)
			if synctest.Wait(); second.lends(second.now()) {
				t.Fatal("it lends before its loop knows")
			}
		}
		if p.held() != second.claim.id {
			t.Fatal("the second has no claim")
		}
		releaseSecond()
		if !second.lends(second.now()) || second.Recovering() == 0 {
			t.Errorf("it lends: %v, and learns for %v", second.lends(second.now()), second.Recovering())
		}
		second.stop()
		first.stop()
		if !slices.Equal(p.given, []bool{false, false}) {
			t.Errorf("given up as clean: %v, want once by each, while something may be lent", p.given)
		}
	})
}

// A claim that was given up with nothing lent is taken over without recovery by a service that
// had no use for it meanwhile; what it knew of another is of no account then.
func TestLimitsAreLeasedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &place{clean: true}
		first := run(t, p, 1)
		synctest.Wait()
		second := run(t, p, 2)
		synctest.Wait()
		if first.Leasing() != true || second.Elsewhere() == "" {
			t.Fatal("the second knows of nobody")
		}
		second.Reload(limits(t, "limits: [{name: other, rate: 1/s}]"))
		time.Sleep(2*claimEvery + claimSoon/2) // between two checks
		if second.Elsewhere() != "" || second.Asking() || second.Leasing() {
			t.Errorf("it has nothing to lend, and asks: %v, elsewhere: %q", second.Asking(), second.Elsewhere())
		}
		first.stop()
		if !slices.Equal(p.given, []bool{true}) {
			t.Errorf("given up as clean: %v", p.given)
		}
		second.Reload(limits(t, config))
		if !second.Asking() {
			t.Error("it knows already")
		}
		if took := passes(t, 20*time.Second, second.may); took > claimSoon+10*time.Millisecond {
			t.Errorf("it lends after %v", took)
		}
	})
}

// Each change of who lends is logged once: that another one does, that this one takes over,
// and that another one does again; and each epoch that cannot be kept.
func TestChangesOfTheHolderAreLogged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &place{clean: true}
		lines := new(lockedBuffer)
		first := run(t, p, 1)
		synctest.Wait()
		second := run(t, p, 2, func(o *Options) {
			o.Logger = slog.New(slog.NewTextHandler(lines, nil))
			o.Raise = func(uint64) error { return errors.New("the disk is full") }
		})
		want := func(elsewhere, takeovers int) {
			t.Helper()
			synctest.Wait()
			if text := lines.String(); strings.Count(text, "another service lends") != elsewhere || strings.Count(text, "this service takes over") != takeovers || strings.Count(text, "the disk is full") != takeovers {
				t.Errorf("want %d and %d of\n%s", elsewhere, takeovers, text)
			}
		}
		time.Sleep(10 * time.Second)
		want(1, 0)
		first.stop()
		time.Sleep(10 * time.Second)
		want(1, 1)
		p.set(func() { p.holder, p.until = first.claim.id, time.Now().Add(5*time.Second) })
		time.Sleep(4 * time.Second)
		want(2, 1)
		time.Sleep(10 * time.Second)
		want(2, 2)
		if !second.lends(second.now()) {
			t.Error("it does not lend")
		}
	})
}

// Run does not return before the last question has, nor later than a renewal takes.
func TestRunEndsItsClaiming(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &place{clean: true}
		s := run(t, p, 1)
		synctest.Wait()
		p.set(func() { p.slow = 700 * time.Millisecond })
		passes(t, time.Minute, func() bool { p.Lock(); defer p.Unlock(); return p.asking > 0 })
		s.stop()
		if p.asking != 0 || len(p.given) != 1 {
			t.Errorf("%d questions are under way after the end, the claim was given up %d times", p.asking, len(p.given))
		}
		p.set(func() { p.slow, p.hangs = 0, true })
		hanging := run(t, p, 2)
		time.Sleep(100 * time.Millisecond)
		begun := time.Now()
		if hanging.stop(); time.Since(begun) > claimEvery {
			t.Errorf("it ends after %v", time.Since(begun))
		}
	})
}

// Who opens a pipe waits for the claim, for its own time, and for the end.
func TestPipesWaitForTheClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &place{clean: true}
		first := run(t, p, 1)
		synctest.Wait()
		second := run(t, p, 2)
		third := run(t, p, 3)
		open := func(c claimant, ctx context.Context) <-chan error {
			opened := make(chan error, 1)
			go func() { _, err := c.Pipe(ctx); opened <- err }()
			return opened
		}
		alone := run(t, &place{clean: true, slow: time.Second}, 4)
		begun := time.Now()
		if err := <-open(alone, t.Context()); err != nil || time.Since(begun) != time.Second {
			t.Errorf("the answer takes a second: %v after %v", err, time.Since(begun))
		}
		short, cancel := context.WithTimeout(t.Context(), 2*time.Second)
		defer cancel()
		begun = time.Now()
		impatient, patient, gone := open(second, short), open(second, t.Context()), open(third, t.Context())
		if err := <-impatient; status.Code(err) != codes.Unavailable || time.Since(begun) != 2*time.Second {
			t.Errorf("its time was over: %v after %v", err, time.Since(begun))
		}
		third.stop()
		if err := <-gone; status.Code(err) != codes.Unavailable || time.Since(begun) != 2*time.Second {
			t.Errorf("the service has ended: %v after %v", err, time.Since(begun))
		}
		first.stop()
		if err := <-patient; err != nil || time.Since(begun) < 2*time.Second {
			t.Errorf("the other one has ended: %v after %v", err, time.Since(begun))
		}
		// One that was paused may not lend, though it did, and asks again within a second.
		second.claim.until.Store(0)
		begun = time.Now()
		if err := <-open(second, t.Context()); err != nil || time.Since(begun) > claimEvery+claimSoon || !second.lends(second.now()) {
			t.Errorf("paused: %v after %v", err, time.Since(begun))
		}
		p.set(func() { p.holder, p.until = "stranger", time.Now().Add(time.Hour) })
		second.claim.until.Store(0)
		short, cancel = context.WithTimeout(t.Context(), claimSoon/2)
		defer cancel()
		begun = time.Now()
		if err := <-open(second, short); status.Code(err) != codes.Unavailable || time.Since(begun) != claimSoon/2 {
			t.Errorf("paused, and its time was over: %v after %v", err, time.Since(begun))
		}
	})
}

// One that gets a report of a later epoch goes above it, stores that before a grant is sent, and
// recovers; that it cannot be kept is logged.
func TestEpochOfAnotherIsHigher(t *testing.T) {
	for _, fault := range []error{nil, errors.New("the disk is full")} {
		synctest.Test(t, func(t *testing.T) {
			var raised []uint64
			var i *call
			lines := new(lockedBuffer)
			s := lend(t, func(o *Options) {
				o.Logger = slog.New(slog.NewTextHandler(lines, nil))
				o.Raise = func(epoch uint64) error {
					for _, g := range i.received() {
						if g.GetEpoch() == epoch {
							t.Errorf("told of the epoch %d before it is kept", epoch)
						}
					}
					raised = append(raised, epoch)
					return fault
				}
			})
			i = s.dial(t)
			i.report("a", 1, demand(1, "shared", 10))
			const heard = 1 << 62
			i.reports <- &leasepb.Report{Instance: "a", Session: 1, Number: 2, Stamp: 2, Epoch: heard - 5}
			synctest.Wait()
			if len(raised) != 1 || raised[0] <= heard-5 {
				t.Errorf("raised to %v", raised)
			}
			if learn := s.Recovering(); learn != lease.DefaultLease+lease.DefaultLease/64 {
				t.Errorf("learns for %v", learn)
			}
			i.reports <- &leasepb.Report{Instance: "a", Session: 1, Number: 3, Stamp: 3}
			synctest.Wait()
			if received := i.received(); received[len(received)-1].GetEpoch() != raised[0] || len(raised) != 1 {
				t.Errorf("raised to %v, received %v", raised, received[len(received)-1])
			}
			text := lines.String()
			if strings.Count(text, "does not know of") != 1 || strings.Contains(text, "cannot be kept") != (fault != nil) {
				t.Errorf("logged:\n%s", text)
			}
			time.Sleep(lease.DefaultLease + lease.DefaultLease/64)
			if s.Recovering() != 0 {
				t.Errorf("learns for %v more", s.Recovering())
			}
		})
	}
}

// Nothing is lent at the end of a service that has lent nothing, once it has learnt that no
// former one has.
func TestNothingIsLentAtTheEnd(t *testing.T) {
	for _, c := range []struct {
		runs    time.Duration
		lent    bool
		nothing bool
	}{{10*time.Second - 1, false, false}, {10 * time.Second, false, true}, {20 * time.Second, false, true}, {20 * time.Second, true, false}} {
		synctest.Test(t, func(t *testing.T) {
			s := New(Options{Limits: limits(t, config), State: leasestate.State{Epoch: 5, Recovery: 10 * time.Second}, Logger: slog.New(slog.DiscardHandler)})
			if s.Recovering() != 10*time.Second || s.now() <= 0 {
				t.Errorf("learns for %v from %v", s.Recovering(), s.now())
			}
			ctx, cancel := context.WithCancel(t.Context())
			nothing := make(chan bool, 1)
			go func() { nothing <- s.Run(ctx) }()
			time.Sleep(c.runs)
			if c.lent {
				s.dial(t).report("a", 1, demand(1, "shared", 10))
				time.Sleep(time.Second)
			}
			cancel()
			if got := <-nothing; got != c.nothing {
				t.Errorf("after %v, something lent: %v: nothing is lent: %v", c.runs, c.lent, got)
			}
		})
	}
}
