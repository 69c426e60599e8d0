package client

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/lease/coordinator"
	"github.com/stint-io/stint/limit"
)

// observe starts a client of h that notes each change of its leases and its connection.
func observe(t *testing.T, h *hub, o Options) (c *Client, changes func() []string, stop func()) {
	t.Helper()
	var lines []string // written by the goroutine of Run alone
	o.Transport, o.Address = h, "a"
	o.OnLease = func(name string, was, is LeaseState) { lines = append(lines, fmt.Sprintf("%s %v-%v", name, was, is)) }
	o.OnConnection = func(up bool) { lines = append(lines, fmt.Sprintf("connected %v", up)) }
	c, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	var done sync.WaitGroup
	done.Go(func() {
		if err := c.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	stop = func() { cancel(); done.Wait() }
	t.Cleanup(stop)
	return c, func() []string {
		synctest.Wait()
		defer func() { lines = nil }()
		return lines
	}, stop
}

// TestUnknownLimitHealsWithoutRestart: of a limit that the coordinator does not know Err and each
// verb say so, and Allow refuses, with the hook. When the coordinator learns it, all of that ends
// by itself; and one that comes and goes is logged a bounded number of times.
func TestUnknownLimitHealsWithoutRestart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		var log bytes.Buffer
		var reasons []limit.Reason
		c, changes, _ := observe(t, h, Options{
			Instance: "i", Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Hooks: limit.Hooks{OnRefuse: func(_ string, _ int64, r limit.Reason) { reasons = append(reasons, r) }},
		})
		l := openLimit(t, c, "new", LimitOptions{})
		k, err := c.Keyed("by-key", []string{"a"}, KeyedOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if l.Err() != nil || k.Err() != nil {
			t.Errorf("before the first answer: %v, %v", l.Err(), k.Err())
		}
		time.Sleep(time.Second)
		for _, err := range []error{l.Err(), k.Err()} {
			if !errors.Is(err, ErrRefused) || !strings.Contains(err.Error(), "limits file") {
				t.Errorf("Err = %v", err)
			}
		}
		if l.Allow() || !slices.Equal(reasons, []limit.Reason{limit.ReasonStoreFailure}) {
			t.Errorf("Allow refuses for %v", reasons)
		}
		want := []string{"connected true", "by-key closed-unanswered", "by-key unanswered-refused", "new closed-unanswered", "new unanswered-refused"}
		if got := changes(); !slices.Equal(sorted(got), sorted(want)) {
			t.Errorf("changes %q", got)
		}
		const rounds = 50
		for range rounds {
			h.set(func() {
				h.terms["new"], h.terms["by-key"] = rateOf(100, 10), rateOf(100, 10)
				h.step(coordinator.Reconfigure{})
			})
			inTime(t, "it is healed", func() bool { return l.Err() == nil && k.Err() == nil && l.Allow() })
			h.set(func() { delete(h.terms, "new"); delete(h.terms, "by-key"); h.step(coordinator.Reconfigure{}) })
			inTime(t, "it is gone", func() bool { return l.Err() != nil && k.Err() != nil })
		}
		synctest.Wait()
		elapsed := time.Duration(c.now())
		most := 2 * (faultBurst + int(elapsed/faultGap))
		if n := strings.Count(log.String(), "\n"); n < 2*faultBurst || n > most {
			t.Errorf("%d lines for %d times in %v, want %d to %d\n%s", n, rounds, elapsed, 2*faultBurst, most, log.String())
		}
	})
}

func sorted(s []string) []string { return slices.Sorted(slices.Values(s)) }

func inTime(t *testing.T, what string, done func() bool) {
	t.Helper()
	for range 10_000 {
		if done() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatalf("not after 100 s: %s", what)
}

// TestLeaseStatesAreSaid: the states of a lease through its life, each change once and in order.
func TestLeaseStatesAreSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = rateOf(10, 2)
		c, changes, stop := observe(t, h, Options{Instance: "i", Logger: slog.New(slog.DiscardHandler)})
		l := openLimit(t, c, "m", LimitOptions{Expiry: Safe})
		if err := l.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		got := changes()
		if !slices.Contains(got, "connected true") || got[0] != "m closed-unanswered" || !strings.HasSuffix(got[len(got)-1], "-held") {
			t.Errorf("at first %q", got)
		}
		for range 300 {
			l.Allow()
			time.Sleep(10 * time.Millisecond)
		}
		if got := changes(); !slices.Contains(got, "m held-saturated") {
			t.Errorf("under load %q", got)
		}
		h.crash()
		time.Sleep(20 * time.Second)
		got = changes()
		if !slices.Contains(got, "connected false") || !slices.Contains(got, "m saturated-expired") && !slices.Contains(got, "m held-expired") {
			t.Errorf("without a coordinator %q", got)
		}
		h.set(func() { h.down = false; h.start(1000, 5*time.Second) })
		for range 150 {
			l.Allow()
			time.Sleep(100 * time.Millisecond)
		}
		got = changes()
		t.Logf("after it %q", got)
		if !slices.Contains(got, "connected true") || !slices.Contains(got, "m expired-recovering") || !slices.ContainsFunc(got, func(s string) bool { return strings.HasPrefix(s, "m recovering-") }) {
			t.Errorf("after it %q", got)
		}
		stop()
		got = changes()
		if !slices.Contains(got, "connected false") || !slices.ContainsFunc(got, func(s string) bool { return strings.HasSuffix(s, "-closed") }) {
			t.Errorf("at the end %q", got)
		}
	})
}

// tally is what the callers of limits m, k and g were answered, and what the hooks have counted.
type tally struct{ gave, denied, admitted, refused [3]atomic.Int64 }

func (y *tally) at(name string) int { return strings.Index("m k g", name) / 2 }

func (y *tally) hooks(t *testing.T) limit.Hooks {
	return limit.Hooks{
		OnAdmit: func(name string, n int64) { y.admitted[y.at(name)].Add(n) },
		OnRefuse: func(name string, n int64, r limit.Reason) {
			if r == limit.ReasonNone || r.String() == "unknown" {
				t.Errorf("refused for %d", r)
			}
			y.refused[y.at(name)].Add(n)
		},
	}
}

func (y *tally) count(of int, allowed bool, n int64) {
	if allowed {
		y.gave[of].Add(n)
	} else {
		y.denied[of].Add(n)
	}
}

// ask asks once, by a verb that r draws.
func (y *tally) ask(t *testing.T, r *rand.Rand, l *Limiter, k *Keyed, g *Semaphore) {
	take := func(of int, taker limit.Taker, req limit.Request) {
		d, err := taker.Take(t.Context(), req)
		if err != nil {
			t.Error(err)
		}
		y.count(of, d.Allowed, req.Cost)
	}
	n := 1 + r.Int64N(3)
	switch r.IntN(8) {
	case 0:
		y.count(0, l.Allow(), 1)
	case 1:
		y.count(0, l.AllowN(time.Now(), n), n)
	case 2:
		take(0, l, limit.Request{Cost: n})
	case 3:
		if l.WaitMaxN(t.Context(), n, 20*time.Millisecond) == nil {
			y.count(0, true, n)
		}
	case 4:
		ended := make(chan error, 1)
		if cancel := l.WaitFunc(n, 20*time.Millisecond, func(err error) { ended <- err }); r.IntN(2) == 0 && cancel() {
			return
		}
		if <-ended == nil {
			y.count(0, true, n)
		}
	case 5, 6:
		take(1, k, limit.Request{Cost: n, Attributes: []limit.Attribute{{Name: "a", Value: fmt.Sprint(r.IntN(5))}}})
	case 7:
		ok := g.TryAcquire(n)
		if y.count(2, ok, n); ok {
			time.Sleep(time.Millisecond)
			g.Release(n)
		}
	}
}

// TestHooksCountEachDecision: whatever the mix of verbs, what the hooks count is what the callers
// were answered, and the leases in each state are those that are open.
func TestHooksCountEachDecision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"], h.terms["k"], h.terms["g"] = rateOf(300, 20), rateOf(30, 5), placesOf(5)
		var y tally
		states := map[LeaseState]int{}
		c, err := New(Options{
			Transport: h, Address: "a", Instance: "i", Logger: slog.New(slog.DiscardHandler), Hooks: y.hooks(t),
			OnLease: func(_ string, was, is LeaseState) { states[was]--; states[is]++ },
		})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var run, work sync.WaitGroup
		run.Go(func() { _ = c.Run(ctx) })
		l, g := openLimit(t, c, "m", LimitOptions{}), openGauge(t, c, "g")
		k, err := c.Keyed("k", []string{"a"}, KeyedOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for i := range 12 {
			work.Go(func() {
				r := rand.New(rand.NewPCG(7, uint64(i)))
				for range 300 {
					y.ask(t, r, l, k, g)
					time.Sleep(time.Duration(r.IntN(20)) * time.Millisecond)
				}
			})
		}
		work.Wait()
		for i := range y.gave {
			if a, b := y.admitted[i].Load(), y.gave[i].Load(); a != b || a == 0 {
				t.Errorf("limit %d: the hook has admitted %d, the callers %d", i, a, b)
			}
			if a, b := y.refused[i].Load(), y.denied[i].Load(); a != b || a == 0 {
				t.Errorf("limit %d: the hook has refused %d, the callers %d", i, a, b)
			}
		}
		synctest.Wait()
		open := 0
		for s, n := range states {
			if s != LeaseClosed {
				open += n
			}
			if s != LeaseClosed && n < 0 {
				t.Errorf("%d leases are %v", n, s)
			}
		}
		if open != 2+k.Keys() {
			t.Errorf("%d leases by the states, want 2 and %d keys: %v", open, k.Keys(), states)
		}
		cancel()
		run.Wait()
		for s, n := range states {
			if n != 0 {
				t.Errorf("at the end %d are %v", n, s)
			}
		}
		if len(leaseStateNames) != LeaseStateCount {
			t.Error("a state has no name")
		}
	})
}

// TestOutageIsLoggedOnce: a coordinator that is away for five minutes is logged once and then once a
// minute, and when it answers again. One that comes and goes all the time is logged a bounded
// number of times.
func TestOutageIsLoggedOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = rateOf(100, 10)
		var log bytes.Buffer
		c, _, stop := observe(t, h, Options{Instance: "i", Logger: slog.New(slog.NewTextHandler(&log, nil))})
		l := openLimit(t, c, "m", LimitOptions{})
		if err := l.Wait(t.Context()); err != nil || log.Len() > 0 {
			t.Fatalf("%v, the log is\n%s", err, log.String())
		}
		epoch := uint64(1)
		for _, away := range []time.Duration{5*time.Minute + 30*time.Second, time.Second} {
			h.crash()
			time.Sleep(away)
			epoch++
			h.set(func() { h.down = false; h.start(epoch, 0) })
			inTime(t, "it answers", func() bool { return c.Err() == nil && l.WaitMax(t.Context(), time.Second) == nil })
			synctest.Wait()
			lost, back := strings.Count(log.String(), "no connection"), strings.Count(log.String(), "answers again")
			// The stream that ends is one cause, the tries that fail another.
			if least := 1 + int(away/faultGap); lost < least || lost > least+1 || back != 1 {
				t.Errorf("away for %v: %d and %d lines\n%s", away, lost, back, log.String())
			}
			log.Reset()
		}
		begin := c.now()
		const rounds = 50
		for range rounds {
			h.crash()
			time.Sleep(100 * time.Millisecond)
			epoch++
			h.set(func() { h.down = false; h.start(epoch, 0) })
			inTime(t, "it answers", func() bool { return c.Err() == nil && c.Connected() })
		}
		stop()
		most := 2 * (faultBurst + 1 + int(time.Duration(c.now()-begin)/faultGap))
		if n := strings.Count(log.String(), "no connection"); n > most || n == 0 {
			t.Errorf("%d lines for %d outages, want at most %d", n, rounds, most)
		}
	})
}
