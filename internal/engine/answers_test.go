package engine_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/explain"
	"github.com/stint-io/stint/internal/tally"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// odd is a store that refuses for a reason which nobody knows.
type odd struct{ *memory.Store }

func (odd) Take(_ context.Context, charges []store.Charge) (bool, error) {
	for i := range charges {
		charges[i].Verdict = limit.Verdict{Reason: limit.Reason(limit.ReasonCount)}
	}
	return false, nil
}

// mute is a store that refuses and does not say which charge did not fit.
type mute struct{ *memory.Store }

func (mute) Take(_ context.Context, charges []store.Charge) (bool, error) {
	for i := range charges {
		charges[i].Verdict = limit.Verdict{Allowed: true}
	}
	return false, nil
}

// A reason that is not known is counted as none, and a refusal by nobody has a status.
func TestReasonsThatAreNotKnown(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	silent, err := engine.New(mute{memory.New(memory.Options{})}, parse(t, "limits: [{name: a, rate: 1/s, on_exceed: {reject: 403}}]"), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := silent.Take(t.Context(), limit.Request{}); err != nil || d.Allowed || d.Status != 429 {
		t.Errorf("%+v, %v", d, err)
	}
	counts := tally.New(tally.Options{})
	e, err := engine.New(odd{memory.New(memory.Options{})}, parse(t, "limits: [{name: a, rate: 1/s}]"), engine.Options{Decisions: []engine.DecisionObserver{counts}})
	if err != nil {
		t.Fatal(err)
	}
	if d, err := e.Take(t.Context(), limit.Request{}); err != nil || d.Allowed {
		t.Fatalf("%+v, %v", d, err)
	}
	if n := tallyOf(t, &bench{Table: counts}, "a"); n.Refused[limit.ReasonNone] != 1 {
		t.Errorf("%+v", n)
	}
}

// A reader of the tallies may stop after any of them.
func TestTalliesUntilOneStops(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	b := newBench(t, "limits: [{name: a, rate: 1/s}, {name: b, rate: 1/s}, {name: c, rate: 1/s}]")
	for most := 1; most <= 5; most++ {
		seen := map[string]bool{}
		for n := range b.Tallies() {
			if seen[n.Limit] = true; len(seen) == most {
				break
			}
		}
		if len(seen) != min(most, 4) { // those that come with requests, and three
			t.Errorf("%d of at most %d: %v", len(seen), most, seen)
		}
	}
}

// Each limit answers in its own words: its algorithm, quota, window and policy stand in the
// result and in the explanation, and what was admitted above its threshold is counted once.
func TestEachLimitInItsOwnWords(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	b := newBench(t, `
limits:
  - {name: bucket, rate: 10/s, burst: 20, soft: 80%}
  - {name: fixed, rate: 30/minute, algorithm: fixed_window}
  - {name: log, rate: 40/hour, algorithm: sliding_window_log}
  - {name: places, algorithm: concurrency, max_in_flight: 50}
  - {name: strict, key: [user], rate: 5/hour, missing: reject}
`)
	want := map[string]limit.Result{
		"bucket": {Algorithm: limit.TokenBucket, Quota: 20, Window: 2 * time.Second}, "fixed": {Algorithm: limit.FixedWindow, Quota: 30, Window: time.Minute},
		"log": {Algorithm: limit.SlidingWindowLog, Quota: 40, Window: time.Hour}, "places": {Algorithm: limit.Concurrency, Quota: 50}, "strict": {Algorithm: limit.TokenBucket, Quota: 5, Window: time.Hour},
	}
	x, err := explain.Request(t.Context(), b.Engine, limit.Request{})
	if err != nil || len(x.Limits) != len(want) {
		t.Fatalf("%+v, %v", x, err)
	}
	for i, r := range x.Decision.Results {
		if w := want[r.Limit]; r.Algorithm != w.Algorithm || r.Quota != w.Quota || r.Window != w.Window || x.Limits[i].Policy.Algorithm != w.Algorithm || x.Limits[i].Policy.Quota() != w.Quota {
			t.Errorf("%+v by %+v", r, x.Limits[i].Policy)
		}
		if x.Limits[i].Used != 0 {
			t.Errorf("%d are used of %s, of which nothing was taken", x.Limits[i].Used, r.Limit)
		}
	}
	for range 18 {
		b.take(1, "user=u") // of which five fit
	}
	for _, user := range []string{"user=v", "user=w", "user=x"} {
		wantAllowedAny(t, b.take(5, user))
	}
	if n := tallyOf(t, b, "bucket"); n.Soft != 1 {
		t.Errorf("%d were admitted above the threshold, want the one after 15 of 20", n.Soft)
	}
}

// A rule replaces those of the name, in other descriptors of the request and wherever they
// stand, but neither itself nor one that has no limit; a rule that is replaced or unlimited
// replaces as well.
func TestRulesThatReplaceOthers(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	set, err := loadFiles(t, `
domain: edge
descriptors:
  - {key: one, rate_limit: {unit: hour, requests_per_unit: 1, name: one}}
  - {key: two, rate_limit: {unit: hour, requests_per_unit: 1, name: two, replaces: [{name: one}]}}
  - {key: three, rate_limit: {unit: hour, requests_per_unit: 1, name: three, replaces: [{name: two}]}}
  - {key: free, rate_limit: {unlimited: true, name: free, replaces: [{name: three}]}}
  - {key: last, rate_limit: {unit: hour, requests_per_unit: 1, name: last, replaces: [{name: free}, {name: none}, {name: own}]}}
  - {key: plain, rate_limit: {unit: hour, requests_per_unit: 1}}
`, "limits: [{name: own, key: [last], rate: 1/hour}, {name: one, key: [plain], rate: 1/hour}]\n")
	if err != nil {
		t.Fatal(err)
	}
	for asked, want := range map[string]string{
		"one": "edge.one", "one two": "edge.two", "two one": "edge.two", "one two three": "edge.three", "three one two": "edge.three", "one three": "edge.one edge.three",
		"free three": "edge.free", "three free two": "edge.free", "last free": "edge.last own edge.free", "last plain": "edge.last own edge.plain one", "plain two": "edge.plain one edge.two",
	} {
		e, err := engine.New(memory.New(memory.Options{}), set, engine.Options{})
		if err != nil {
			t.Fatal(err)
		}
		q := engine.Query{Domain: "edge"}
		var name string
		for rest := asked; rest != ""; {
			if _, err := fmt.Sscan(rest, &name); err != nil {
				t.Fatal(err)
			}
			rest = rest[min(len(rest), len(name)+1):]
			q.Descriptors = append(q.Descriptors, engine.Descriptor{Attributes: attributes(name + "=1"), Cost: 1})
		}
		if err := e.Decide(t.Context(), &q); err != nil {
			t.Fatal(err)
		}
		decided := func() (by string) {
			for _, r := range q.Decision.Results {
				by += " " + r.Limit
			}
			return by
		}
		if got := decided(); got != " "+want {
			t.Errorf("%s: decided by%s, want %s", asked, got, want)
		}
		// What comes with the request has no name to be replaced by.
		q.Descriptors = append(q.Descriptors, engine.Descriptor{Attributes: attributes("two=2"), Cost: 1, HasOverride: true, Override: limit.PerHour(5)})
		if err := e.Decide(t.Context(), &q); err != nil || decided() != " "+want+" "+engine.OverrideName {
			t.Errorf("%s and an override: decided by%s, %v", asked, decided(), err)
		}
	}
}

// Where all of Envoy's rules are quotas, a limit that comes with a request is one too: it
// refuses alone, and not beside one that has room.
func TestOverridesAreQuotas(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	set := parse(t, envoyLimits)
	e, err := engine.New(memory.New(memory.Options{}), set, engine.Options{Quota: true})
	if err != nil {
		t.Fatal(err)
	}
	override := func(value string, count int64) engine.Descriptor {
		return engine.Descriptor{Attributes: attributes("user=" + value), Cost: 3, HasOverride: true, Override: limit.Rate{Count: count, Period: time.Hour}}
	}
	for i, c := range []struct {
		q       []engine.Descriptor
		allowed bool
	}{
		{[]engine.Descriptor{override("a", 2)}, false},
		{[]engine.Descriptor{override("b", 2), override("c", 5)}, true},
		{[]engine.Descriptor{override("d", 2), {Attributes: attributes("user=e"), Cost: 3}}, true},
		{[]engine.Descriptor{override("f", 2), {Attributes: attributes("user=g"), Cost: 6}}, false},
		{[]engine.Descriptor{override("h", 2), {Attributes: attributes("none=g"), Cost: 6}}, true},
	} {
		q := engine.Query{Domain: "edge", Descriptors: c.q}
		if err := e.Decide(t.Context(), &q); err != nil || q.Decision.Allowed != c.allowed {
			t.Errorf("request %d: %+v, %v, want allowed %v", i, q.Decision, err, c.allowed)
		}
	}
}

// Limits after one that bans are in force like those before it, by an override of it too.
func TestLimitsAfterOneThatBans(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	b := newBench(t, `
limits:
  - {name: before, key: [user], rate: 9/hour, burst: 9}
  - {name: bans, key: [user], rate: 9/hour, burst: 9, on_exceed: {ban: {for: 1h, after: 5/hour}}, overrides: [{when: {user: acme}, rate: 7/hour, burst: 7}]}
  - {name: after, key: [user], rate: 2/hour, burst: 2}
`)
	wantAllowed(t, b.take(1, "user=acme"), 8, 6, 1)
	wantAllowed(t, b.take(1, "user=u"), 8, 8, 1)
	wantAllowed(t, b.take(1, "user=u"), 7, 7, 0)
	wantRefused(t, b.take(1, "user=u"), "after", limit.ReasonRate)
	if n := b.store.Stats().Limits; n != 6 {
		t.Errorf("%d counters are bound, want three, an override, and a ban of each of two", n)
	}
}

// An explanation uses the attributes of the descriptor of its result: of a limit whose key is
// missing there, nothing is used.
func TestExplainOfAMissingKey(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	b := newBench(t, "limits: [{name: strict, key: [user], rate: 5/hour, burst: 5, missing: reject}, {name: all, rate: 9/hour, burst: 9}]\n")
	b.take(2, "user=u")
	x, err := explain.Request(t.Context(), b.Engine, limit.Request{Attributes: attributes("ip=192.0.2.7")})
	if err != nil || x.Decision.Allowed || len(x.Limits) != 2 || x.Limits[0].Used != 0 || x.Limits[1].Used != 2 || fmt.Sprint(x.Limits[0].Key) != "[{user }]" {
		t.Errorf("%+v, %v", x, err)
	}
	one, err := explain.Request(t.Context(), b.Engine, limit.Request{Attributes: attributes("user=u")})
	if err != nil || one.UnmatchedCount != 0 || one.Limits[0].Used != 2 {
		t.Errorf("%+v, %v", one, err)
	}
	b = newBench(t, "limits: [{name: x, match: {path: /x}, rate: 5/hour}]\n")
	if x, err = explain.Request(t.Context(), b.Engine, limit.Request{}); err != nil || len(x.WhyNot) != 1 || x.WhyNot[0] != "the request has no path, and match wants /x" {
		t.Errorf("%q, %v", x.WhyNot, err)
	}
	q := engine.Query{Descriptors: []engine.Descriptor{{Cost: limit.MaxCount + 1}}}
	if _, err := explain.Query(t.Context(), b.Engine, &q); !errors.Is(err, engine.ErrBadRequest) {
		t.Errorf("a cost that nobody has: %v", err)
	}
}

// Envoy's rules, and limits that come with requests, are charged for each descriptor that
// meets them; limits in stint's format once, with the largest cost, also where they are not
// charged at all. What is given back after a take is another act.
func TestDescriptorsThatMeetOneLimit(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	set, err := loadFiles(t, envoyLimits, `limits:
  - {name: own, key: [user], rate: 9/hour, burst: 9}
  - {name: free, key: [user], unlimited: true}
  - {name: strict, key: [tenant], rate: 9/hour, missing: reject, shadow: true}
`)
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(memory.New(memory.Options{}), set, engine.Options{MaxOverrides: 1})
	if err != nil {
		t.Fatal(err)
	}
	u := attributes("user=u")
	q := engine.Query{Domain: "edge"}
	left := func(d ...engine.Descriptor) map[string][]int64 {
		t.Helper()
		q.Descriptors = d
		if err := e.Decide(t.Context(), &q); err != nil || !q.Decision.Allowed {
			t.Fatalf("%+v, %v", q.Decision, err)
		}
		out := map[string][]int64{}
		for _, r := range q.Decision.Results {
			out[r.Limit] = append(out[r.Limit], r.Remaining, r.Cost)
		}
		hits := 0
		for i := range d {
			hits += len(q.HitsOf(i))
		}
		if hits != len(q.Hits) {
			t.Errorf("%d hits, of which %d are of descriptors", len(q.Hits), hits)
		}
		return out
	}
	got := left(engine.Descriptor{Attributes: u, Cost: 1}, engine.Descriptor{Attributes: u, Cost: 2})
	if fmt.Sprint(got["edge.user"]) != "[2 1 2 2]" || fmt.Sprint(got["own"]) != "[7 2]" || len(got["free"]) != 2 || got["free"][1] != 2 || len(got["strict"]) != 2 || got["strict"][1] != 2 {
		t.Errorf("%v", got)
	}
	hour := limit.Rate{Count: 9, Period: time.Hour}
	got = left(engine.Descriptor{Attributes: u, Cost: 1, HasOverride: true, Override: hour}, engine.Descriptor{Attributes: u, Cost: 2, HasOverride: true, Override: hour})
	if fmt.Sprint(got[engine.OverrideName]) != "[6 1 6 2]" || fmt.Sprint(got["own"]) != "[5 2]" {
		t.Errorf("%v", got)
	}
	got = left(engine.Descriptor{Attributes: u, Cost: 1}, engine.Descriptor{Attributes: u, Cost: 3, Refund: true})
	if fmt.Sprint(got["own"]) != "[7 1 7 3]" {
		t.Errorf("%v", got)
	}
	// Nothing can be finished of what cannot be asked for.
	q.Descriptors = []engine.Descriptor{{Attributes: u, HasOverride: true, Override: limit.PerMinute(5)}}
	if err := e.FinishQuery(t.Context(), &q, 7); !errors.Is(err, engine.ErrBadRequest) {
		t.Errorf("%v", err)
	}
	if x, err := explain.Query(t.Context(), e, &engine.Query{}); err != nil || len(x.Unmatched) != 3 || fmt.Sprintf("%q", x.WhyNot) != `["" "" ""]` {
		t.Errorf("nothing is asked: %+v, %v", x, err)
	}
}

// In a quota is what refuses only together with others: a rule of that mode which counts.
func TestWhatIsInAQuota(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	b := newBench(t, `
domain: edge
descriptors:
  - {key: quota, quota_mode: true, rate_limit: {unit: hour, requests_per_unit: 5}}
  - {key: off, quota_mode: true}
  - {key: rule, rate_limit: {unit: hour, requests_per_unit: 5}}
`)
	q := engine.Query{Domain: "edge"}
	for _, a := range []string{"off=1", "rule=1", "quota=1"} {
		q.Descriptors = append(q.Descriptors, engine.Descriptor{Attributes: attributes(a), Cost: 1})
	}
	if err := b.Decide(t.Context(), &q); err != nil || len(q.Hits) != 3 {
		t.Fatalf("%+v, %v", q.Hits, err)
	}
	for i := range q.Hits {
		if q.InQuota(&q.Hits[i]) != (i == 2) {
			t.Errorf("hit %d is in a quota: %v", i, i != 2)
		}
	}
}

// The first limit that refuses, and is enforced, gives the status.
func TestStatusOfTheFirst(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	b := newBench(t, `
limits:
  - {name: wide, rate: 9/hour, burst: 9, on_exceed: {reject: 400}}
  - {name: shadow, rate: 1/hour, burst: 1, shadow: true, on_exceed: {reject: 418}}
  - {name: first, rate: 1/hour, burst: 1, on_exceed: {reject: 403}}
  - {name: second, rate: 1/hour, burst: 1, on_exceed: {reject: 410}}
`)
	wantAllowed(t, b.take(1), 8, 0, 0, 0)
	for range 2 {
		if d := b.take(1); d.Allowed || d.Status != 403 {
			t.Errorf("status %d: %+v", d.Status, d)
		}
	}
}

// A key that many limits and descriptors lie between is found again, in a query that is used
// again too.
func TestTheFirstOfManyIsFoundAgain(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	text := "limits:\n"
	for i := range 20 {
		text += fmt.Sprintf("  - {name: l%d, key: [user], rate: 100/hour}\n", i)
	}
	b := newBench(t, text)
	q := engine.Query{}
	for _, user := range []string{"a", "b", "c", "d", "a", "b"} {
		q.Descriptors = append(q.Descriptors, engine.Descriptor{Attributes: attributes("user=" + user), Cost: 1})
	}
	for range 3 {
		if err := b.Decide(t.Context(), &q); err != nil || !q.Decision.Allowed || len(q.Decision.Results) != 80 {
			t.Fatalf("%d results, want one for each limit and user: %v", len(q.Decision.Results), err)
		}
	}
}

// A limit whose attempts alone cannot be counted says that its store failed.
func TestAttemptsOutOfReach(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	f, b := newFlaky(t, "limits:\n  - {name: a, rate: 9/hour, burst: 9, on_exceed: {ban: {for: 1h, after: 2/hour}}}\n")
	f.away = b.Set().Variants()[0].BanID
	d := b.take(1)
	if wantAllowed(t, d, 8); !d.Results[0].StoreFailed {
		t.Errorf("%+v", d.Results[0])
	}
	if n := tallyOf(t, b, "a").Unlimited[engine.StoreFailed]; n != 1 {
		t.Errorf("counted %d", n)
	}
}

// A limit that comes with a request is one: a count, and a length of time.
func TestOverridesThatAreNone(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	b := newBench(t, envoyLimits)
	for _, c := range []struct {
		rate limit.Rate
		want string
	}{
		{limit.Rate{Count: -1, Period: time.Hour}, "descriptor 1: limit: rate"},
		{limit.Rate{Count: limit.MaxCount + 1, Period: time.Hour}, "descriptor 1: limit: rate"},
		{limit.Rate{Count: 5, Period: -1}, "descriptor 1: limit: rate"},
		{limit.Rate{}, "descriptor 1 has no unit"},
		{limit.Rate{Count: limit.MaxCount, Period: 1}, ""},
		{limit.Rate{Count: 1, Period: 1}, ""},
	} {
		q := engine.Query{Domain: "edge", Descriptors: []engine.Descriptor{
			{Attributes: attributes("user=u")}, {Attributes: attributes("user=v"), HasOverride: true, Override: c.rate},
		}}
		err := b.Decide(t.Context(), &q)
		if (err == nil) != (c.want == "") || err != nil && (!errors.Is(err, engine.ErrBadRequest) || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%+v: %v, want %q", c.rate, err, c.want)
		}
	}
}
