package engine_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/explain"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/internal/tally"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// quotaCase is one configuration of rules a to f, each by itself, and limits in stint's
// own format on x and y, with what each has counted.
type quotaCase struct {
	all, admitted bool // as in engine.Options and rules.Options
	rules         [6]struct {
		most                          int64
		quota, shadow, unlimited, off bool // off: no rate_limit
		used                          int64
	}
	own, ownUsed [2]int64
}

func drawQuotas(r *rand.Rand) *quotaCase {
	c := &quotaCase{all: r.IntN(3) == 0, admitted: r.IntN(3) == 0}
	for i := range c.rules {
		l := &c.rules[i]
		l.most, l.quota, l.shadow = r.Int64N(6), r.IntN(3) > 0, r.IntN(5) == 0
		l.unlimited, l.off = r.IntN(8) == 0, r.IntN(8) == 0
	}
	for i := range c.own {
		c.own[i] = 1 + r.Int64N(20)
	}
	return c
}

func (c *quotaCase) engine(t *testing.T) *engine.Engine {
	t.Helper()
	text := "domain: edge\ndescriptors:\n"
	for i, l := range c.rules {
		rate := fmt.Sprintf(", rate_limit: {unit: year, requests_per_unit: %d}", l.most)
		if l.unlimited {
			rate = ", rate_limit: {unlimited: true}"
		}
		if l.off {
			rate = ""
		}
		text += fmt.Sprintf("  - {key: %c, quota_mode: %t, shadow_mode: %t%s}\n", 'a'+i, l.quota, l.shadow, rate)
	}
	own := fmt.Sprintf("limits:\n  - {name: x, key: [x], rate: %d/365d, algorithm: fixed_window}\n  - {name: y, key: [y], rate: %d/365d, algorithm: fixed_window}\n", c.own[0], c.own[1])
	dir := t.TempDir()
	for name, text := range map[string]string{"edge.yaml": text, "own.yaml": own} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set, err := rules.Options{CountAdmitted: c.admitted}.Load(dir)
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(memory.New(memory.Options{}), set, engine.Options{Quota: c.all})
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// decide says whether a request for some rules and limits of one's own is admitted,
// and charges it.
func (c *quotaCase) decide(picked, own []int, cost int64) (allowed bool) {
	quotas, over, refused := 0, 0, false
	for _, i := range picked {
		l := &c.rules[i]
		is := c.all || l.quota
		full := !l.off && !l.unlimited && l.used+cost > l.most && !l.shadow
		switch {
		case l.unlimited && !l.off, l.off && !c.all:
		case is:
			quotas++
			if full {
				over++
			}
		case full:
			refused = true
		}
	}
	for _, i := range own {
		refused = refused || c.ownUsed[i]+cost > c.own[i]
	}
	if len(own) > 0 && c.all {
		quotas++ // the descriptor of x or y meets no rule, so it has room
	}
	allowed = !refused && (quotas == 0 || over < quotas)
	for _, i := range picked {
		l := &c.rules[i]
		if !c.admitted || allowed && l.used+cost <= l.most {
			l.used += cost
		}
	}
	for _, i := range own {
		if allowed {
			c.ownUsed[i] += cost
		}
	}
	return allowed
}

// Quotas refuse a request only when all of them are over, whatever other rules it has; a shadow
// quota, or a descriptor without a rule where all are quotas, never refuses. A refused request
// takes nothing from limits in stint's own format, and from rules what they are configured to
// count.
func TestQuotasTogether(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	refusals := 0
	for seed := range seeding.Draw(t, 300) {
		r := rand.New(rand.NewPCG(seed, 0x90))
		c := drawQuotas(r)
		e := c.engine(t)
		for n := range 25 {
			var picked, own []int
			q := engine.Query{Domain: "edge"}
			cost := 1 + r.Int64N(2)
			for _, i := range r.Perm(len(c.rules))[:1+r.IntN(3)] {
				picked = append(picked, i)
				q.Descriptors = append(q.Descriptors, engine.Descriptor{Cost: cost, Attributes: attributes(fmt.Sprintf("%c=1", 'a'+i))})
			}
			if r.IntN(2) == 0 {
				own = []int{r.IntN(2)}
				q.Descriptors = append(q.Descriptors, engine.Descriptor{Cost: cost, Attributes: attributes(fmt.Sprintf("%c=1", 'x'+own[0]))})
			}
			want := c.decide(picked, own, cost)
			if err := e.Decide(t.Context(), &q); err != nil {
				t.Fatal(err)
			}
			if !want {
				refusals++
			}
			if q.Decision.Allowed != want {
				t.Fatalf("seed %d, request %d: allowed %v, want %v of %v and %v\n%+v\n%+v", seed, n, q.Decision.Allowed, want, picked, own, c, q.Decision)
			}
			for k, i := range picked {
				l := &c.rules[i]
				if hits := q.HitsOf(k); len(hits) == 1 && hits[0].Result >= 0 && !l.unlimited {
					if got := q.Decision.Results[hits[0].Result].Remaining; got != max(0, l.most-l.used) {
						t.Fatalf("seed %d, request %d: %d of rule %c are left, want %d\n%+v", seed, n, got, 'a'+i, l.most-l.used, c)
					}
				}
			}
			if len(own) > 0 {
				hits := q.HitsOf(len(picked))
				if got := q.Decision.Results[hits[0].Result].Remaining; got != c.own[own[0]]-c.ownUsed[own[0]] {
					t.Fatalf("seed %d, request %d: %d of limit %c are left, want %d", seed, n, got, 'x'+own[0], c.own[own[0]]-c.ownUsed[own[0]])
				}
			}
		}
	}
	if refusals < 1000 {
		t.Errorf("%d refusals: the requests try nothing", refusals)
	}
}

// The hits near a limit are counted as Envoy's service counts those of admitted
// requests: what comes after the largest whole number of hits within the share.
func TestNearLimits(t *testing.T) {
	for _, c := range []struct{ most, before, cost, near int64 }{
		{15, 10, 1, 0}, {15, 12, 1, 1}, {15, 11, 2, 1}, {15, 15, 1, 0}, {20, 2, 3, 0}, {8, 5, 2, 1}, {20, 16, 3, 3}, {20, 17, 2, 2}, {20, 19, 3, 0}, {3, 0, 3, 1}, {1, 0, 1, 1}, {15, 14, 0, 0},
	} {
		b := newBench(t, fmt.Sprintf("domain: edge\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: %d}}]\n", c.most))
		ask := func(cost int64, peek bool) uint64 {
			t.Helper()
			q := engine.Query{Domain: "edge", Peek: peek, Descriptors: []engine.Descriptor{{Attributes: attributes("k=v"), Cost: cost}}}
			if err := b.Decide(t.Context(), &q); err != nil {
				t.Fatal(err)
			}
			return tallyOf(t, b, "edge.k").NearLimit
		}
		before := ask(c.before, false)
		if got := ask(c.cost, true); got != before {
			t.Errorf("%+v: a peek counts %d", c, got-before)
		}
		if got := ask(c.cost, false) - before; int64(got) != c.near {
			t.Errorf("%+v: counted %d", c, got)
		}
	}
	set := parse(t, "domain: edge\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 10}}]\n")
	counts := tally.New(tally.Options{NearLimit: 0.25})
	e, err := engine.New(memory.New(memory.Options{}), set, engine.Options{Decisions: []engine.DecisionObserver{counts}})
	if err != nil {
		t.Fatal(err)
	}
	q := engine.Query{Domain: "edge", Descriptors: []engine.Descriptor{
		{Attributes: attributes("k=v"), Cost: 5},
		{Attributes: attributes("o=v"), Cost: 9, HasOverride: true, Override: limit.Rate{Count: 10, Period: limit.PerHour(1).Period}},
	}}
	if err := e.Decide(t.Context(), &q); err != nil {
		t.Fatal(err)
	}
	for tally := range counts.Tallies() {
		if want := map[string]uint64{"edge.k": 3, engine.OverrideName: 7}[tally.Limit]; tally.NearLimit != want {
			t.Errorf("%s: %d near, want %d", tally.Limit, tally.NearLimit, want)
		}
	}
}

// Where admitted requests only are counted, a refused one takes nothing from the rules
// that it fits, from limits that come with it, and from what is near.
func TestCountAdmitted(t *testing.T) {
	set, err := rules.Options{CountAdmitted: true}.Parse("edge.yaml", []byte("domain: edge\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 2}}, {key: none, rate_limit: {unit: year, requests_per_unit: 0}}, {key: large, rate_limit: {unit: year, requests_per_unit: 10}}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	counts := tally.New(tally.Options{})
	e, err := engine.New(memory.New(memory.Options{}), set, engine.Options{Decisions: []engine.DecisionObserver{counts}})
	if err != nil {
		t.Fatal(err)
	}
	override := engine.Descriptor{Attributes: attributes("o=1"), Cost: 2, HasOverride: true, Override: limit.Rate{Count: 2, Period: limit.PerHour(1).Period}}
	rule := engine.Descriptor{Attributes: attributes("k=1"), Cost: 2}
	none := engine.Descriptor{Attributes: attributes("none=1"), Cost: 1}
	for i, c := range []struct {
		ask     []engine.Descriptor
		allowed bool
		left    [2]int64
	}{
		{[]engine.Descriptor{rule, override, none}, false, [2]int64{2, 2}},
		{[]engine.Descriptor{rule, override, none}, false, [2]int64{2, 2}},
		{[]engine.Descriptor{rule, override}, true, [2]int64{0, 0}},
	} {
		q := engine.Query{Domain: "edge", Descriptors: c.ask}
		if err := e.Decide(t.Context(), &q); err != nil {
			t.Fatal(err)
		}
		if r := q.Decision.Results; q.Decision.Allowed != c.allowed || r[0].Remaining != c.left[0] || r[1].Remaining != c.left[1] {
			t.Errorf("request %d: %+v, want %+v", i, q.Decision, c)
		}
		for tally := range counts.Tallies() {
			if tally.NearLimit != 0 && !c.allowed {
				t.Errorf("request %d: %d hits of %s near its limit", i, tally.NearLimit, tally.Limit)
			}
		}
	}
	// A refused request takes nothing, so it brings no limit near its end, even if others have.
	near := func() (n uint64) {
		for tally := range counts.Tallies() {
			n += tally.NearLimit
		}
		return n
	}
	before := near()
	rule.Attributes, rule.Cost = attributes("large=1"), 9
	for _, ask := range [][]engine.Descriptor{{rule}, {{Attributes: rule.Attributes, Cost: 1}, none}} {
		q := engine.Query{Domain: "edge", Descriptors: ask}
		if err := e.Decide(t.Context(), &q); err != nil || q.Decision.Allowed != (len(ask) == 1) {
			t.Fatalf("%+v, %v", q.Decision, err)
		}
	}
	if got := near() - before; got != 1 {
		t.Errorf("%d hits are near the limit, want the 9th of the first request alone", got)
	}
	// A part that does not fit is not counted either.
	q := engine.Query{Domain: "edge", Descriptors: []engine.Descriptor{{Attributes: attributes("o=2"), Cost: 3, HasOverride: true, Override: override.Override}}}
	for _, cost := range []int64{3, 2} {
		q.Descriptors[0].Cost = cost
		if err := e.Decide(t.Context(), &q); err != nil || q.Decision.Allowed != (cost == 2) {
			t.Errorf("cost %d of 2: %+v, %v", cost, q.Decision, err)
		}
	}
}

// An explanation of a request with a domain says what each descriptor met, takes
// nothing, and what was taken for one can be finished by it.
func TestExplainQuery(t *testing.T) {
	b := newBench(t, "domain: edge\ndescriptors: [{key: k, value: \"a*\", share_threshold: true, rate_limit: {unit: year, requests_per_unit: 3, name: n}}, {key: w}, {key: r, rate_limit: {unit: year, requests_per_unit: 1, replaces: [{name: n}]}}]\n")
	q := func(pairs ...string) *engine.Query {
		q := &engine.Query{Domain: "edge"}
		for _, p := range pairs {
			q.Descriptors = append(q.Descriptors, engine.Descriptor{Attributes: attributes(p), Cost: 1})
		}
		return q
	}
	for range 2 {
		x, err := explain.Query(t.Context(), b.Engine, q("k=a1", "w=1", "z=1"))
		if err != nil {
			t.Fatal(err)
		}
		if !x.HasDomain || len(x.Limits) != 1 || x.Limits[0].Used != 0 || x.Decision.Results[0].Remaining != 3 || fmt.Sprint(x.Limits[0].Key) != "[{k a*}]" {
			t.Errorf("%+v", x)
		}
		if got := fmt.Sprint(x.Descriptors); got != "[{[{k a1}] edge.k_a* true } {[{w 1}] edge.w false the rule has no rate_limit} {[{z 1}]  false no rule of the domain has these entries, in this order and number}]" {
			t.Errorf("descriptors %s", got)
		}
		if fmt.Sprint(x.Unmatched) != "[edge.r]" || x.UnmatchedCount != 1 {
			t.Errorf("unmatched %v", x.Unmatched)
		}
	}
	x, err := explain.Query(t.Context(), b.Engine, q("r=1", "k=a2"))
	if err != nil || len(x.Limits) != 1 || x.Descriptors[1].Why != "another rule of the request replaces it" || x.Descriptors[1].Rule != "edge.k_a*" || x.Descriptors[1].Applies || !x.Descriptors[0].Applies {
		t.Errorf("%+v, %v", x, err)
	}
	other := q("k=a1")
	other.Domain = "other"
	if x, err = explain.Query(t.Context(), b.Engine, other); err != nil || x.HasDomain || x.Descriptors[0].Why != "no file in Envoy's format has the domain" || x.UnmatchedCount != 0 {
		t.Errorf("%+v, %v", x, err)
	}
	if x, err = explain.Request(t.Context(), b.Engine, limit.Request{Attributes: attributes("k=a1")}); err != nil || x.Descriptors != nil || x.HasDomain || x.UnmatchedCount != 0 {
		t.Errorf("without a domain: %+v, %v", x, err)
	}
}

// A limit of one's own that descriptors share is explained by the one that it met.
func TestExplainQueryOfSeveralDescriptors(t *testing.T) {
	b := newBench(t, "limits: [{name: x, key: [x], algorithm: concurrency, max_in_flight: 1}, {name: y, key: [y], rate: 5/hour}]\n")
	q := &engine.Query{Domain: "edge", Descriptors: []engine.Descriptor{
		{Attributes: attributes("z=0"), Cost: 1}, {Attributes: attributes("x=1"), Cost: 1}, {Attributes: attributes("x=1", "y=2"), Cost: 1},
	}}
	x, err := explain.Query(t.Context(), b.Engine, q)
	if err != nil || len(x.Limits) != 2 || fmt.Sprint(x.Limits[0].Key, x.Limits[1].Key) != "[{x 1}] [{y 2}]" || x.UnmatchedCount != 0 {
		t.Fatalf("%+v, %v", x, err)
	}
	y, err := explain.Query(t.Context(), b.Engine, &engine.Query{Domain: "edge", Descriptors: q.Descriptors[:2]})
	if err != nil || len(y.WhyNot) != 1 || !strings.HasPrefix(y.WhyNot[0], "of the first descriptor: ") {
		t.Errorf("why not y: %q, %v", y.WhyNot, err)
	}
	q.Peek = false
	if err := b.Decide(t.Context(), q); err != nil || q.Decision.Permit == 0 {
		t.Fatalf("%+v, %v", q.Decision, err)
	}
	permit := q.Decision.Permit
	if err := b.FinishQuery(t.Context(), q, 0); err != nil {
		t.Fatal(err)
	}
	if err := b.Decide(t.Context(), q); err != nil || q.Decision.Allowed {
		t.Fatalf("a second place: %+v, %v", q.Decision, err)
	}
	if err := b.FinishQuery(t.Context(), q, permit); err != nil {
		t.Fatal(err)
	}
	if err := b.Decide(t.Context(), q); err != nil || !q.Decision.Allowed {
		t.Fatalf("the place did not come back: %+v, %v", q.Decision, err)
	}
}
