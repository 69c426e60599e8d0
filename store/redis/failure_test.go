package redis

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// tokens is a token bucket of count per period.
func tokens(count int64, period time.Duration, burst int64) limit.Policy {
	return limit.Policy{Algorithm: limit.TokenBucket, Rate: limit.Rate{Count: count, Period: period}, Burst: burst}
}

// still is a bucket that gets no tokens back, so that what was taken from it stays
// countable.
func still(burst int64) limit.Policy { return tokens(0, time.Second, burst) }

func bind(t testing.TB, s store.Store, id string, p limit.Policy) store.Counters {
	t.Helper()
	c, err := s.Bind(store.Spec{ID: id, Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func charge(c store.Counters, key string, cost int64) store.Charge {
	return store.Charge{Counters: c, Key: []byte(key), Cost: cost}
}

// used is how much of a bucket of that policy Redis holds as taken.
func used(t testing.TB, s *Store, c store.Counters, key string) int64 {
	t.Helper()
	one := []store.Charge{charge(c, key, 0)}
	var err error
	await(t, "an answer", func() bool {
		_, err = s.Peek(t.Context(), one)
		return err == nil && !one[0].Failed
	})
	return c.Spec().Policy.Quota() - one[0].Verdict.Remaining
}

// journal keeps the lines that a store logs.
type journal struct {
	mu    sync.Mutex
	lines []string
}

func (j *journal) Write(p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.lines = append(j.lines, strings.TrimSpace(string(p)))
	return len(p), nil
}

func (j *journal) all() []string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return slices.Clone(j.lines)
}

// String is the beginning of it, without what each line repeats.
func (j *journal) String() string {
	lines := j.all()
	text := ""
	for _, line := range lines[:min(len(lines), 6)] {
		if _, after, ok := strings.Cut(line, "error="); ok {
			line = after
		}
		text += line + "\n"
	}
	return text
}

func (j *journal) logger() *slog.Logger { return slog.New(slog.NewTextHandler(j, nil)) }

// waits are how long requests took.
type waits []time.Duration

func (w waits) at(part float64) time.Duration {
	if len(w) == 0 {
		return 0
	}
	slices.Sort(w)
	return w[min(len(w)-1, int(part*float64(len(w))))]
}

func (w waits) String() string {
	return fmt.Sprintf("%d requests, p50 %v, p99 %v, p99.9 %v, longest %v", len(w),
		w.at(0.5).Round(time.Microsecond), w.at(0.99).Round(time.Microsecond), w.at(0.999).Round(time.Microsecond), w.at(1).Round(time.Microsecond))
}

// load has goroutines take until it is stopped, each every pause or as soon as it
// has its answer. Beside them goroutines wait for nothing but the clock: how late
// those are is the machine's doing.
type load struct {
	stop atomic.Bool
	wg   sync.WaitGroup

	mu    sync.Mutex
	waits waits
	late  time.Duration // the latest of those that wait for the clock

	admitted, refused, failed, errs atomic.Int64
	answers                         []atomic.Int64 // of each goroutine
}

func startLoad(t testing.TB, workers int, pause time.Duration, take func(worker int) (store.Charge, bool, error)) *load {
	l := &load{answers: make([]atomic.Int64, workers)}
	for n := range workers {
		l.wg.Go(func() {
			tick := time.NewTicker(pause)
			defer tick.Stop()
			for !l.stop.Load() {
				began := time.Now()
				c, ok, err := take(n)
				took := time.Since(began)
				switch {
				case err != nil:
					l.errs.Add(1)
					if !errors.Is(err, store.ErrUnavailable) {
						t.Errorf("an error that is not of the store's absence: %v", err)
						return
					}
				case c.Failed:
					l.failed.Add(1)
				case ok:
					l.admitted.Add(1)
				default:
					l.refused.Add(1)
				}
				l.mu.Lock()
				l.waits = append(l.waits, took)
				l.mu.Unlock()
				l.answers[n].Add(1)
				<-tick.C
			}
		})
	}
	for range 4 {
		l.wg.Go(func() {
			for !l.stop.Load() {
				const nap = 10 * time.Millisecond
				began := time.Now()
				pass(nap) // how late this ends is measured
				late := time.Since(began) - nap
				l.mu.Lock()
				l.late = max(l.late, late)
				l.mu.Unlock()
			}
		})
	}
	return l
}

// each waits until each goroutine has had n more answers. All but the first are of requests that begin after the call.
func (l *load) each(t testing.TB, n int64) {
	t.Helper()
	want := make([]int64, len(l.answers))
	for i := range want {
		want[i] = l.answers[i].Load() + n
	}
	await(t, fmt.Sprintf("%d more answers for each of %d", n, len(want)), func() bool {
		for i := range want {
			if l.answers[i].Load() < want[i] {
				return false
			}
		}
		return true
	})
}

// cut returns the waits since the last cut, and how late the machine has let those be
// that wait for the clock.
func (l *load) cut() (waits, time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w, late := l.waits, l.late
	l.waits, l.late = nil, 0
	return w, late
}

// machineLate returns a function that says how late the machine has let those be that wait
// for the clock, since the last call.
func machineLate(t testing.TB) func() time.Duration {
	l := startLoad(t, 0, time.Second, nil)
	t.Cleanup(l.end)
	return func() time.Duration {
		_, late := l.cut()
		return late
	}
}

func (l *load) end() {
	l.stop.Store(true)
	l.wg.Wait()
}

// pass lets time go by where that is what a real server is given, or what is measured.
func pass(d time.Duration) { <-time.After(d) }

// punctual fails when requests waited longer than the time-out. A goroutine that gets no
// processor is no fault of the store: the lane's timer, its sender, the reader of answers and
// the caller may each be as late as goroutines that wait for the clock are on this machine.
func punctual(t *testing.T, what string, w waits, timeout, late time.Duration) {
	t.Helper()
	t.Logf("%s: %v; the machine adds %v", what, w, late.Round(time.Microsecond))
	if most := timeout + timeout/16 + 4*late + 5*time.Millisecond; w.at(0.999) > most {
		t.Errorf("%s: p99.9 is %v, want at most the time-out of %v, which is %v here", what, w.at(0.999), timeout, most)
	}
}

func TestFrozen(t *testing.T) {
	faults := []struct {
		name       string
		begin, end func(*redistest.Server, *redistest.Proxy)
	}{
		{name: "SIGSTOP", begin: func(s *redistest.Server, _ *redistest.Proxy) { s.Freeze() }, end: func(s *redistest.Server, _ *redistest.Proxy) { s.Thaw() }},
		{name: "silence", begin: func(_ *redistest.Server, p *redistest.Proxy) { p.Freeze() }, end: func(_ *redistest.Server, p *redistest.Proxy) { p.Thaw() }},
		{name: "delay", begin: func(_ *redistest.Server, p *redistest.Proxy) { p.Delay(320 * time.Millisecond) }, end: func(_ *redistest.Server, p *redistest.Proxy) { p.Delay(0) }},
		{name: "refuse", begin: func(_ *redistest.Server, p *redistest.Proxy) { p.Refuse(true); p.Cut() }, end: func(_ *redistest.Server, p *redistest.Proxy) { p.Refuse(false) }},
	}
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) {
			server := redistest.Start(t)
			proxy := redistest.StartProxy(t, server.Addr())
			testFault(t, server, proxy, func() { f.begin(server, proxy) }, func() { f.end(server, proxy) })
		})
	}
}

// fourWays are limits with different OnFailure, and the results of their requests.
type fourWays struct {
	store    *Store
	ways     [4]store.OnFailure
	counters [4]store.Counters
	gone     atomic.Bool // a refusal that is remembered needs no Redis, so a new key is asked for then

	charged                   [4]atomic.Int64 // by Redis
	failed, admitted, refused [4]atomic.Int64 // without it
	waited                    [4]atomic.Int64 // those of them that had found the breaker closed
	wrong                     atomic.Pointer[string]

	mu    sync.Mutex
	quick waits // of those who found the breaker open
}

// localPart is how much the one may admit without Redis, of a limit that nothing comes
// back to.
const localPart = 100

func newFourWays(t *testing.T, s *Store) *fourWays {
	f := &fourWays{store: s, ways: [4]store.OnFailure{store.FailTake, store.FailAllow, store.FailReject, store.FailLocal}}
	for i, way := range f.ways {
		p := still(1 << 40)
		if way == store.FailLocal {
			p = still(localPart * int64(s.opts.Instances))
		}
		f.counters[i] = bind(t, s, fmt.Sprint("way-", i), p)
	}
	return f
}

func (f *fourWays) fail(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	f.wrong.Store(&text)
}

// take is what a worker of a load does.
func (f *fourWays) take(worker int) (store.Charge, bool, error) {
	i := worker % len(f.ways)
	way, key := f.ways[i], "k"
	if way == store.FailLocal && f.gone.Load() {
		key = "later"
	}
	one := []store.Charge{charge(f.counters[i], key, 1)}
	one[0].OnFailure = way
	breaker := f.store.lanes[0].breaker
	open, began := breaker.open.Load(), time.Now()
	ok, err := f.store.Take(context.Background(), one)
	if took := time.Since(began); open && breaker.open.Load() {
		f.mu.Lock()
		f.quick = append(f.quick, took)
		f.mu.Unlock()
	}
	if !open && (err != nil || one[0].Failed) {
		f.waited[i].Add(1)
	}
	switch v := one[0].Verdict; {
	case err != nil:
		f.failed[i].Add(1)
		if way != store.FailTake {
			f.fail("way %d: %v", way, err)
		}
	case !one[0].Failed && ok:
		f.charged[i].Add(1)
	case !one[0].Failed && way != store.FailLocal:
		f.fail("way %d: Redis refused one of 2^40: %+v", way, v)
	case !one[0].Failed:
	case way == store.FailLocal && key == "k":
		// It was under way when the fault began, by another share.
	case ok:
		f.admitted[i].Add(1)
	default:
		f.refused[i].Add(1)
		if way == store.FailReject && (v.Reason != limit.ReasonStoreFailure || v.RetryAfter <= 0) {
			f.fail("way %d: told %+v", way, v)
		}
	}
	return one[0], ok, err
}

// testFault has 64 goroutines ask for one limit per way to fail while Redis is away, and checks
// how long they waited, what they were answered and what was charged.
func testFault(t *testing.T, server *redistest.Server, proxy *redistest.Proxy, begin, end func()) {
	lines := new(journal)
	s := connected(t, Options{Addrs: []string{proxy.Addr()}, Timeout: 200 * time.Millisecond, Local: memory.New(memory.Options{}), Instances: 4, Logger: lines.logger()}, nil)
	const workers = 64
	f := newFourWays(t, s)
	l := startLoad(t, workers, 2*time.Millisecond, f.take)
	l.each(t, 50)
	w, late := l.cut()
	punctual(t, "before", w, s.opts.Timeout, late)
	f.gone.Store(true)
	begin()
	await(t, "many to find the breaker open", func() bool {
		f.mu.Lock()
		defer f.mu.Unlock()
		return len(f.quick) > 50*workers
	})
	if s.Ready() == nil {
		t.Error("Ready says all is well while Redis is away")
	}
	t.Logf("Ready: %v", s.Ready())
	before := f.charged[1].Load()
	thawed := time.Now()
	end()
	await(t, "Redis to decide again", func() bool { return f.charged[1].Load() > before })
	recovery := time.Since(thawed)
	l.each(t, 50)
	w, late = l.cut()
	punctual(t, "from then on", w, s.opts.Timeout, late)
	l.end()
	if text := f.wrong.Load(); text != nil {
		t.Error(*text)
	}
	if recovery > time.Second+4*late {
		t.Errorf("Redis decides again after %v, want within 1 s; the machine adds %v", recovery, late)
	}
	// Who finds the breaker open waits for nothing, so only for a processor.
	t.Logf("while the breaker is open: %v", f.quick)
	if len(f.quick) < workers || f.quick.at(0.5) > time.Millisecond || f.quick.at(0.99) > 10*time.Millisecond+late {
		t.Errorf("while the breaker is open: %v, want them at once; the machine adds %v", f.quick, late)
	}
	await(t, "Ready", func() bool { return s.Ready() == nil })
	st := s.Stats()
	t.Logf("recovery %v; admitted by Redis %d, answered without %d, errors %d; %d calls void, %d time-outs", recovery.Round(time.Millisecond),
		l.admitted.Load(), l.failed.Load(), l.errs.Load(), st.Late, st.Timeouts)
	f.asOnStoreFailureSays(t)
	for i := range 3 {
		chargedOnce(t, used(t, s, f.counters[i], "k"), f.charged[i].Load(), f.waited[i].Load())
	}
	// A busy machine may lose it more often than that.
	answers := 0
	for _, line := range lines.all() {
		if strings.Contains(line, "the store answers") {
			answers++
		}
	}
	atMost(t, lines, 3*answers)
}

// asOnStoreFailureSays holds what was answered without Redis, many times each way,
// against what each way is to do.
func (f *fourWays) asOnStoreFailureSays(t *testing.T) {
	t.Helper()
	for i, way := range f.ways {
		e, a, r := f.failed[i].Load(), f.admitted[i].Load(), f.refused[i].Load()
		var well bool
		switch way {
		case store.FailTake:
			well = e > 0 && a == 0 && r == 0
		case store.FailAllow:
			well = e == 0 && a > 0 && r == 0
		case store.FailReject:
			well = e == 0 && a == 0 && r > 0
		case store.FailLocal:
			well = e == 0 && a == localPart && r > 0
		}
		if !well {
			t.Errorf("on failure %v: %d errors, %d admitted, %d refused without Redis", way, e, a, r)
		}
	}
}

// chargedOnce compares what is charged with what was admitted. Charged without an answer is at
// most what was decided when the fault began, whose answers were lost: one of each goroutine,
// and on a busy machine one of each that timed out. Calls that the server runs later do not
// count; see TestVoid.
func chargedOnce(t *testing.T, charged, admitted, waited int64) {
	t.Helper()
	t.Logf("charged %d, admitted %d", charged, admitted)
	if charged < admitted || charged > admitted+max(16, waited) {
		t.Errorf("%d are charged and %d were admitted by Redis", charged, admitted)
	}
}

// TestSlowServerInTime: a server that answers within the time-out decides, however long
// that is: no other bound ends the call before.
func TestSlowServerInTime(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.StartProxy(t, server.Addr())
	s := connected(t, Options{Addrs: []string{proxy.Addr()}, Timeout: patient, Logger: new(journal).logger()}, nil)
	c := bind(t, s, "l", still(10))
	// The client has up to four connections and makes each when it first picks it. Those that
	// are made later meet another bound.
	for range 100 {
		used(t, s, c, "k")
	}
	const delay = 3 * connectTime
	proxy.Delay(delay)
	began := time.Now()
	for _, cost := range []int64{3, 4} {
		if ok, err := s.Take(t.Context(), []store.Charge{charge(c, "k", cost)}); !ok || err != nil {
			t.Errorf("after %v of %v: %v, %v", time.Since(began).Round(time.Millisecond), patient, ok, err)
		}
	}
	proxy.Delay(0)
	if got := used(t, s, c, "k"); got != 7 {
		t.Errorf("%d are charged, want 7", got)
	}
}
