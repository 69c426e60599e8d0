package engine_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/explain"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// A limit of no bound says so, whatever the limits beside it answer; and a request that
// holds no place has no permit, whatever else it was charged.
func TestUnlimitedBesideARefusal(t *testing.T) {
	b := newBench(t, `
limits:
  - {name: strict, key: [user], rate: 1/hour}
  - name: places
    key: [user]
    algorithm: concurrency
    max_in_flight: 1
    overrides:
      - {when: {user: acme}, unlimited: true}
`)
	wantAllowed(t, b.take(1, "user=acme"), 0, math.MaxInt64)
	d := b.take(1, "user=acme")
	wantRefused(t, d, "strict", limit.ReasonRate)
	if r := d.Results[1]; !r.Allowed || r.Remaining != math.MaxInt64 || r.Reason != limit.ReasonNone {
		t.Errorf("the unlimited one says %+v", r)
	}
	held := b.take(1, "user=u")
	if held.Permit == 0 {
		t.Fatalf("%+v", held)
	}
	for _, user := range []string{"user=acme", "user=u"} {
		if err := b.Finish(t.Context(), limit.Request{Attributes: attributes(user)}, held.Permit); err != nil {
			t.Errorf("%s: %v", user, err)
		}
	}
	b.advance(time.Hour)
	if d := b.take(1, "user=acme"); !d.Allowed || d.Permit != 0 {
		t.Errorf("no place is held, and the permit is %d: %+v", d.Permit, d)
	}
}

// A banned key has nothing left, and no delay, though the limit itself has room.
func TestBannedHasNothingLeft(t *testing.T) {
	b := newBench(t, `
limits:
  - {name: api, key: [user], rate: 100/hour, burst: 100, on_exceed: {ban: {for: 15m, after: 2/minute}}}
`)
	wantAllowed(t, b.take(1, "user=u"), 99)
	wantAllowed(t, b.take(1, "user=u"), 98)
	for range 3 {
		d := b.take(1, "user=u")
		wantRefused(t, d, "api", limit.ReasonBanned)
		if r := d.Results[0]; r.Remaining != 0 || r.Delay != 0 || r.RetryAfter < 15*time.Minute {
			t.Errorf("%+v", r)
		}
	}
	wantAllowed(t, b.take(60, "user=costly"), 40) // one attempt, whatever it costs
	wantAllowed(t, b.take(1, "user=costly"), 39)
	b.advance(16 * time.Minute)
	wantAllowed(t, b.take(1, "user=u"), 99)
}

// A peek says of the soft threshold what the request would meet.
func TestPeekTellsOfTheSoftThreshold(t *testing.T) {
	b := newBench(t, "limits:\n  - {name: a, rate: 10/hour, burst: 10, soft: 80%}\n")
	for _, c := range []struct {
		taken, cost int64
		soft        bool
	}{{0, 8, false}, {0, 9, true}, {6, 2, false}, {0, 3, true}, {2, 1, true}} {
		if c.taken > 0 {
			b.take(c.taken)
		}
		d := b.peek(c.cost)
		if !d.Allowed || d.Results[0].Soft != c.soft {
			t.Errorf("%d more taken, a cost of %d: %+v, want soft %v", c.taken, c.cost, d.Results[0], c.soft)
		}
	}
}

// A limit may be called as those that come with requests are: it has one tally, its own.
func TestTallyOfTheSameName(t *testing.T) {
	b := newBench(t, "limits:\n  - {name: "+engine.OverrideName+", rate: 2/hour, burst: 2}\n  - {name: other, rate: 9/hour}\n")
	for range 3 {
		b.take(1)
	}
	seen := map[string]int{}
	for n := range b.Tallies() {
		seen[n.Limit]++
	}
	if len(seen) != 2 || seen[engine.OverrideName] != 1 || seen["other"] != 1 {
		t.Errorf("%v", seen)
	}
	if n := tallyOf(t, b, engine.OverrideName); n.Allowed != 2 || n.Refused[limit.ReasonRate] != 1 {
		t.Errorf("%+v", n)
	}
}

// What one descriptor gives back another of the same request can take, and the results of both
// show the limit after both.
func TestRefundAndTakeAtOnce(t *testing.T) {
	b := newBench(t, "limits:\n  - {name: a, key: [user], rate: 5/hour, burst: 5}\n")
	wantAllowed(t, b.take(5, "user=u"), 0)
	u, v := attributes("user=u"), attributes("user=v")
	q := engine.Query{Descriptors: []engine.Descriptor{
		{Attributes: u, Cost: 3, Refund: true}, {Attributes: u, Cost: 2}, {Attributes: v, Cost: 4},
	}}
	if err := b.Decide(t.Context(), &q); err != nil || !q.Decision.Allowed {
		t.Fatalf("%+v, %v", q.Decision, err)
	}
	wantAllowed(t, b.peek(1, "user=u"), 1)
	wantAllowed(t, b.peek(1, "user=v"), 1)
	if d := b.peek(2, "user=u"); d.Allowed {
		t.Errorf("of 5 taken, 3 given back and 2 taken: %+v", d)
	}
}

// Explain names the limits that do not apply, a hundred of them at most, and counts all.
func TestUnmatchedAreBounded(t *testing.T) {
	text := "limits:\n"
	for i := range 150 {
		text += fmt.Sprintf("  - {name: l%d, match: {path: /p%d}, rate: 1/hour}\n", i, i)
	}
	b := newBench(t, text)
	x, err := explain.Request(t.Context(), b.Engine, limit.Request{Attributes: attributes("path=/p7")})
	if err != nil || x.UnmatchedCount != 149 || len(x.Unmatched) != 100 || len(x.WhyNot) != 100 {
		t.Errorf("%d do not match, %d are named, %d reasons: %v", x.UnmatchedCount, len(x.Unmatched), len(x.WhyNot), err)
	}
}

// broken is a store that fails in some ways with an error that is not of its absence.
type broken struct {
	*flaky
	bind, unbind string // what the identity of the counters begins with; "" = never
	peek, refund error
	peeks        int // before the one that fails
}

var errBroken = errors.New("broken")

func (s *broken) Bind(spec store.Spec) (store.Counters, error) {
	if s.bind != "" && strings.HasPrefix(spec.ID, s.bind) {
		return nil, errBroken
	}
	return s.flaky.Bind(spec)
}

func (s *broken) Unbind(c store.Counters) error {
	if s.unbind != "" && strings.HasPrefix(c.Spec().ID, s.unbind) {
		return errBroken
	}
	return s.flaky.Unbind(c)
}

func (s *broken) Peek(ctx context.Context, charges []store.Charge) (bool, error) {
	if s.peeks--; s.peeks < 0 && s.peek != nil {
		return false, s.peek
	}
	return s.flaky.Peek(ctx, charges)
}

func (s *broken) Refund(ctx context.Context, charges []store.Charge) error {
	if s.refund != nil {
		return s.refund
	}
	return s.flaky.Refund(ctx, charges)
}

func newBroken() *broken {
	return &broken{flaky: &flaky{Store: memory.New(memory.Options{}), local: memory.New(memory.Options{}), fail: map[string]bool{}}}
}

// Counters that cannot be bound are an error, those of attempts too, and the configuration in
// force stays; counters that cannot be dropped are an error as well.
func TestErrorsOfBinding(t *testing.T) {
	s := newBroken()
	plain := parse(t, "limits:\n  - {name: a, rate: 1/hour}\n")
	bans := parse(t, "limits:\n  - {name: b, rate: 1/hour, on_exceed: {ban: {for: 1m, after: 5/minute}}}\n")
	s.bind = "!ban"
	if _, err := engine.New(s, bans, engine.Options{}); !errors.Is(err, errBroken) {
		t.Errorf("New: %v", err)
	}
	e, err := engine.New(s, plain, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Swap(bans); !errors.Is(err, errBroken) || e.Set() != plain {
		t.Errorf("Swap: %v, the former is in force: %v", err, e.Set() == plain)
	}
	s.bind, s.unbind = "!ban", "b" // and what was bound until then cannot be dropped
	if err := e.Swap(bans); !errors.Is(err, errBroken) || strings.Count(err.Error(), "broken") != 2 || e.Set() != plain {
		t.Errorf("Swap: %v", err)
	}
	s.bind, s.unbind = "", "a"
	if err := e.Swap(bans); !errors.Is(err, errBroken) {
		t.Errorf("Swap: %v", err)
	}
	s.unbind = ""
	if err := e.Swap(plain); err != nil {
		t.Error(err)
	}
}

// A store that fails for another reason than its absence is an error, nothing counts as
// lost, and the request is not decided.
func TestErrorsThatAreNoAbsence(t *testing.T) {
	set, err := loadFiles(t, quotaLimits, "limits:\n  - {name: all, key: [one], rate: 5/hour}\n  - {name: named, key: [name], match: {one: '2'}, rate: 5/hour, missing: reject}\n")
	if err != nil {
		t.Fatal(err)
	}
	over := engine.Query{Domain: "edge", Descriptors: []engine.Descriptor{
		{Attributes: attributes("one=1"), Cost: 1}, {Attributes: attributes("two=2"), Cost: 1},
	}}
	for what, c := range map[string]struct {
		change func(*broken)
		q      engine.Query
	}{
		"the refund of what all quotas refuse": {func(s *broken) { s.refund = errBroken }, over},
		"how they stand after that":            {func(s *broken) { s.peek = errBroken }, over},
		"a refund": {
			func(s *broken) { s.refund = errBroken },
			engine.Query{Descriptors: []engine.Descriptor{{Attributes: attributes("one=3"), Cost: 1, Refund: true}}},
		},
		"a peek": {
			func(s *broken) { s.peek = errBroken },
			engine.Query{Peek: true, Descriptors: []engine.Descriptor{{Attributes: attributes("one=3"), Cost: 1}}},
		},
		"how they stand after a peek": {
			func(s *broken) { s.peek, s.peeks = errBroken, 1 },
			engine.Query{Peek: true, Descriptors: []engine.Descriptor{{Attributes: attributes("one=2"), Cost: 1}}},
		},
	} {
		s := newBroken()
		e, err := engine.New(s, set, engine.Options{})
		if err != nil {
			t.Fatal(err)
		}
		c.change(s)
		if err := e.Decide(t.Context(), &c.q); !errors.Is(err, errBroken) || e.NotReturned() != 0 {
			t.Errorf("%s: %v, %d not returned: %+v", what, err, e.NotReturned(), c.q.Decision)
		}
	}
}

// A cost that was given back counts as given back where the store cannot be peeked at any more.
func TestStandingAfterGivingBackWithoutTheStore(t *testing.T) {
	set, err := loadFiles(t, quotaLimits, "limits:\n  - {name: all, key: [one], rate: 5/hour, burst: 5}\n")
	if err != nil {
		t.Fatal(err)
	}
	s := newBroken()
	e, err := engine.New(s, set, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	q := engine.Query{Domain: "edge", Descriptors: []engine.Descriptor{
		{Attributes: attributes("one=1"), Cost: 2}, {Attributes: attributes("two=2"), Cost: 2},
	}}
	for _, down := range []string{"nothing", "peek"} {
		s.down(down)
		if err := e.Decide(t.Context(), &q); err != nil || q.Decision.Allowed {
			t.Fatalf("%s: %+v, %v", down, q.Decision, err)
		}
		for _, r := range q.Decision.Results {
			if r.Limit == "all" && r.Remaining != 5 {
				t.Errorf("%s down: %d left of 5 after all was given back", down, r.Remaining)
			}
		}
	}
}
