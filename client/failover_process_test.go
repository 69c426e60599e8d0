//go:build linux

package client_test

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"
)

var failOverLong = flag.Bool("fail-over", false, "tests of fail-over at their full length")

var manyLimitsCount = flag.Int("limits", 200, "limits of TestBackendWrites at its full length")

// TestFailOver: three members with a real etcd, all processes of their own, and instances that
// demand twice the limit. What passes is held against one bucket in every interval. Exact figures
// are printed; those that are asserted leave room for a busy machine.
func TestFailOver(t *testing.T) {
	if testing.Short() {
		t.Skip("processes of their own: nothing for the race detector")
	}
	for _, s := range []struct {
		name  string
		short bool // also without -fail-over
		run   func(t *testing.T)
	}{
		{"killed", true, testLeaderKilled},
		{"stopped-1s", true, func(t *testing.T) { testLeaderReturns(t, time.Second, false) }},
		{"stopped-11s", false, func(t *testing.T) { testLeaderReturns(t, 11*time.Second, false) }},
		{"stopped-30s", false, func(t *testing.T) { testLeaderReturns(t, 30*time.Second, false) }},
		{"stopped-60s", false, func(t *testing.T) { testLeaderReturns(t, time.Minute, false) }},
		{"restarted-1s", false, func(t *testing.T) { testLeaderReturns(t, time.Second, true) }},
		{"restarted-11s", false, func(t *testing.T) { testLeaderReturns(t, 11*time.Second, true) }},
		{"restarted-60s", false, func(t *testing.T) { testLeaderReturns(t, time.Minute, true) }},
		{"servers-replaced", true, testServersReplaced},
		{"leader-without-etcd", true, testLeaderParted},
		{"half-of-clients", false, testClientsParted},
		{"flapping", false, testFlapping},
		{"etcd-frozen", false, func(t *testing.T) { testNoBackend(t, false) }},
		{"etcd-killed", false, func(t *testing.T) { testNoBackend(t, true) }},
	} {
		if !s.short && !*failOverLong {
			continue
		}
		t.Run(s.name, func(t *testing.T) {
			t.Parallel()
			s.run(t)
		})
	}
}

// ten starts a cluster and ten instances that demand twice the limit.
func ten(t *testing.T, proxies bool) (*nodes, *fleet) {
	t.Helper()
	n := newNodes(t, limits)
	n.start()
	f := newFleet(t, n, 10, "messages", proxies)
	demand(2*perSecond, f.workers)
	f.settle(perSecond)
	return n, f
}

// report prints the least second between, and holds it against a bound. Without -fail-over it is
// one test of many on a machine, which may run no member for a second: it waits for the use to be
// whole again instead.
func (f *fleet) report(what string, from, to time.Time, bound float64) {
	f.t.Helper()
	rate, at := f.book.least(from, to)
	f.t.Logf("%s: the least second has %.3f of the limit, %v after its begin", what, rate/perSecond, at)
	if !*failOverLong {
		f.book.back(f.t, time.Now(), 0.9*perSecond)
	} else if rate < bound*perSecond {
		f.t.Errorf("%s: the least second has %.3f of the limit, want %v", what, rate/perSecond, bound)
	}
}

func testLeaderKilled(t *testing.T) {
	n, f := ten(t, false)
	halves := [][]*worker{f.workers[:5], f.workers[5:]}
	rounds := 1
	if *failOverLong {
		rounds = 5
	}
	for i := range rounds {
		busy, idle := halves[i%2], halves[1-i%2]
		demand(2*perSecond, busy)
		demand(0, idle)
		f.settle(perSecond)
		leader := n.leader(nil)
		killed := time.Now()
		leader.kill()
		demand(0, busy)
		demand(2*perSecond, idle)
		t.Logf("killed, and all demand elsewhere: 95 %% of the limit after %v", f.book.back(t, killed, 0.95*perSecond))
		n.restart(leader)
	}
	f.neverOver(perSecond, burst)
}

func testLeaderReturns(t *testing.T, after time.Duration, restart bool) {
	n, f := ten(t, false)
	leader, from := n.leader(nil), time.Now()
	if restart {
		leader.kill()
		pass(after)
		n.restart(leader)
	} else {
		leader.pauseFor(after)
	}
	pass(atLength(6 * time.Second))
	f.report("the former leader away and back", from, time.Now(), 0.5)
	f.neverOver(perSecond, burst)
}

// testServersReplaced: SIGTERM and a new process, one server after another.
func testServersReplaced(t *testing.T) {
	n, f := ten(t, false)
	from := time.Now()
	for _, m := range n.all {
		m.term()
		m.begin(t)
		m.ready(t)
		f.settle(perSecond)
	}
	f.report("three servers replaced", from, time.Now(), 0.5)
	f.neverOver(perSecond, burst)
}

func testLeaderParted(t *testing.T) {
	n, f := ten(t, false)
	leader, from := n.leader(nil), time.Now()
	leader.backend.set(func() { leader.backend.cut = true })
	leader.backend.sever()
	n.leader(leader)
	t.Logf("another leads after %v", time.Since(from))
	pass(atLength(20 * time.Second))
	leader.backend.set(func() { leader.backend.cut = false })
	healed := time.Now()
	pass(atLength(5 * time.Second))
	f.report("the leader without etcd", from, time.Now(), 0.5)
	t.Logf("after healing: 95 %% of the limit after %v", f.book.back(t, healed, 0.95*perSecond))
	f.neverOver(perSecond, burst)
}

func testClientsParted(t *testing.T) {
	_, f := ten(t, true)
	half, from := f.workers[:5], time.Now()
	for _, w := range half {
		w.links.cut(true)
	}
	pass(20 * time.Second)
	t.Logf("5 of 10 instances cut off: %.3f of the limit in the first 4 s, %.3f in the next 2 s, %.3f from 7 s on", f.book.rate(from, from.Add(4*time.Second))/perSecond,
		f.book.rate(from.Add(4*time.Second), from.Add(6*time.Second))/perSecond, f.book.rate(from.Add(7*time.Second), time.Now())/perSecond)
	f.report("half of the instances cut off", from, time.Now(), 0.3)
	for _, w := range half {
		w.links.cut(false)
	}
	healed := time.Now()
	pass(5 * time.Second)
	t.Logf("after healing: 95 %% of the limit after %v", f.book.back(t, healed, 0.95*perSecond))
	f.report("from healing on", healed, time.Now(), 0.5)
	f.neverOver(perSecond, burst)
}

func testFlapping(t *testing.T) {
	n, f := ten(t, true)
	from := time.Now()
	leader := n.leader(nil)
	for i := range 40 {
		cut := i%2 == 0
		leader.backend.set(func() { leader.backend.cut = cut })
		if cut {
			leader.backend.sever()
		}
		for _, w := range f.workers[:5] {
			w.links.cut(cut)
		}
		pass(500 * time.Millisecond)
	}
	healed := time.Now()
	f.report("the leader's way to etcd and half of the instances flap", from, healed, 0.3)
	pass(5 * time.Second)
	t.Logf("after healing: 95 %% of the limit after %v", f.book.back(t, healed, 0.95*perSecond))
	f.neverOver(perSecond, burst)
}

// testNoBackend: while nobody can renew a term nobody lends. Leases run to their end, then the
// pessimistic mode spends nothing.
func testNoBackend(t *testing.T, kill bool) {
	n, f := ten(t, false)
	from := time.Now()
	if kill {
		n.etcd.Kill()
	} else {
		n.etcd.Freeze()
	}
	pass(time.Minute)
	for s := range 8 {
		second := from.Add(time.Duration(s) * time.Second)
		t.Logf("second %d without etcd: %.3f of the limit", s+1, f.book.rate(second, second.Add(time.Second))/perSecond)
	}
	if n := f.book.rate(from.Add(8*time.Second), time.Now()); n > 0 {
		t.Errorf("%.2f/s pass without a lease", n)
	}
	if kill {
		n.etcd.Restart()
	} else {
		n.etcd.Thaw()
	}
	t.Logf("after healing: 95 %% of the limit after %v", f.book.back(t, time.Now(), 0.95*perSecond))
	f.settle(perSecond) // with the leases that follow
	f.neverOver(perSecond, burst)
}

// TestColdStart: servers, backend and instances start at once. It counts from the first admission.
func TestColdStart(t *testing.T) {
	if testing.Short() {
		t.Skip("processes of their own: nothing for the race detector")
	}
	sizes := []int{1}
	if *failOverLong {
		sizes = []int{1, 1000}
	}
	for _, size := range sizes {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			t.Parallel()
			const rate, burst = 4000, 4000
			n := newNodes(t, fmt.Sprintf("limits: [{name: messages, rate: %d/s, burst: %d, sharing: leased}]\n", rate, burst))
			f := newFleet(t, n, size, "messages", false)
			demand(max(2*rate, int64(size)*8), f.workers)
			begin := time.Now()
			n.start()
			serving := time.Now()
			var first time.Time
			await(t, "two seconds of admissions, which are more than the burst", func() bool {
				f.book.mu.Lock()
				defer f.book.mu.Unlock()
				if len(f.book.after) > 0 {
					first = time.Unix(0, slices.Min(f.book.after))
				}
				return len(f.book.after) > burst+2*rate*3/4
			})
			t.Logf("%d instances: the members serve %v after the start, the first admission is %v after that; the first second has %.3f of the limit, the second one %.3f",
				size, serving.Sub(begin), first.Sub(serving), f.book.rate(first, first.Add(time.Second))/rate, f.book.rate(first.Add(time.Second), first.Add(2*time.Second))/rate)
			f.neverOver(rate, burst)
		})
	}
}

// TestLimitChanges: the files of all members change. Callers that wait are let go by the new limit.
func TestLimitChanges(t *testing.T) {
	if testing.Short() {
		t.Skip("processes of their own: nothing for the race detector")
	}
	t.Parallel()
	text := func(perSecond int) string {
		return fmt.Sprintf("limits: [{name: messages, rate: %d/s, burst: %d, sharing: leased}]\n", perSecond, max(1, perSecond/5))
	}
	n := newNodes(t, text(1))
	n.start()
	f := newFleet(t, n, 10, "messages", false)
	var waiters sync.WaitGroup
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	served := make(chan time.Time, 100)
	for _, w := range f.workers {
		for range 10 {
			waiters.Go(func() {
				if err := w.limiter.Wait(ctx); err != nil {
					t.Errorf("Wait: %v", err)
				}
				served <- time.Now()
			})
		}
	}
	await(t, "a caller to be let go by the lower limit", func() bool { return len(served) > 0 })
	raised := time.Now()
	n.configure(text(1000))
	waiters.Wait()
	close(served)
	var last time.Time
	late := 0
	for at := range served {
		if at.After(raised) {
			late++
		}
		last = at
	}
	t.Logf("1/s to 1000/s: the last of %d waiting callers is let go %v after the files were written", late, last.Sub(raised))
	demand(2000, f.workers)
	f.book.back(t, time.Now(), 950)
	lowered := time.Now()
	n.configure(text(100))
	// A busy machine may have no leader for a while, and leases of before last five seconds.
	await(t, "the lower limit to hold", func() bool {
		now := time.Now()
		return f.book.rate(now.Add(-2*time.Second), now) <= 130
	})
	over := time.Duration(0)
	for at := time.Duration(0); at < 2500*time.Millisecond; at += 50 * time.Millisecond {
		if begin := lowered.Add(at); f.book.rate(begin, begin.Add(50*time.Millisecond)) > 300 {
			over = at + 50*time.Millisecond
		}
	}
	t.Logf("1000/s to 100/s: nothing above three times the new limit in 50 ms from %v on", over)
	t.Logf("%.1f/s pass from one second after on", f.book.rate(lowered.Add(time.Second), time.Now()))
}

// TestBackendWrites: what is written to the backend depends on neither limits nor load.
func TestBackendWrites(t *testing.T) {
	if testing.Short() {
		t.Skip("processes of their own: nothing for the race detector")
	}
	t.Parallel()
	count, size := 10, 5
	if *failOverLong {
		count, size = *manyLimitsCount, 96
	}
	text := "limits:\n"
	for i := range count {
		text += fmt.Sprintf("  - {name: l%d, rate: 1000/s, burst: 1000, sharing: leased}\n", i)
	}
	n := newNodes(t, text)
	n.start()
	n.leader(nil)
	revision := func() uint64 {
		r, err := n.register.Read(t.Context(), "leader/leases")
		if err != nil {
			t.Fatal(err)
		}
		return r.Revision
	}
	writes := func(what string, d time.Duration) float64 {
		began, first := time.Now(), revision()
		await(t, "twelve writes", func() bool { return revision() >= first+12 })
		pass(d - time.Since(began))
		perSecond := float64(revision()-first) / time.Since(began).Seconds()
		t.Logf("%s: %.2f writes per second", what, perSecond)
		return perSecond
	}
	writes("members start", 0)
	idle := writes("no instances", atLength(10*time.Second))
	load := manyLimits(t, n, count, size)
	writes(fmt.Sprintf("%d limits x %d instances start", count, size), atLength(10*time.Second))
	await(t, "admissions of each instance", func() bool { return load.Load() > int64(count*size) })
	pass(atLength(10 * time.Second))
	busy := writes(fmt.Sprintf("%d limits x %d instances under load", count, size), atLength(20*time.Second))
	t.Logf("%d requests were admitted", load.Load())
	// The leader renews its record four times in a term of a second, and each new term writes it too.
	// A machine that is busy renews less, so the idle figure is no bound.
	if load.Load() == 0 || busy > 1.25*max(idle, 4)+1 {
		t.Errorf("%.2f writes per second under load, %.2f idle", busy, idle)
	}
}
