package engine_test

import (
	"context"
	"maps"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/explain"
	"github.com/stint-io/stint/limit"
)

// A limit that was meant for a request and does not apply is counted with its reason:
// once for each request, never for a question, and over a reload. One whose match
// does not hold was not meant for it.
func TestSkippedLimitsAreCounted(t *testing.T) {
	const yaml = `
limits:
  - {name: user, key: [user], rate: 100/hour}
  - {name: size, when: request.size > 1000, rate: 100/hour}
  - {name: login, match: {path: /login}, key: [ip], rate: 100/hour}
`
	b := newBench(t, yaml)
	want := map[string][2]uint64{}
	ask := func(request string, skips ...string) {
		t.Helper()
		b.take(1, strings.Fields(request)...)
		b.peek(1, strings.Fields(request)...)
		if _, err := explain.Request(context.Background(), b.Engine, limit.Request{Attributes: attributes(strings.Fields(request)...)}); err != nil {
			t.Fatal(err)
		}
		for _, s := range skips {
			n := want[s]
			if s == "size" {
				n[1]++
			} else {
				n[0]++
			}
			want[s] = n
		}
		for _, name := range []string{"user", "size", "login"} {
			got := tallyOf(t, b, name).Unlimited
			if n := want[name]; got[engine.MissingKey] != n[0] || got[engine.ConditionFailed] != n[1] {
				t.Fatalf("%q: %s is skipped %v times, want %v", request, name, got, n)
			}
		}
	}
	ask("user=u size=1 path=/x")
	ask("user=u size=5000 path=/login ip=192.0.2.7")
	ask("path=/x", "user", "size")
	ask("path=/login", "user", "size", "login")
	ask("user=u path=/login", "size", "login")
	if err := b.Swap(parse(t, yaml+"  - {name: more, key: [other], rate: 1/hour}\n")); err != nil {
		t.Fatal(err)
	}
	ask("size=1", "user")
	if n := tallyOf(t, b, "more").Unlimited[engine.MissingKey]; n != 1 {
		t.Errorf("more is skipped %d times, want 1", n)
	}
	// A query of several descriptors counts once.
	q := engine.Query{Descriptors: []engine.Descriptor{{Cost: 1}, {Cost: 1}}}
	if err := b.Decide(context.Background(), &q); err != nil {
		t.Fatal(err)
	}
	if n := tallyOf(t, b, "more").Unlimited[engine.MissingKey]; n != 2 {
		t.Errorf("more is skipped %d times, want 2", n)
	}
}

// Each admitted request is counted once for each limit that it was admitted without, and a refused one for none. What
// explain answers before a request is what is counted for it.
func TestHolesAreWhatIsExplained(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	f, b := newFlaky(t, `
limits:
  - {name: user, key: [user], rate: 100/hour}
  - {name: size, when: request.size > 1000, rate: 100/hour}
  - {name: login, match: {path: /login}, key: [ip], rate: 3/hour}
  - {name: closed, match: {path: /closed}, rate: 3/hour, on_store_failure: reject}
  - {name: watch, match: {path: /login}, key: [user], rate: 1/hour, on_store_failure: reject, shadow: true}
`)
	counted := func() map[engine.Hole]uint64 {
		n := map[engine.Hole]uint64{}
		add := func(limit string, counts []uint64) {
			for why, count := range counts {
				if count > 0 {
					n[engine.Hole{Limit: limit, Why: engine.Unlimited(why)}] = count
				}
			}
		}
		add("", b.Unlimited())
		for tl := range b.Tallies() {
			add(tl.Limit, tl.Unlimited[:])
		}
		return n
	}
	failed, seen := false, map[engine.Unlimited]int{}
	for range 2000 {
		if r.IntN(10) == 0 {
			if failed = !failed; failed {
				f.down()
			} else {
				f.up()
			}
		}
		var pairs []string
		for _, choice := range [][]string{{"user=u", "user=v", ""}, {"size=1", "size=5000", "size=big", ""}, {"path=/login", "path=/closed", "path=/x", ""}, {"ip=192.0.2.7", ""}} {
			if pair := choice[r.IntN(len(choice))]; pair != "" {
				pairs = append(pairs, pair)
			}
		}
		req := limit.Request{Attributes: attributes(pairs...)}
		x, err := explain.Request(t.Context(), b.Engine, req)
		if err != nil {
			t.Fatal(err)
		}
		want := counted()
		for _, h := range x.Unlimited {
			want[h]++
			seen[h.Why]++
		}
		d, err := b.Engine.Take(t.Context(), req)
		if err != nil {
			t.Fatal(err)
		}
		if !d.Allowed && len(x.Unlimited) > 0 && x.Decision.Allowed {
			t.Fatalf("%v: explain admits and take refuses", pairs)
		}
		if got := counted(); !maps.Equal(got, want) {
			t.Fatalf("%v with the store failed %v: allowed %v, counted %v, want %v", pairs, failed, d.Allowed, got, want)
		}
	}
	if len(seen) < 3 {
		t.Errorf("only %v were met", seen)
	}
}

// What becomes of a request for which a condition cannot be evaluated is what the limit says, and is counted.
func TestConditionErrors(t *testing.T) {
	for _, c := range []struct {
		options string
		// What becomes of a request without the attribute, and of one whose attribute is no number.
		missing, unknown string
	}{
		{"", "skipped", "matched"},
		{", on_condition_error: match", "matched", "matched"},
		{", on_condition_error: skip", "skipped", "skipped"},
		{", shadow: true", "skipped", "skipped"},
		{", shadow: true, on_condition_error: match", "matched", "matched"},
	} {
		b := newBench(t, "limits: [{name: a, when: request.size > 1000, rate: 100/h"+c.options+"}]")
		for request, want := range map[string]string{"path=/x": c.missing, "size=unknown": c.unknown, "size=1001": "holds", "size=1000": "no"} {
			before := tallyOf(t, b, "a")
			x, err := explain.Request(t.Context(), b.Engine, limit.Request{Attributes: attributes(request)})
			if err != nil {
				t.Fatal(err)
			}
			b.take(1, request)
			after := tallyOf(t, b, "a")
			despite, skipped, met := after.Despite-before.Despite, after.Unlimited[engine.ConditionFailed]-before.Unlimited[engine.ConditionFailed], after.Allowed-before.Allowed
			got := map[[3]uint64]string{{1, 0, 1}: "matched", {0, 1, 0}: "skipped", {0, 0, 1}: "holds", {0, 0, 0}: "no"}[[3]uint64{despite, skipped, met}]
			if got != want {
				t.Errorf("%q, %s: %q (%d %d %d), want %s", c.options, request, got, despite, skipped, met, want)
			}
			if applies := len(x.Limits) == 1; applies != (met == 1) || applies && x.Limits[0].ConditionFailed != (want == "matched") || want == "skipped" && !strings.HasPrefix(x.WhyNot[0], "when could not be evaluated") {
				t.Errorf("%q, %s: explained by %+v %q", c.options, request, x.Limits, x.WhyNot)
			}
		}
	}
}

// A client cannot make an override fail that admits less than the limit, nor one apply that admits more.
func TestConditionErrorsOfOverrides(t *testing.T) {
	b := newBench(t, `limits: [{name: a, rate: 5/h, overrides: [{when: request.size > 1000, rate: 2/h}, {when: 'attributes["n"].matches("x") && request.size < 10', unlimited: true}]}]`)
	for request, want := range map[string]int64{"size=2000": 2, "size=5": 5, "size=unknown": 2, "path=/x": 5} {
		if d := b.peek(1, request); d.Results[0].Quota != want {
			t.Errorf("%s: %d, want %d", request, d.Results[0].Quota, want)
		}
	}
	b = newBench(t, `limits: [{name: a, rate: 5/h, overrides: [{when: request.size < 10, unlimited: true}]}]`)
	if d := b.peek(1, "size=unknown"); d.Results[0].Quota != 5 {
		t.Errorf("%+v", d.Results)
	}
}

// An empty value of a key attribute is a missing one, whatever the limit says of those.
func TestEmptyIsMissing(t *testing.T) {
	b := newBench(t, `
limits:
  - {name: reject, key: [user, ip], rate: 100/h, missing: reject}
  - {name: all, key: [user, ip], rate: 100/h, missing: all}
  - {name: skip, key: [user, ip], rate: 100/h}
`)
	for _, same := range [][2]string{{"ip=192.0.2.7 user=", "ip=192.0.2.7"}, {"user= ip=", ""}, {"ip= user=u", "user=u"}} {
		empty, absent := b.peek(1, strings.Fields(same[0])...), b.peek(1, strings.Fields(same[1])...)
		if empty.Allowed || len(empty.Results) != 2 || empty.Results[0].Reason != limit.ReasonMissing {
			t.Errorf("%s: %+v", same[0], empty)
		}
		for i := range empty.Results {
			if empty.Results[i] != absent.Results[i] {
				t.Errorf("%s: %+v\nwant %+v", same[0], empty.Results[i], absent.Results[i])
			}
		}
	}
	if d := b.take(1, "user=u", "ip=192.0.2.7"); !d.Allowed || len(d.Results) != 3 {
		t.Errorf("%+v", d)
	}
}
