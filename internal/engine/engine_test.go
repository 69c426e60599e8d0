package engine_test

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/explain"
	"github.com/stint-io/stint/internal/tally"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// bench is an engine on a real store whose clock the test sets.
type bench struct {
	*engine.Engine
	*tally.Table
	t     testing.TB
	now   atomic.Int64
	store *memory.Store
}

func newBench(t testing.TB, yaml string) *bench {
	t.Helper()
	b := &bench{Table: tally.New(tally.Options{}), t: t}
	// A moment in the middle of every window of up to a day.
	b.now.Store(time.Date(2026, 5, 4, 12, 30, 30, 0, time.UTC).UnixNano())
	b.store = memory.New(memory.Options{Now: func() limit.Time { return limit.Time(b.now.Load()) }})
	e, err := engine.New(b.store, parse(t, yaml), engine.Options{Decisions: []engine.DecisionObserver{b.Table}})
	if err != nil {
		t.Fatal(err)
	}
	b.Engine = e
	return b
}

func parse(t testing.TB, yaml string) *rules.Set {
	t.Helper()
	set, err := rules.Parse("test.yaml", []byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

func (b *bench) advance(d time.Duration) { b.now.Add(int64(d)) }

func (b *bench) take(cost int64, attrs ...string) limit.Decision {
	b.t.Helper()
	return b.ask(limit.Request{Attributes: attributes(attrs...), Cost: cost})
}

func (b *bench) peek(cost int64, attrs ...string) limit.Decision {
	b.t.Helper()
	return b.ask(limit.Request{Attributes: attributes(attrs...), Cost: cost, Peek: true})
}

func (b *bench) ask(req limit.Request) limit.Decision {
	b.t.Helper()
	d, err := b.Take(context.Background(), req)
	if err != nil {
		b.t.Fatal(err)
	}
	return d
}

// attributes reads "name=value".
func attributes(pairs ...string) []limit.Attribute {
	out := make([]limit.Attribute, len(pairs))
	for i, p := range pairs {
		out[i].Name, out[i].Value, _ = strings.Cut(p, "=")
	}
	return out
}

func wantAllowed(t testing.TB, d limit.Decision, remaining ...int64) {
	t.Helper()
	if !d.Allowed {
		t.Fatalf("refused: %+v", d)
	}
	wantRemaining(t, d, remaining...)
}

func wantRefused(t testing.TB, d limit.Decision, by string, reason limit.Reason) {
	t.Helper()
	r := d.Refused()
	if d.Allowed || r == nil {
		t.Fatalf("allowed, want a refusal by %s: %+v", by, d)
	}
	if r.Limit != by || r.Reason != reason {
		t.Fatalf("refused by %s for %v, want %s for %v", r.Limit, r.Reason, by, reason)
	}
}

func wantRemaining(t testing.TB, d limit.Decision, remaining ...int64) {
	t.Helper()
	if len(d.Results) != len(remaining) {
		t.Fatalf("%d results, want %d: %+v", len(d.Results), len(remaining), d)
	}
	for i, want := range remaining {
		if d.Results[i].Remaining != want {
			t.Fatalf("%s has %d remaining, want %d", d.Results[i].Limit, d.Results[i].Remaining, want)
		}
	}
}

func TestRefusalChargesNone(t *testing.T) {
	b := newBench(t, `
limits:
  - {name: wide, key: [user], rate: 10/hour, algorithm: fixed_window}
  - {name: narrow, key: [user], rate: 2/hour, algorithm: sliding_window_log}
  - {name: bucket, key: [user], rate: 7/hour}
`)
	wantAllowed(t, b.take(1, "user=u"), 9, 1, 6)
	wantAllowed(t, b.take(1, "user=u"), 8, 0, 5)
	for range 3 {
		d := b.take(1, "user=u")
		wantRefused(t, d, "narrow", limit.ReasonRate)
		wantRemaining(t, d, 8, 0, 5)
		if d.Status != 429 {
			t.Fatalf("status %d", d.Status)
		}
	}
	wantAllowed(t, b.take(1, "user=v"), 9, 1, 6)
}

func TestPeekTakesNothing(t *testing.T) {
	b := newBench(t, `
limits:
  - {name: a, rate: 2/hour}
  - {name: hammered, rate: 5/hour, algorithm: fixed_window, count_refused: true}
  - {name: places, algorithm: concurrency, max_in_flight: 1, timeout: 1m}
`)
	for range 5 {
		if d := b.peek(1); !d.Allowed || d.Permit != 0 {
			t.Fatalf("%+v", d)
		}
	}
	d := b.take(1)
	wantAllowed(t, d, 1, 4, 0)
	wantRefused(t, b.peek(1), "places", limit.ReasonConcurrency)
	wantRefused(t, b.peek(1), "places", limit.ReasonConcurrency)
	if err := b.Finish(context.Background(), limit.Request{}, d.Permit); err != nil {
		t.Fatal(err)
	}
	wantAllowed(t, b.take(1), 0, 3, 0)
}

func TestCountRefusedIsChargedByOthersRefusals(t *testing.T) {
	b := newBench(t, `
limits:
  - {name: hammered, key: [ip], rate: 4/hour, algorithm: fixed_window, count_refused: true}
  - {name: one, key: [ip], rate: 1/hour}
`)
	wantAllowed(t, b.take(1, "ip=192.0.2.1"), 3, 0)
	wantRefused(t, b.take(1, "ip=192.0.2.1"), "one", limit.ReasonRate)
	wantRefused(t, b.take(1, "ip=192.0.2.1"), "one", limit.ReasonRate)
	wantRefused(t, b.take(1, "ip=192.0.2.1"), "one", limit.ReasonRate)
	wantRefused(t, b.take(1, "ip=192.0.2.1"), "hammered", limit.ReasonRate)
}

func TestBan(t *testing.T) {
	b := newBench(t, `
limits:
  - name: login
    key: [ip]
    rate: 2/minute
    algorithm: fixed_window
    on_exceed: {reject: 403, ban: {for: 15m, after: 4/minute}}
`)
	const ip = "ip=192.0.2.1"
	wantAllowed(t, b.take(1, ip), 1)
	wantAllowed(t, b.take(1, ip), 0)
	d := b.take(1, ip)
	wantRefused(t, d, "login", limit.ReasonRate)
	if d.Status != 403 {
		t.Fatalf("status %d, want 403", d.Status)
	}
	wantRefused(t, b.take(1, ip), "login", limit.ReasonRate)
	d = b.take(1, ip)
	wantRefused(t, d, "login", limit.ReasonBanned)
	if got := d.RetryAfter(); got < 15*time.Minute || got > 16*time.Minute {
		t.Fatalf("retry after %v, want the ban and what is left of its window", got)
	}
	if len(d.Results) != 1 {
		t.Fatalf("%d results, want the ban folded into its limit", len(d.Results))
	}
	b.advance(10 * time.Minute)
	wantRefused(t, b.take(1, ip), "login", limit.ReasonBanned)
	wantAllowed(t, b.take(1, "ip=192.0.2.2"), 1)
	b.advance(6 * time.Minute)
	wantAllowed(t, b.take(1, ip), 1)
}

func TestShadowCountsAndAllows(t *testing.T) {
	b := newBench(t, `
limits:
  - {name: trial, rate: 1/hour, shadow: true}
  - {name: real, rate: 3/hour}
`)
	wantAllowed(t, b.take(1), 0, 2)
	d := b.take(1)
	wantAllowed(t, d, 0, 1)
	if r := d.Results[0]; r.Allowed || !r.Shadow || r.Reason != limit.ReasonRate {
		t.Fatalf("%+v", r)
	}
	for tally := range b.Tallies() {
		if tally.Limit == "trial" && (tally.Allowed != 1 || tally.ShadowRefused[limit.ReasonRate] != 1 || tally.Refused[limit.ReasonRate] != 0) {
			t.Fatalf("%+v", tally)
		}
	}
}

func TestSoft(t *testing.T) {
	b := newBench(t, `
limits:
  - {name: s, rate: 10/hour, soft: 80%}
`)
	for i := 1; i <= 10; i++ {
		d := b.take(1)
		if got, want := d.Results[0].Soft, i > 8; got != want {
			t.Fatalf("request %d of 10: soft %v, want %v", i, got, want)
		}
	}
	if d := b.take(1); d.Allowed || d.Results[0].Soft {
		t.Fatalf("%+v", d)
	}
}

func TestMissing(t *testing.T) {
	b := newBench(t, `
limits:
  - {name: other, rate: 5/hour}
  - {name: strict, key: [user], rate: 5/hour, missing: reject}
  - {name: lax, key: [user], rate: 3/hour, missing: skip}
  - {name: shared, key: [user], rate: 4/hour, missing: all}
`)
	for range 3 {
		d := b.take(1)
		wantRefused(t, d, "strict", limit.ReasonMissing)
		if d.RetryAfter() != limit.Never {
			t.Fatalf("retry after %v, want never", d.RetryAfter())
		}
	}
	wantAllowed(t, b.take(1, "user=u"), 4, 4, 2, 3)
}

func TestUnlimited(t *testing.T) {
	b := newBench(t, `
limits:
  - name: api
    key: [user]
    rate: 1/hour
    overrides:
      - {when: {user: acme}, unlimited: true}
`)
	for range 3 {
		d := b.take(1<<40, "user=acme")
		wantAllowed(t, d, math.MaxInt64)
		if d.Results[0].Quota != math.MaxInt64 || d.Results[0].Detail == "" {
			t.Fatalf("%+v", d.Results[0])
		}
	}
	wantAllowed(t, b.take(1, "user=u"), 0)
	wantRefused(t, b.take(1, "user=u"), "api", limit.ReasonRate)
}

func TestPermits(t *testing.T) {
	b := newBench(t, `
limits:
  - {name: places, key: [user], algorithm: concurrency, max_in_flight: 2, timeout: 1m}
  - {name: rate, key: [user], rate: 3/hour}
`)
	ctx, u := context.Background(), limit.Request{Attributes: attributes("user=u")}
	first, second := b.ask(u), b.ask(u)
	if first.Permit == 0 || second.Permit == 0 || first.Permit == second.Permit || first.Permit >= 1<<53 {
		t.Fatalf("permits %d and %d", first.Permit, second.Permit)
	}
	d := b.ask(u)
	wantRefused(t, d, "places", limit.ReasonConcurrency)
	if d.Permit != 0 {
		t.Fatal("a refused request has a permit")
	}
	wantRemaining(t, d, 0, 1)
	// Nobody knows when a place comes free, and the time-out is no advice.
	if got := d.RetryAfter(); got != time.Second {
		t.Fatalf("retry after %v", got)
	}
	// Another's permit and one that ended already change nothing.
	for range 2 {
		if err := b.Finish(ctx, limit.Request{Attributes: attributes("user=v")}, second.Permit); err != nil {
			t.Fatal(err)
		}
		if err := b.Finish(ctx, u, first.Permit); err != nil {
			t.Fatal(err)
		}
	}
	wantAllowed(t, b.ask(u), 0, 0)
	wantRefused(t, b.ask(u), "places", limit.ReasonConcurrency)
	b.advance(61 * time.Second)
	wantRefused(t, b.ask(u), "rate", limit.ReasonRate)
}

func TestLeakyBucketDelays(t *testing.T) {
	b := newBench(t, `
limits:
  - {name: pace, rate: 10/s, burst: 2, algorithm: leaky_bucket}
`)
	var delays []time.Duration
	for range 3 {
		d := b.take(1)
		wantAllowedAny(t, d)
		delays = append(delays, d.Delay)
	}
	if delays[0] != 0 || delays[1] != 100*time.Millisecond || delays[2] != 200*time.Millisecond {
		t.Fatalf("delays %v", delays)
	}
	wantRefused(t, b.take(1), "pace", limit.ReasonRate)
}

func wantAllowedAny(t testing.TB, d limit.Decision) {
	t.Helper()
	if !d.Allowed {
		t.Fatalf("refused: %+v", d)
	}
}

func TestCostBounds(t *testing.T) {
	b := newBench(t, "limits:\n  - {name: a, rate: 10/hour}\n  - {name: w, rate: 10/hour, algorithm: fixed_window, count_refused: true}\n")
	for _, cost := range []int64{-1, math.MinInt64, limit.MaxCount + 1, math.MaxInt64} {
		_, err := b.Take(context.Background(), limit.Request{Cost: cost})
		if !errors.Is(err, engine.ErrBadRequest) || !strings.Contains(err.Error(), "cost") {
			t.Fatalf("cost %d: %v", cost, err)
		}
	}
	wantAllowed(t, b.take(1), 9, 9)
	wantRefused(t, b.take(limit.MaxCount), "a", limit.ReasonCost)
}

func TestNoLimitApplies(t *testing.T) {
	b := newBench(t, "limits:\n  - {name: a, match: {path: /x}, rate: 1/hour}\n")
	for range 3 {
		if d := b.take(1, "path=/y"); !d.Allowed || len(d.Results) != 0 {
			t.Fatalf("%+v", d)
		}
	}
}

func TestSwapKeepsCounters(t *testing.T) {
	b := newBench(t, `
limits:
  - {name: kept, key: [user], rate: 10/hour}
  - {name: raised, key: [user], rate: 10/hour, algorithm: fixed_window}
  - {name: gone, key: [user], rate: 10/hour}
`)
	wantAllowed(t, b.take(4, "user=u"), 6, 6, 6)
	if err := b.Swap(parse(t, `
limits:
  - {name: new, key: [user], rate: 10/hour}
  - {name: raised, key: [user], rate: 20/hour, algorithm: fixed_window}
  - {name: kept, key: [user], rate: 10/hour}
`)); err != nil {
		t.Fatal(err)
	}
	wantAllowed(t, b.take(1, "user=u"), 9, 15, 5)
	if err := b.Swap(parse(t, "limits:\n  - {name: gone, key: [user], rate: 10/hour}\n")); err != nil {
		t.Fatal(err)
	}
	wantAllowed(t, b.take(1, "user=u"), 9)
	if got := b.store.Stats().Limits; got != 1 {
		t.Fatalf("%d counters are bound, want 1", got)
	}
}

func TestSwapDuringTakes(t *testing.T) {
	yaml := [2]string{
		"limits:\n  - {name: total, rate: 1000/hour}\n  - {name: a, key: [user], rate: 1G/s}\n",
		"limits:\n  - {name: b, key: [user], rate: 1G/s}\n  - {name: total, rate: 1000/hour}\n",
	}
	b := newBench(t, yaml[0])
	sets := [2]*rules.Set{parse(t, yaml[0]), parse(t, yaml[1])}
	var allowed atomic.Int64
	var takers, swapper sync.WaitGroup
	done := make(chan struct{})
	swapper.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			if err := b.Swap(sets[i%2]); err != nil {
				t.Error(err)
				return
			}
		}
	})
	for range 4 {
		takers.Go(func() {
			for range 1000 {
				d, err := b.Take(context.Background(), limit.Request{Attributes: attributes("user=u")})
				if err != nil {
					t.Error(err)
					return
				}
				if len(d.Results) != 2 {
					t.Errorf("%d results, want both limits of one configuration", len(d.Results))
				}
				if d.Allowed {
					allowed.Add(1)
				}
			}
		})
	}
	takers.Wait()
	close(done)
	swapper.Wait()
	if allowed.Load() != 1000 {
		t.Fatalf("%d of 4000 requests were admitted, want exactly 1000", allowed.Load())
	}
}

func TestExplain(t *testing.T) {
	b := newBench(t, `
limits:
  - {name: user, key: [user], match: {path: /api/*}, rate: 10/hour}
  - {name: all, rate: 100/hour}
  - {name: elsewhere, match: {path: /other}, rate: 1/hour}
`)
	wantAllowed(t, b.take(3, "user=u", "path=/api/x"), 7, 97)
	for range 3 {
		x, err := explain.Request(context.Background(), b.Engine, limit.Request{Attributes: attributes("user=u", "path=/api/x")})
		if err != nil {
			t.Fatal(err)
		}
		if !x.Decision.Allowed || len(x.Limits) != 2 || x.UnmatchedCount != 1 || x.Unmatched[0] != "elsewhere" {
			t.Fatalf("%+v", x)
		}
		l := x.Limits[0]
		if l.Used != 3 || l.File != "test.yaml" || l.Line != 3 || l.Condition != "path=/api/*" || l.Key[0] != (limit.Attribute{Name: "user", Value: "u"}) {
			t.Fatalf("%+v", l)
		}
	}
	wantAllowed(t, b.take(1, "user=u", "path=/api/x"), 6, 96)
}

func TestTakeAllocatesOnlyItsResults(t *testing.T) {
	b := newBench(t, `
limits:
  - {name: user, key: [user], match: {path: /api/*}, rate: 1G/s}
  - {name: window, key: [user], rate: 1G/s, algorithm: fixed_window}
  - {name: elsewhere, match: {path: /other}, rate: 1/hour}
`)
	ctx := context.Background()
	met := limit.Request{Attributes: attributes("user=u", "path=/api/x")}
	if got := testing.AllocsPerRun(200, func() { b.ask(met) }); got > 1+poolSlack {
		t.Errorf("a Take that meets limits allocates %v times, want 1", got)
	}
	free := limit.Request{Attributes: attributes("path=/free")}
	if got := testing.AllocsPerRun(200, func() { b.ask(free) }); got > poolSlack {
		t.Errorf("a Take that meets no limit allocates %v times, want 0", got)
	}
	q := engine.Query{Descriptors: []engine.Descriptor{{Attributes: met.Attributes, Cost: 1}, {Attributes: free.Attributes, Cost: 1}}}
	if got := testing.AllocsPerRun(200, func() {
		if err := b.Decide(ctx, &q); err != nil || !q.Decision.Allowed {
			t.Fatal(err, q.Decision)
		}
	}); got > poolSlack {
		t.Errorf("a Decide with a used query allocates %v times, want 0", got)
	}
}

func BenchmarkTake(b *testing.B) {
	e := newBench(b, "limits:\n  - {name: user, key: [user], rate: 1G/s}\n")
	req := limit.Request{Attributes: attributes("user=u")}
	b.ReportAllocs()
	for b.Loop() {
		if !e.ask(req).Allowed {
			b.Fatal("refused")
		}
	}
}
