package engine_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// A store is asked for nothing that is not needed: neither for a request that meets no limit,
// nor to end a place that nobody can have. Such a request is answered though it is away.
func TestStoreIsNotAskedForNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	f, b := newFlaky(t, `
limits:
  - {name: places, key: [user], missing: reject, algorithm: concurrency, max_in_flight: 1, overrides: [{when: {user: acme}, unlimited: true}]}
  - {name: rate, key: [ip], rate: 5/hour}
`)
	f.down()
	if d := b.take(1, "user=acme"); !d.Allowed {
		t.Errorf("%+v", d)
	}
	if d := b.peek(1, "user=acme"); !d.Allowed {
		t.Errorf("%+v", d)
	}
	for _, attrs := range [][]string{nil, {"ip=192.0.2.7"}, {"user=acme"}, {"user=acme", "ip=192.0.2.7"}} {
		if err := b.Finish(t.Context(), limit.Request{Attributes: attributes(attrs...)}, 7); err != nil {
			t.Errorf("%v: %v", attrs, err)
		}
	}
	if err := b.Finish(t.Context(), limit.Request{Attributes: attributes("user=u")}, 0); err != nil {
		t.Errorf("without a permit: %v", err)
	}
	if len(f.calls) > 0 || b.NotReturned() != 0 {
		t.Errorf("it was asked %v", f.calls)
	}
	if err := b.Finish(t.Context(), limit.Request{Attributes: attributes("user=u")}, 7); !errors.Is(err, store.ErrUnavailable) || !slices.Equal(f.calls, []string{"finish"}) {
		t.Errorf("%v after %v", err, f.calls)
	}
	// A bad request is refused before anything else is done.
	f.calls = nil
	q := engine.Query{Descriptors: []engine.Descriptor{{Attributes: attributes("user=u"), Cost: -1}}}
	if err := b.FinishQuery(t.Context(), &q, 7); !errors.Is(err, engine.ErrBadRequest) || len(f.calls) > 0 {
		t.Errorf("%v after %v", err, f.calls)
	}
}

// What all quotas refuse is given back to no limit that took nothing: a request whose limits
// were all out of reach costs one call.
func TestNothingIsGivenBack(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	set, err := loadFiles(t, quotaLimits, "limits:\n  - {name: away, key: [one], rate: 5/hour}\n")
	if err != nil {
		t.Fatal(err)
	}
	f := newBroken().flaky
	e, err := engine.New(f, set, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	q := engine.Query{Domain: "edge", Descriptors: []engine.Descriptor{
		{Attributes: attributes("one=1"), Cost: 1}, {Attributes: attributes("two=2"), Cost: 1},
	}}
	f.away = "away"
	if err := e.Decide(t.Context(), &q); err != nil || q.Decision.Allowed || !slices.Equal(f.calls, []string{"take"}) {
		t.Errorf("%+v, %v after %v", q.Decision, err, f.calls)
	}
	f.calls, f.away = nil, ""
	for i := range q.Descriptors {
		q.Descriptors[i].Cost = 0
	}
	if err := e.Decide(t.Context(), &q); err != nil || q.Decision.Allowed || !slices.Equal(f.calls, []string{"take"}) {
		t.Errorf("a cost of nothing: %+v, %v after %v", q.Decision, err, f.calls)
	}
}

// What was given back stands as it stood: full again at once.
func TestStandsAsBeforeAfterGivingBack(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	set, err := loadFiles(t, quotaLimits, "limits:\n  - {name: all, key: [one], rate: 5/hour, burst: 5}\n  - {name: counted, key: [one], rate: 5/hour, burst: 5, count_refused: true}\n")
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(memory.New(memory.Options{}), set, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	q := engine.Query{Domain: "edge", Descriptors: []engine.Descriptor{
		{Attributes: attributes("one=1"), Cost: 2}, {Attributes: attributes("two=2"), Cost: 2},
	}}
	if err := e.Decide(t.Context(), &q); err != nil || q.Decision.Allowed {
		t.Fatalf("%+v, %v", q.Decision, err)
	}
	for _, r := range q.Decision.Results {
		switch r.Limit {
		case "all":
			if r.Remaining != 5 || r.ResetAfter != 0 {
				t.Errorf("what was given back has %d left and is full in %v", r.Remaining, r.ResetAfter)
			}
		case "counted":
			if r.Remaining != 3 || r.ResetAfter == 0 {
				t.Errorf("what counts refused requests has %d left and is full in %v", r.Remaining, r.ResetAfter)
			}
		}
	}
}

// Several quotas are not decided while one of them is unknown that refuses; one that cannot
// refuse, and limits beside them, may be unknown.
func TestOnlyQuotasThatDecideMustBeKnown(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	set, err := loadFiles(t, `
domain: edge
descriptors:
  - {key: one, rate_limit: {unit: hour, requests_per_unit: 5}, quota_mode: true}
  - {key: two, rate_limit: {unit: hour, requests_per_unit: 5}, quota_mode: true}
  - {key: shadow, rate_limit: {unit: hour, requests_per_unit: 5}, quota_mode: true, shadow_mode: true}
  - {key: rule, rate_limit: {unit: hour, requests_per_unit: 5}}
`, "limits:\n  - {name: own, key: [one], rate: 5/hour}\n")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		asked []string
		away  string
		known bool
	}{
		{[]string{"one=1", "two=1"}, "edge.two", false},
		{[]string{"one=1", "two=1"}, "own", true},
		{[]string{"one=1", "shadow=1"}, "edge.one", false},
		{[]string{"one=1", "shadow=1"}, "edge.shadow", true},
		{[]string{"one=1", "two=1", "rule=1"}, "edge.rule", true}, // whose failure a store would not pass over
		{[]string{"one=1"}, "edge.one", true},
	} {
		f := newBroken().flaky
		e, err := engine.New(f, set, engine.Options{})
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range set.Limits() {
			if l.Name == c.away {
				f.away = l.Base.ID
			}
		}
		var q engine.Query
		q.Domain = "edge"
		for _, a := range c.asked {
			q.Descriptors = append(q.Descriptors, engine.Descriptor{Attributes: attributes(a), Cost: 1})
		}
		if err := e.Decide(t.Context(), &q); f.away == "" || errors.Is(err, store.ErrUnavailable) == c.known || c.known != (err == nil) {
			t.Errorf("%v without %s (%q): %v", c.asked, c.away, f.away, err)
		}
	}
}

// replaced is a store that fails once, while the configuration is being replaced.
type replaced struct {
	*memory.Store
	swap    func()
	err     error
	takes   int
	refunds int
}

func (s *replaced) Take(ctx context.Context, charges []store.Charge) (bool, error) {
	if s.takes++; s.takes == 1 {
		s.swap()
		return false, s.err
	}
	return s.Store.Take(ctx, charges)
}

func (s *replaced) Refund(ctx context.Context, charges []store.Charge) error {
	s.refunds++
	return s.Store.Refund(ctx, charges)
}

// A request whose counters were dropped by a swap is decided again by the configuration in
// force; not without a swap, nor after a refund, which would be made twice, nor when its context
// has ended.
func TestDecidedAnewAfterASwap(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const before, after = "limits: [{name: a, key: [user], rate: 5/hour, burst: 5}]", "limits: [{name: b, key: [user], rate: 9/hour, burst: 9}]"
	u := attributes("user=u")
	for name, c := range map[string]struct {
		swap, gone bool
		q          []engine.Descriptor
		takes      int
	}{
		"a swap":               {true, false, []engine.Descriptor{{Attributes: u, Cost: 1}}, 2},
		"no swap":              {false, false, []engine.Descriptor{{Attributes: u, Cost: 1}}, 1},
		"a swap and a refund":  {true, false, []engine.Descriptor{{Attributes: u, Cost: 1, Refund: true}}, 1},
		"a swap, and it left":  {true, true, []engine.Descriptor{{Attributes: u, Cost: 1}}, 1},
		"a swap and no refund": {true, false, []engine.Descriptor{{Attributes: u, Cost: 0, Refund: true}}, 2},
	} {
		s := &replaced{Store: memory.New(memory.Options{}), err: errBroken}
		e, err := engine.New(s, parse(t, before), engine.Options{})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		s.swap = func() {
			if c.swap {
				if err := e.Swap(parse(t, after)); err != nil {
					t.Error(err)
				}
			}
			if c.gone {
				cancel()
			}
		}
		q := engine.Query{Descriptors: c.q}
		err = e.Decide(ctx, &q)
		cancel()
		if s.takes != c.takes || (err == nil) != (c.takes == 2) || err != nil && !errors.Is(err, errBroken) || s.refunds > 1 {
			t.Errorf("%s: %v after %d takes and %d refunds", name, err, s.takes, s.refunds)
		}
		if err == nil && (len(q.Decision.Results) != 1 || q.Decision.Results[0].Limit != "b") {
			t.Errorf("%s: decided by %+v", name, q.Decision.Results)
		}
	}
}

// A swap that fails leaves each limit as it was, also those whose policy it had changed
// already, and drops what it had bound.
func TestFailedSwapRestoresPolicies(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	s := newBroken()
	e, err := engine.New(s, parse(t, "limits: [{name: a, rate: 2/hour, burst: 2}, {name: c, rate: 50/hour}]"), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	take := func() limit.Decision {
		d, err := e.Take(t.Context(), limit.Request{})
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	wantAllowed(t, take(), 1, 49)
	s.bind = "z"
	if err := e.Swap(parse(t, "limits: [{name: a, rate: 9/hour, burst: 9}, {name: c, rate: 50/hour}, {name: new, rate: 1/hour}, {name: z, rate: 1/hour}]")); !errors.Is(err, errBroken) {
		t.Fatalf("Swap: %v", err)
	}
	if n := s.Stats().Limits; n != 2 {
		t.Errorf("%d counters are bound after a swap that failed, want 2", n)
	}
	wantAllowed(t, take(), 0, 48)
	wantRefused(t, take(), "a", limit.ReasonRate)
	s.bind = ""
	if err := e.Swap(parse(t, "limits: [{name: a, rate: 9/hour, burst: 9}]")); err != nil {
		t.Fatal(err)
	}
	wantAllowed(t, take(), 6)
}

// Descriptors that only ask, or give back, are no attempts that count for a ban; several on
// one limit are one, of the largest cost.
func TestWhatIsAnAttempt(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	ask := func(costs ...int64) (d []engine.Descriptor) {
		for _, cost := range costs {
			d = append(d, engine.Descriptor{Attributes: attributes("user=u"), Cost: max(cost, -cost), Refund: cost < 0})
		}
		return d
	}
	for name, c := range map[string]struct {
		q       []engine.Descriptor
		attempt bool
		left    int64 // of 50 before
	}{
		"one": {ask(1), true, 49}, "a large one": {ask(40), true, 10}, "a question": {ask(0), false, 50}, "questions": {ask(0, 0), false, 50},
		"a question and one": {ask(0, 1), true, 49}, "one and a question": {ask(1, 0), true, 49}, "several": {ask(2, 9, 3), true, 41},
		"what is given back": {ask(-5), false, 55}, "that and a question": {ask(-5, 0), false, 55}, "that and one": {ask(-5, 7), true, 48},
	} {
		b := newBench(t, "limits:\n  - {name: a, key: [user], rate: 1/hour, burst: 100, on_exceed: {ban: {for: 1h, after: 3/hour}}}\n")
		wantAllowed(t, b.take(30, "user=u"), 70)
		wantAllowed(t, b.take(20, "user=u"), 50)
		q := engine.Query{Descriptors: c.q}
		if err := b.Decide(t.Context(), &q); err != nil || !q.Decision.Allowed {
			t.Fatalf("%s: %+v, %v", name, q.Decision, err)
		}
		if got := q.Decision.Results[0].Remaining; got != c.left {
			t.Errorf("%s: told that %d are left, want %d", name, got, c.left)
		}
		// Two attempts were made before, and the fourth is banned.
		if d := b.take(1, "user=u"); d.Allowed == c.attempt {
			t.Errorf("%s: an attempt: %v, then %+v", name, c.attempt, d.Results[0])
		}
	}
}

// A limit that comes with a request has the policy of a window that counts refused requests.
func TestPolicyOfAnOverride(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	b := newBench(t, envoyLimits)
	rate := limit.Rate{Count: 5, Period: time.Hour}
	q := engine.Query{Domain: "edge", Descriptors: []engine.Descriptor{{Attributes: attributes("user=u"), Cost: 2, HasOverride: true, Override: rate}}}
	if err := b.Decide(t.Context(), &q); err != nil {
		t.Fatal(err)
	}
	r := q.Decision.Results[0]
	if len(q.Hits) != 1 || q.Hits[0].Policy() != (limit.Policy{Algorithm: limit.FixedWindow, Rate: rate, CountRefused: true}) || r.Algorithm != limit.FixedWindow ||
		r.Limit != engine.OverrideName || r.Quota != 5 || r.Window != time.Hour || r.Remaining != 3 || q.InQuota(&q.Hits[0]) {
		t.Errorf("%+v, %+v", q.Hits, r)
	}
}
