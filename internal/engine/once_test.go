package engine_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/observe"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/internal/tally"
	"github.com/stint-io/stint/internal/tenants"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// drawLimits returns a limits file with limits of drawn algorithms and options, some of which apply to some requests.
func drawLimits(r *rand.Rand) string {
	kinds := []string{
		"rate: %d/min", "rate: %d/min, burst: 3", "rate: %d/min, algorithm: leaky_bucket", "rate: %d/min, algorithm: fixed_window",
		"rate: %d/min, algorithm: sliding_window_log", "rate: %d/min, algorithm: sliding_window_counter",
		"rate: %d/min, algorithm: fixed_window, count_refused: true", "rate: %d/min, algorithm: sliding_window_log, count_refused: true",
		"rate: %d/min, on_exceed: {ban: {for: 5m, after: 4/min}}", "algorithm: concurrency, max_in_flight: %d, timeout: 1h",
		"rate: %d/min, share: {by: [team]}", "rate: %d/min, shadow: true", "rate: %d/min, soft: 50%%",
	}
	text := "limits:\n"
	for i := range 1 + r.IntN(5) {
		kind := kinds[r.IntN(len(kinds))]
		keys := []string{"", ", key: [user]", ", key: [team]", ", key: [user, team]"}
		if strings.Contains(kind, "share") {
			keys = keys[:2]
		}
		when := []string{"", `, when: 'attributes["team"] == "a"'`}[r.IntN(2)]
		text += fmt.Sprintf("  - {name: l%d%s%s, "+kind+"}\n", i, keys[r.IntN(len(keys))], when, 1+r.IntN(12))
	}
	return text
}

// Requests with idempotency keys that are sent again, some at once, some much later, are answered as the first time and
// charged once, whatever limits they meet: an engine that gets each once is the oracle. A refused request is decided
// anew, and is sent again only where refused requests are charged by its own wish.
func TestChargedOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	repeats := 0
	for seed := range seeding.Draw(t, 60) {
		r := rand.New(rand.NewPCG(seed, 1))
		text := drawLimits(r)
		set, err := rules.Parse("limits.yaml", []byte(text))
		if err != nil {
			t.Fatalf("%v\n%s", err, text)
		}
		var clock atomic.Int64
		clock.Store(1e18 + r.Int64N(1e16))
		var engines [2]*engine.Engine
		var seen [2]events
		var counts [2]*tally.Table
		for i := range engines {
			now := func() limit.Time { return limit.Time(clock.Load()) }
			opts := engine.Options{Shares: tenants.New(tenants.Options{Now: now}), Observers: []observe.Observer{&seen[i]}}
			counts[i] = tally.New(tally.Options{})
			opts.Decisions = []engine.DecisionObserver{counts[i]}
			if engines[i], err = engine.New(memory.New(memory.Options{Now: now}), set, opts); err != nil {
				t.Fatal(err)
			}
		}
		with, without := engines[0], engines[1]
		type sent struct {
			req limit.Request
			d   limit.Decision
			at  int64
		}
		var before []sent
		sentAgain := uint64(0)
		for step := range 40 {
			req := limit.Request{
				Attributes: []limit.Attribute{{Name: "user", Value: fmt.Sprint(r.IntN(2))}, {Name: "team", Value: string(rune('a' + r.IntN(2)))}},
				Cost:       1 + r.Int64N(3), CountRefused: r.IntN(5) == 0, IdempotencyKey: fmt.Sprint("key ", step),
			}
			first, err := with.Take(t.Context(), req)
			if err != nil {
				t.Fatal(err)
			}
			plain := req
			plain.IdempotencyKey = ""
			want, err := without.Take(t.Context(), plain)
			if err != nil {
				t.Fatal(err)
			}
			if first.Repeated || first.Allowed != want.Allowed || first.Delay != want.Delay || !slices.EqualFunc(first.Results, want.Results, same) {
				t.Fatalf("seed %d, step %d: %+v, want %+v of a request without a key\n%s", seed, step, first, want, text)
			}
			if len(first.Results) > 0 && (first.Allowed || req.CountRefused) && !unkept(&first) {
				before = append(before, sent{req, first, clock.Load()})
			}
			// A tenant that sends a request again counts as one that wants its share, so it does so at once.
			shared := strings.Contains(text, "share")
			if !shared {
				clock.Add(r.Int64N(int64(20 * time.Second)))
			}
			for range r.IntN(3) {
				if len(before) == 0 || shared && before[len(before)-1].at != clock.Load() {
					break
				}
				b := before[len(before)-1]
				if !shared {
					b = before[r.IntN(len(before))]
				}
				if clock.Load()-b.at >= int64(engine.IdempotencyWindow) {
					continue
				}
				repeats++
				sentAgain++
				again := b.req
				again.Attributes = slices.Clone(again.Attributes)
				slices.Reverse(again.Attributes)
				d, err := with.Take(t.Context(), again)
				if err != nil {
					t.Fatal(err)
				}
				if !d.Repeated || d.Allowed != b.d.Allowed || d.Permit != b.d.Permit || len(d.Results) != len(b.d.Results) {
					t.Fatalf("seed %d, step %d: sent again: %+v, the first time: %+v\n%s", seed, step, d, b.d, text)
				}
			}
			if shared {
				clock.Add(r.Int64N(int64(20 * time.Second)))
			}
			for _, user := range []string{"0", "1"} {
				for _, team := range []string{"a", "b"} {
					peek := limit.Request{Attributes: []limit.Attribute{{Name: "user", Value: user}, {Name: "team", Value: team}}, Peek: true, IdempotencyKey: "peek"}
					got, err1 := with.Take(t.Context(), peek)
					want, err2 := without.Take(t.Context(), peek)
					if err := errors.Join(err1, err2); err != nil {
						t.Fatal(err)
					}
					if !slices.EqualFunc(got.Results, want.Results, same) {
						t.Fatalf("seed %d, step %d, user %s of team %s: the limits stand at\n%+v, without requests that are sent again at\n%+v\n%s", seed, step, user, team, got.Results, want.Results, text)
					}
				}
			}
		}
		if seen[0] != seen[1] {
			t.Fatalf("seed %d: %+v was observed, without requests that are sent again %+v\n%s", seed, seen[0], seen[1], text)
		}
		if got, want := talliesOf(counts[0]), talliesOf(counts[1]); got != want {
			t.Fatalf("seed %d: counted were\n%s, without requests that are sent again\n%s\n%s", seed, got, want, text)
		}
		if got, none := counts[0].Repeated(), counts[1].Repeated(); got != sentAgain || none != 0 {
			t.Fatalf("seed %d: %d and %d repeats were counted, want %d and 0", seed, got, none, sentAgain)
		}
	}
	if repeats < 100 {
		t.Errorf("only %d requests were sent again", repeats)
	}
}

// events sums up what an observer is told.
type events struct{ takes, allowed, cost int64 }

func (s *events) Observe(ev observe.Event) {
	if ev.Kind != observe.Taken {
		return
	}
	s.takes++
	if ev.Allowed {
		s.allowed++
	}
	for i := range ev.Charges {
		s.cost += ev.Charges[i].Cost
	}
}

func talliesOf(t *tally.Table) string {
	var list []string
	for one := range t.Tallies() {
		list = append(list, fmt.Sprintf("%+v", one))
	}
	slices.Sort(list)
	return strings.Join(list, "\n")
}

// same reports whether two results are the same; shares are counted in floating point, so a wait for one may differ by two
// microseconds.
func same(a, b limit.Result) bool {
	if a.Detail != "" && (a.RetryAfter-b.RetryAfter).Abs() <= 2*time.Microsecond {
		a.RetryAfter = b.RetryAfter
	}
	return a == b
}

// unkept reports whether a request was refused by a limit that its own wish to be charged does not cover.
func unkept(d *limit.Decision) bool {
	return !d.Allowed && slices.ContainsFunc(d.Results, func(r limit.Result) bool { return r.Algorithm == limit.Concurrency })
}

// The same idempotency key with other attributes, another cost or another domain is another request.
func TestKeyOfAnotherRequest(t *testing.T) {
	set := parse(t, "limits: [{name: day, rate: 1000/day, algorithm: fixed_window}]")
	e, err := engine.New(memory.New(memory.Options{}), set, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	attrs := func(pairs ...string) (list []limit.Attribute) {
		for i := 0; i < len(pairs); i += 2 {
			list = append(list, limit.Attribute{Name: pairs[i], Value: pairs[i+1]})
		}
		return list
	}
	requests := []limit.Request{
		{Attributes: attrs("a", "b"), Cost: 1, IdempotencyKey: "k"},
		{Attributes: attrs("a", "b"), Cost: 2, IdempotencyKey: "k"},
		{Attributes: attrs("a", "c"), Cost: 1, IdempotencyKey: "k"},
		{Attributes: attrs("ab", ""), Cost: 1, IdempotencyKey: "k"},
		{Attributes: attrs("a", "b", "c", ""), Cost: 1, IdempotencyKey: "k"},
		{Attributes: attrs("a", "b"), Cost: 1, IdempotencyKey: "K"},
		{Cost: 1, IdempotencyKey: "k"},
	}
	for _, repeated := range []bool{false, true} {
		for i, req := range requests {
			if d, err := e.Take(t.Context(), req); err != nil || !d.Allowed || d.Repeated != repeated {
				t.Errorf("request %d: %+v, %v, want repeated %v", i, d, err, repeated)
			}
		}
	}
	for _, domain := range []string{"x", "y"} {
		q := engine.Query{Domain: domain, Descriptors: []engine.Descriptor{{Cost: 1}}, IdempotencyKey: "k"}
		if err := e.Decide(t.Context(), &q); err != nil || q.Decision.Repeated {
			t.Errorf("domain %s: %+v, %v", domain, q.Decision, err)
		}
	}
}

// A key is remembered for the window, and not longer.
func TestKeyIsForgotten(t *testing.T) {
	var clock atomic.Int64
	clock.Store(1e18)
	st := memory.New(memory.Options{Now: func() limit.Time { return limit.Time(clock.Load()) }})
	e, err := engine.New(st, parse(t, "limits: [{name: day, rate: 10/day}]"), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, step := range []struct {
		after    time.Duration
		repeated bool
	}{{0, false}, {time.Second, true}, {engine.IdempotencyWindow - 2*time.Second, true}, {time.Second, false}, {0, true}} {
		clock.Add(int64(step.after))
		if d, err := e.Take(t.Context(), limit.Request{IdempotencyKey: "k"}); err != nil || d.Repeated != step.repeated {
			t.Errorf("after %v: %+v, %v, want repeated %v", step.after, d, err, step.repeated)
		}
	}
}

// A store without room for further keys answers with an error: it neither charges a request that may come again, nor
// takes one that it does not know for a repetition. Requests that it remembers are repeated as before.
func TestNoRoomForKeys(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	st := memory.New(memory.Options{MaxBytes: memory.MinMaxBytes, Now: func() limit.Time { return 1e18 }})
	e, err := engine.New(st, parse(t, "limits: [{name: day, rate: 1000000/day, burst: 1000000}]"), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	admitted, refused := 0, 0
	for i := range 20_000 {
		switch d, err := e.Take(t.Context(), limit.Request{IdempotencyKey: fmt.Sprint(i)}); {
		case errors.Is(err, engine.ErrKeysFull):
			refused++
		case err != nil || !d.Allowed || d.Repeated:
			t.Fatalf("request %d: %+v, %v", i, d, err)
		default:
			admitted++
		}
	}
	d, err := e.Take(t.Context(), limit.Request{Peek: true})
	if err != nil || d.Results[0].Remaining != int64(1_000_000-admitted) || refused == 0 || admitted < 1000 {
		t.Errorf("%d requests admitted, %d refused, %d of 1000000 left, %v", admitted, refused, d.Results[0].Remaining, err)
	}
	if d, err := e.Take(t.Context(), limit.Request{IdempotencyKey: "0"}); err != nil || !d.Repeated {
		t.Errorf("the first request again: %+v, %v", d, err)
	}
}

// Of requests with one key that come at the same time one is charged.
func TestChargedOnceConcurrent(t *testing.T) {
	e, err := engine.New(memory.New(memory.Options{}), parse(t, `limits:
  - {name: day, rate: 1000/day}
  - {name: month, rate: 1000/month, algorithm: fixed_window}
`), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 100 {
				if d, err := e.Take(t.Context(), limit.Request{IdempotencyKey: fmt.Sprint(n)}); err != nil || !d.Allowed {
					t.Errorf("caller %d, request %d: %+v, %v", i, n, d, err)
				}
			}
		})
	}
	wg.Wait()
	d, err := e.Take(t.Context(), limit.Request{Peek: true})
	if err != nil || d.Results[0].Remaining != 900 || d.Results[1].Remaining != 900 {
		t.Errorf("%+v, %v, want 900 left of each", d, err)
	}
}

// Bad keys change nothing.
func TestBadKeys(t *testing.T) {
	e, err := engine.New(memory.New(memory.Options{}), parse(t, "limits: [{name: day, rate: 10/day}]"), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := e.Take(t.Context(), limit.Request{IdempotencyKey: strings.Repeat("k", limit.MaxIdempotencyKey+1)}); !errors.Is(err, engine.ErrBadRequest) {
		t.Errorf("a key that is too long: %v", err)
	}
	q := engine.Query{Descriptors: []engine.Descriptor{{Cost: 1, Refund: true}}, IdempotencyKey: "k"}
	if err := e.Decide(t.Context(), &q); !errors.Is(err, engine.ErrBadRequest) {
		t.Errorf("a descriptor that gives back: %v", err)
	}
	if d, err := e.Take(t.Context(), limit.Request{Peek: true}); err != nil || d.Results[0].Remaining != 10 {
		t.Errorf("%+v, %v", d, err)
	}
}

// A request that was charged before does not wait for its turn, whatever its limits and its caller say of queues.
func TestRepeatedDoesNotWait(t *testing.T) {
	for _, text := range []string{
		"limits: [{name: day, rate: 1/day, burst: 1, on_exceed: {queue: {max_wait: 1m}}}]", "limits: [{name: day, rate: 1/day, burst: 1}]",
	} {
		e, err := engine.New(memory.New(memory.Options{}), parse(t, text), engine.Options{})
		if err != nil {
			t.Fatal(err)
		}
		ask := []func() (limit.Decision, error){
			func() (limit.Decision, error) { return e.Take(t.Context(), limit.Request{IdempotencyKey: "k"}) },
			func() (limit.Decision, error) {
				return e.TakeWithin(t.Context(), limit.Request{IdempotencyKey: "k"}, time.Hour)
			},
			func() (limit.Decision, error) {
				return e.TakeInLine(t.Context(), limit.Request{IdempotencyKey: "k"}, time.Hour)
			},
			func() (limit.Decision, error) {
				q := engine.Query{Descriptors: []engine.Descriptor{{Cost: 1}}, IdempotencyKey: "k"}
				err := e.Decide(t.Context(), &q)
				return q.Decision, err
			},
		}
		for i := range ask {
			for j := range ask {
				d, err := ask[(i+j)%len(ask)]()
				if err != nil || !d.Allowed || d.Repeated != (i+j > 0) {
					t.Errorf("%s: way %d after %d others: %+v, %v", text, (i+j)%len(ask), i+j, d, err)
				}
			}
		}
	}
}
