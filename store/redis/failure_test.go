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
// has its answer.
type load struct {
	stop atomic.Bool
	wg   sync.WaitGroup

	mu    sync.Mutex
	waits waits

	admitted, refused, failed, errs atomic.Int64
}

func startLoad(t testing.TB, workers int, pause time.Duration, take func(worker int) (store.Charge, bool, error)) *load {
	l := new(load)
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
				<-tick.C
			}
		})
	}
	return l
}

// cut returns the waits since the last cut.
func (l *load) cut() waits {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := l.waits
	l.waits = nil
	return w
}

func (l *load) end() {
	l.stop.Store(true)
	l.wg.Wait()
}

// pass lets time go by on a real server.
func pass(d time.Duration) { <-time.After(d) }

// punctual fails when requests waited longer than the time-out. What the machine's
// scheduler adds is shown; a goroutine that gets no processor is no fault of the
// store, so the last thousandth may be later.
func punctual(t *testing.T, what string, w waits, timeout time.Duration) {
	t.Helper()
	t.Logf("%s: %v", what, w)
	if late := w.at(0.999); late > timeout+5*time.Millisecond {
		t.Errorf("%s: p99.9 is %v, want at most %v + 5 ms", what, late, timeout)
	}
}

func TestFrozen(t *testing.T) {
	faults := []struct {
		name       string
		begin, end func(*redistest.Server, *redistest.Proxy)
	}{
		{name: "SIGSTOP", begin: func(s *redistest.Server, _ *redistest.Proxy) { s.Freeze() }, end: func(s *redistest.Server, _ *redistest.Proxy) { s.Thaw() }},
		{name: "silence", begin: func(_ *redistest.Server, p *redistest.Proxy) { p.Freeze() }, end: func(_ *redistest.Server, p *redistest.Proxy) { p.Thaw() }},
		{name: "delay", begin: func(_ *redistest.Server, p *redistest.Proxy) { p.Delay(80 * time.Millisecond) }, end: func(_ *redistest.Server, p *redistest.Proxy) { p.Delay(0) }},
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

// testFault has 64 goroutines ask for one limit per way to fail while Redis is away,
// and looks at how long they waited, what they were told and what was charged.
func testFault(t *testing.T, server *redistest.Server, proxy *redistest.Proxy, begin, end func()) {
	lines := new(journal)
	s := connected(t, Options{Addrs: []string{proxy.Addr()}, Local: memory.New(memory.Options{}), Instances: 4, Logger: lines.logger()}, nil)
	const room = 1 << 40
	ways := []store.OnFailure{store.FailTake, store.FailAllow, store.FailReject, store.FailLocal}
	counters := make([]store.Counters, len(ways))
	var charged, local [4]atomic.Int64
	for i := range ways {
		p := still(room)
		if ways[i] == store.FailLocal {
			p = still(400) // a share of 100
		}
		counters[i] = bind(t, s, fmt.Sprint("way-", i), p)
	}
	var wrong atomic.Pointer[string]
	l := startLoad(t, 64, 2*time.Millisecond, func(worker int) (store.Charge, bool, error) {
		way := worker % len(ways)
		c := charge(counters[way], "k", 1)
		c.OnFailure = ways[way]
		one := []store.Charge{c}
		ok, err := s.Take(context.Background(), one)
		fail := func(format string, args ...any) { text := fmt.Sprintf(format, args...); wrong.Store(&text) }
		switch {
		case err != nil:
			if way != 0 {
				fail("way %d: %v", way, err)
			}
		case !one[0].Failed && ok:
			charged[way].Add(1)
		case one[0].Failed && ok:
			local[way].Add(1)
			if way == 0 || way == 2 {
				fail("way %d admitted without its counters", way)
			}
		case one[0].Failed && (way == 0 || way == 1 || way == 2 && one[0].Verdict.Reason != limit.ReasonStoreFailure):
			fail("way %d refused for %v without its counters", way, one[0].Verdict.Reason)
		}
		return one[0], ok, err
	})
	pass(200 * time.Millisecond)
	punctual(t, "before", l.cut(), s.opts.Timeout)
	begin()
	pass(700 * time.Millisecond)
	punctual(t, "while Redis is away", l.cut(), s.opts.Timeout)
	if s.Ready() == nil {
		t.Error("Ready says all is well while Redis is away")
	}
	t.Logf("Ready: %v", s.Ready())
	before := charged[1].Load()
	thawed := time.Now()
	end()
	await(t, "Redis to decide again", func() bool { return charged[1].Load() > before })
	recovery := time.Since(thawed)
	pass(300 * time.Millisecond)
	punctual(t, "after", l.cut(), s.opts.Timeout)
	l.end()
	if text := wrong.Load(); text != nil {
		t.Error(*text)
	}
	if recovery > time.Second {
		t.Errorf("Redis decides again after %v, want within 1 s", recovery)
	}
	await(t, "Ready", func() bool { return s.Ready() == nil })
	st := s.Stats()
	t.Logf("recovery %v; admitted by Redis %d, answered without %d, errors %d; %d calls void, %d time-outs", recovery.Round(time.Millisecond),
		l.admitted.Load(), l.failed.Load(), l.errs.Load(), st.Late, st.Timeouts)
	if got := local[3].Load(); got > 100 {
		t.Errorf("the share of 100 admitted %d", got)
	}
	for i := range 3 {
		chargedOnce(t, used(t, s, counters[i], "k"), charged[i].Load())
	}
	if n := len(lines.all()); n > 6 {
		t.Errorf("%d lines were logged:\n%s", n, lines)
	}
}

// chargedOnce compares what is charged with what was admitted. Charged without an
// answer is at most what was decided when the fault began, whose answers were lost:
// one of each goroutine. What was asked later is void; see TestVoid.
func chargedOnce(t *testing.T, charged, admitted int64) {
	t.Helper()
	t.Logf("charged %d, admitted %d", charged, admitted)
	if charged < admitted || charged > admitted+16 {
		t.Errorf("%d are charged and %d were admitted by Redis", charged, admitted)
	}
}
