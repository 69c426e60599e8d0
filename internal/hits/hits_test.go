package hits_test

import (
	"context"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/hits"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

func parse(t testing.TB, text string) *rules.Set {
	t.Helper()
	set, err := rules.Parse("edge.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// bench is a table and the engine that it observes.
type bench struct {
	e *engine.Engine
	t *hits.Table
}

func newBench(t testing.TB, text string) bench {
	t.Helper()
	set := parse(t, text)
	table := hits.New(0)
	e, err := engine.New(memory.New(memory.Options{}), set, engine.Options{Decisions: []engine.DecisionObserver{table}})
	if err != nil {
		t.Fatal(err)
	}
	return bench{e, table}
}

// ask decides descriptors of key, value, key, value..., each with cost.
func (b bench) ask(t testing.TB, cost int64, descriptors ...[]string) {
	t.Helper()
	q := engine.Query{Domain: "edge"}
	for _, d := range descriptors {
		var list []limit.Attribute
		for i := 0; i < len(d); i += 2 {
			list = append(list, limit.Attribute{Name: d[i], Value: d[i+1]})
		}
		q.Descriptors = append(q.Descriptors, engine.Descriptor{Attributes: list, Cost: cost})
	}
	if err := b.e.Decide(context.Background(), &q); err != nil {
		t.Fatal(err)
	}
}

func (b bench) read() map[string]hits.Counts {
	all := map[string]hits.Counts{}
	b.t.Read(func(name string, c hits.Counts) { all[name] = c })
	return all
}

// The arithmetic of that service, case by case: how many hits of a request are near, within and over the limit, by
// what was counted before it. Where a request of several hits goes over, all of them are over here: it is the one
// difference, in the last column.
func TestArithmetic(t *testing.T) {
	for _, c := range []struct {
		most, cost, after int64
		over, near        uint64
		differs           bool
	}{
		{15, 1, 11, 0, 0, false},
		{15, 1, 13, 0, 1, false},
		{15, 1, 16, 1, 0, false},
		{20, 3, 5, 0, 0, false},
		{8, 2, 7, 0, 1, false},
		{20, 3, 19, 0, 3, false},
		{20, 3, 22, 3, 0, true}, // there: 2 over, 1 near
		{20, 7, 22, 7, 0, true}, // there: 2 over, 4 near
		{10, 3, 30, 3, 0, false},
	} {
		b := newBench(t, fmt.Sprintf("domain: edge\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: %d}}]", c.most))
		if before := c.after - c.cost; before > 0 {
			b.ask(t, before, []string{"k", "v"})
		}
		was := b.read()["edge.k"]
		b.ask(t, c.cost, []string{"k", "v"})
		got := b.read()["edge.k"]
		within := uint64(c.cost) - c.over
		if got.Total-was.Total != uint64(c.cost) || got.Over-was.Over != c.over || got.Near-was.Near != c.near || got.Within-was.Within != within || got.Shadow != 0 {
			t.Errorf("%+v: %+v after %+v", c, got, was)
		}
	}
}

// The names are those of that service, seen on a live one: values of requests by detailed_metric and value_to_metric,
// patterns by share_threshold, colons and the dots of addresses made underscores.
func TestNames(t *testing.T) {
	b := newBench(t, `
domain: edge
descriptors:
  - {key: k, rate_limit: {unit: year, requests_per_unit: 20}}
  - {key: d, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 20}}
  - key: deep
    value: "1.2.3.4"
    descriptors:
      - {key: two, value: x, descriptors: [{key: three, value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 20}}]}
  - {key: s, value: "files*", share_threshold: true, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 20}}
  - {key: w, value: "a*", rate_limit: {unit: year, requests_per_unit: 20}}
  - {key: v, value: "a*", value_to_metric: true, rate_limit: {unit: year, requests_per_unit: 20}}
  - {key: shadow, shadow_mode: true, rate_limit: {unit: year, requests_per_unit: 0}}
  - {key: free, rate_limit: {unlimited: true}}
  - {key: open}
`)
	for _, d := range [][]string{
		{"k", "x"},
		{"d", "v:1"},
		{"d", ""},
		{"deep", "1.2.3.4", "two", "x", "three", "33"},
		{"s", "files/a"},
		{"s", "files/b"},
		{"w", "ab"},
		{"v", "ab"},
		{"shadow", "x"},
		{"free", "x"},
		{"open", "x"},
		{"none", "x"},
		{"d", "a\nfake:1|c"},
	} {
		b.ask(t, 2, d)
	}
	two := hits.Counts{Total: 2, Within: 2}
	want := map[string]hits.Counts{
		"edge.k": two, "edge.d_v_1": two, "edge.d_": two, "edge.deep_1_2_3_4.two_x.three_33": two, "edge.s_files*": {Total: 4, Within: 4}, "edge.w_a*": two, "edge.v_ab": two,
		"edge.shadow": {Total: 2, Over: 2, Shadow: 2}, "edge.d_a_fake_1_c": two,
	}
	if got := b.read(); !reflect.DeepEqual(got, want) {
		t.Errorf("%v\nwant %v", got, want)
	}
}

// Values of requests make no series without bound: what is beyond is in that of the rule as it is written.
func TestBound(t *testing.T) {
	b := newBench(t, "domain: edge\ndescriptors: [{key: d, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 20}}]")
	var all sync.WaitGroup
	for part := range 4 {
		all.Go(func() {
			for i := range hits.MaxSeries / 2 {
				b.ask(t, 1, []string{"d", fmt.Sprintf("%d-%d", part, i)})
			}
		})
	}
	all.Wait()
	b.ask(t, 1, []string{"d", strings.Repeat("long", 1000)})
	got := b.read()
	if rest := got["edge.d"]; len(got) != hits.MaxSeries+1 || rest.Total != hits.MaxSeries+1 {
		t.Errorf("%d names, and %+v in the rest", len(got), rest)
	}
	sum := uint64(0)
	for _, c := range got {
		sum += c.Total
	}
	if sum != 2*hits.MaxSeries+1 {
		t.Errorf("%d hits of %d", sum, 2*hits.MaxSeries+1)
	}
	// A domain that has gone makes room.
	b.t.Follow(parse(t, "domain: other\ndescriptors: [{key: d, rate_limit: {unit: year, requests_per_unit: 20}}]"))
	if got := b.read(); len(got) != 0 {
		t.Errorf("%d names are left", len(got))
	}
}

// Counts go on over a reload, also of a request that was decided by the rules before it.
func TestFollow(t *testing.T) {
	const text = "domain: edge\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 20}}]"
	b := newBench(t, text)
	b.ask(t, 1, []string{"k", "x"})
	b.t.Follow(parse(t, "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: year, requests_per_unit: 1}}, {key: k, rate_limit: {unit: year, requests_per_unit: 20}}]"))
	b.ask(t, 1, []string{"k", "x"}) // by the engine's rules, which are the old ones
	if got := b.read()["edge.k"]; got.Total != 2 {
		t.Errorf("%+v", got)
	}
}

// Names with values of requests go on over a reload as well, and those of a domain that is gone do not come back.
func TestFollowKeepsValues(t *testing.T) {
	const text = "domain: edge\ndescriptors: [{key: d, detailed_metric: true, rate_limit: {unit: year, requests_per_unit: 20}}]"
	b := newBench(t, text)
	b.ask(t, 1, []string{"d", "x"})
	b.t.Follow(parse(t, text))
	if got := b.read()["edge.d_x"]; got.Total != 1 {
		t.Errorf("after a reload %+v", got)
	}
	b.t.Follow(parse(t, "domain: other\ndescriptors: [{key: d, rate_limit: {unit: year, requests_per_unit: 20}}]"))
	b.t.Follow(parse(t, text))
	if got := b.read(); len(got) != 0 {
		t.Errorf("after its domain was gone: %v", got)
	}
}

// A limit that comes with a request is counted by its entries, as that service does; beyond the bound all of a domain
// are one name, which outlives a reload and ends with its domain.
func TestOwnLimits(t *testing.T) {
	const text = "domain: edge\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 20}}]"
	b := newBench(t, text)
	own := func(entries ...limit.Attribute) {
		q := engine.Query{Domain: "edge", Descriptors: []engine.Descriptor{{Attributes: entries, Cost: 2, Override: limit.PerHour(3), HasOverride: true}}}
		if err := b.e.Decide(context.Background(), &q); err != nil {
			t.Fatal(err)
		}
	}
	own(limit.Attribute{Name: "k", Value: "v"}, limit.Attribute{Name: "two"})
	own(limit.Attribute{Name: "k", Value: "v"}, limit.Attribute{Name: "two"})
	own(limit.Attribute{Name: "k", Value: strings.Repeat("long", 1000)})
	want := map[string]hits.Counts{"edge.k_v.two": {Total: 4, Over: 2, Within: 2}, "edge.other": {Total: 2, Within: 2}}
	if got := b.read(); !reflect.DeepEqual(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	b.t.Follow(parse(t, text))
	own(limit.Attribute{Name: "k", Value: strings.Repeat("long", 1001)})
	if got := b.read()["edge.other"]; got.Total != 4 {
		t.Errorf("after a reload %+v", got)
	}
	b.t.Follow(parse(t, strings.Replace(text, "edge", "another", 1)))
	if got := b.read(); len(got) != 0 {
		t.Errorf("%v are left", got)
	}
}

// A reservation counts as a take. A peek does not count.
func TestReserved(t *testing.T) {
	b := newBench(t, "domain: edge\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 20}}]")
	list := []engine.Descriptor{{Attributes: []limit.Attribute{{Name: "k", Value: "v"}}}}
	if d, _, _, err := b.e.TakeDescriptors(t.Context(), "edge", list, 3); err != nil || !d.Allowed {
		t.Fatal(d, err)
	}
	list[0].Cost = 5
	if err := b.e.Decide(t.Context(), &engine.Query{Domain: "edge", Descriptors: list, Peek: true}); err != nil {
		t.Fatal(err)
	}
	if got := b.read()["edge.k"]; got != (hits.Counts{Total: 3, Within: 3}) {
		t.Errorf("%+v", got)
	}
}

// A rule whose name does not vary is counted without an allocation.
func TestAllocates(t *testing.T) {
	b := newBench(t, "domain: edge\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 20}}]")
	entries := []limit.Attribute{{Name: "k", Value: "v"}}
	q := engine.Query{Domain: "edge", Descriptors: []engine.Descriptor{{Attributes: entries, Cost: 1}}}
	if n := testing.AllocsPerRun(100, func() {
		if err := b.e.Decide(context.Background(), &q); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
