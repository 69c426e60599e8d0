package engine

import (
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/audit"
	"github.com/stint-io/stint/internal/derive"
	"github.com/stint-io/stint/internal/plans"
	"github.com/stint-io/stint/internal/records"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// shop is an engine whose customers have plans, and a clock.
type shop struct {
	*testing.T
	engine *Engine
	holes  holes
	desk   *plans.Desk
	now    time.Time
}

// holes counts what requests are admitted without.
type holes map[Unlimited]int

func (holes) Follow(*rules.Set) {}

func (h holes) Decided(q *Query) {
	for _, w := range q.Without() {
		h[w.Why]++
	}
}

func newShop(t *testing.T, file string) *shop {
	t.Helper()
	s := &shop{T: t, holes: holes{}, now: time.Date(2026, 2, 1, 0, 0, 0, 0, time.UTC)}
	set := s.parse(file)
	rec := records.New(nil, 0)
	dir := plans.NewDirectory(func() time.Time { return s.now })
	s.desk = plans.NewDesk(dir, rec, audit.New(rec, nil, 0), nil, func(string) []string { return []string{"messages", "messages/month", "messages/hour"} })
	st := memory.New(memory.Options{Now: func() limit.Time { return limit.At(s.now) }})
	source := derive.New(nil)
	var err error
	s.engine, err = New(st, set, Options{Decisions: []DecisionObserver{s.holes}, Derive: func(set *rules.Set) Deriver {
		p := set.Plans()
		f := plans.Files{Plans: p.Names, Default: p.Default, By: p.By, List: map[string]string{}}
		for _, c := range p.List {
			f.List[c.Name] = c.Plan
		}
		view, err := dir.Read(f)
		if err != nil {
			t.Fatal(err)
		}
		s.desk.Use(view)
		return derive.Planned{Source: source, Plans: view}
	}})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (s *shop) parse(file string) *rules.Set {
	s.Helper()
	set, err := rules.Parse("plans.yaml", []byte(file))
	if err != nil {
		s.Fatal(err)
	}
	return set
}

func (s *shop) take(cost int64, pairs ...string) limit.Decision {
	s.Helper()
	req := limit.Request{Cost: cost}
	for i := 0; i < len(pairs); i += 2 {
		req.Attributes = append(req.Attributes, limit.Attribute{Name: pairs[i], Value: pairs[i+1]})
	}
	d, err := s.engine.Take(s.Context(), req)
	if err != nil {
		s.Fatal(err)
	}
	return d
}

func (s *shop) set(name string, a plans.Assignment) {
	s.Helper()
	if _, err := s.desk.Set(s.Context(), name, a, ""); err != nil {
		s.Fatal(err)
	}
}

const sold = `
plans:
  - name: free
    limits: [{name: messages, rate: 10/month, algorithm: fixed_window, soft: 80%, hard: 150%}]
  - name: pro
    limits: [{name: messages, rate: 100/month, algorithm: fixed_window, soft: 80%, hard: 150%}]
customers: {by: customer, default: free, list: {acme: pro}}
`

// A customer goes from plan to plan, and to other counts and back: what it has used stays used, soft and hard are those of
// the count that it has, and nothing but its own count changes.
func TestPlansChange(t *testing.T) {
	s := newShop(t, sold)
	month := func(d limit.Decision, allowed bool, name string, nominal, quota, remaining int64, soft bool) {
		t.Helper()
		if len(d.Results) != 1 {
			t.Fatalf("%+v", d)
		}
		if r := d.Results[0]; d.Allowed != allowed || r.Limit != name || r.Nominal != nominal || r.Quota != quota || r.Remaining != remaining || r.Soft != soft {
			t.Errorf("%v %s nominal %d quota %d remaining %d soft %v, want %v %s %d %d %d %v", d.Allowed, r.Limit, r.Nominal, r.Quota, r.Remaining, r.Soft, allowed, name, nominal, quota, remaining, soft)
		}
	}
	month(s.take(8, "customer", "bob"), true, "free.messages", 10, 15, 7, false)
	month(s.take(7, "customer", "bob"), true, "free.messages", 10, 15, 0, true)
	month(s.take(1, "customer", "bob"), false, "free.messages", 10, 15, 0, false)
	s.set("bob", plans.Assignment{Plan: "pro"})
	month(s.take(60, "customer", "bob"), true, "pro.messages", 100, 150, 75, false)
	friday := s.now.Add(96 * time.Hour)
	s.set("bob", plans.Assignment{Plan: "pro", Counts: map[string]plans.Count{"messages": {Percent: 200, Until: friday}}})
	month(s.take(225, "customer", "bob"), true, "pro.messages", 200, 300, 0, true)
	month(s.take(1, "customer", "acme"), true, "pro.messages", 100, 150, 149, false)
	s.now = friday
	month(s.take(1, "customer", "bob"), false, "pro.messages", 100, 150, 0, false)
	// The count of a limit of the file changes for all that have it.
	if err := s.engine.Swap(s.parse(strings.Replace(sold, "100/month", "1000/month", 1))); err != nil {
		t.Fatal(err)
	}
	month(s.take(1, "customer", "bob"), true, "pro.messages", 1000, 1500, 1199, false)
	month(s.take(1, "customer", "acme"), true, "pro.messages", 1000, 1500, 1498, false)
	// Plans change their order and one goes: the counter is the same one.
	const fewer = `
plans:
  - name: pro
    limits: [{name: messages, rate: 100/month, algorithm: fixed_window, soft: 80%, hard: 150%}]
customers: {by: customer, default: pro}
`
	if err := s.engine.Swap(s.parse(fewer)); err != nil {
		t.Fatal(err)
	}
	month(s.take(1, "customer", "bob"), false, "pro.messages", 100, 150, 0, false)
	s.now = time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	month(s.take(1, "customer", "bob"), true, "pro.messages", 100, 150, 149, false)
}

// Requests that name an unknown customer, or a plan that does not exist, meet the default plan. Those that name no customer
// have the default plan, of which the limits do as their missing says.
func TestNobodyIsWithoutAPlan(t *testing.T) {
	s := newShop(t, sold)
	for _, attrs := range [][]string{{"customer", "zed"}, {"customer", "zed", "plan", "none"}} {
		if d := s.take(1, attrs...); len(d.Results) != 1 || d.Results[0].Limit != "free.messages" {
			t.Errorf("%v: %+v", attrs, d.Results)
		}
	}
	if d := s.take(1, "customer", "zed", "plan", "pro"); d.Results[0].Limit != "pro.messages" {
		t.Errorf("a caller may say the plan of a customer that has none: %+v", d.Results)
	}
	if d := s.take(1, "customer", "acme", "plan", "free"); d.Results[0].Limit != "pro.messages" {
		t.Errorf("and not of one that has: %+v", d.Results)
	}
	for _, attrs := range [][]string{{"user", "u"}, {"customer", ""}} {
		if d := s.take(1, attrs...); len(d.Results) != 0 {
			t.Errorf("%v: %+v", attrs, d.Results)
		}
	}
	all := newShop(t, strings.Replace(sold, "{name: messages,", "{name: messages, missing: all,", 1))
	for _, attrs := range [][]string{{"user", "u"}, {"customer", ""}} {
		if d := all.take(1, attrs...); len(d.Results) != 1 || d.Results[0].Limit != "free.messages" {
			t.Errorf("%v with missing: all: %+v", attrs, d.Results)
		}
	}
	if n := s.holes; n[NoMatch] != 0 {
		t.Errorf("%v", n)
	}
}

// An organisation, a team, a user and a model: one request is charged to all or to none.
func TestHierarchy(t *testing.T) {
	s := newShop(t, `
plans:
  - name: pro
    limits:
      - {name: org, key: [org], rate: 100/month, algorithm: fixed_window}
      - {name: team, key: [org, team], rate: 60/month, algorithm: fixed_window, within: org}
      - {name: user, key: [org, user], rate: 30/day, algorithm: fixed_window}
      - {name: model, key: [org, model], rate: 40/hour, algorithm: fixed_window}
customers: {by: org, default: pro}
`)
	left := func(d limit.Decision) (list []int64) {
		for _, r := range d.Results {
			list = append(list, r.Remaining)
		}
		return list
	}
	ask := func(cost int64, team, user, model string) limit.Decision {
		t.Helper()
		return s.take(cost, "org", "acme", "team", team, "user", user, "model", model)
	}
	for i, c := range []struct {
		cost              int64
		team, user, model string
		refusedBy         string
		left              [4]int64
	}{
		{30, "a", "u1", "large", "", [4]int64{70, 30, 0, 10}},
		{1, "a", "u1", "large", "pro.user", [4]int64{70, 30, 0, 10}},
		{11, "a", "u2", "large", "pro.model", [4]int64{70, 30, 30, 10}},
		{30, "a", "u2", "small", "", [4]int64{40, 0, 0, 10}},
		{1, "a", "u3", "small", "pro.team", [4]int64{40, 0, 30, 10}},
		{30, "b", "u3", "other", "", [4]int64{10, 30, 0, 10}},
		{11, "b", "u4", "more", "pro.org", [4]int64{10, 30, 30, 40}},
		{10, "b", "u4", "more", "", [4]int64{0, 20, 20, 30}},
	} {
		d := ask(c.cost, c.team, c.user, c.model)
		refused := ""
		if r := d.Refused(); r != nil {
			refused = r.Limit
		}
		if got := left(d); refused != c.refusedBy || len(got) != 4 || [4]int64(got) != c.left {
			t.Errorf("%d: refused by %q, %v left; want %q and %v", i, refused, got, c.refusedBy, c.left)
		}
	}
}

// A decision by a plan, beside one of the same limit without plans. The customer's counts are other ones than the plan's.
//
//	go test ./internal/engine -run xxx -bench Planned
func BenchmarkPlanned(b *testing.B) {
	for _, c := range []struct{ name, file string }{
		{"without plans", "limits: [{name: messages, key: [customer], rate: 4G/month, algorithm: fixed_window}]"},
		{"plan", strings.ReplaceAll(sold, "00/month", "G/month")},
	} {
		b.Run(c.name, func(b *testing.B) {
			set, err := rules.Parse("plans.yaml", []byte(c.file))
			if err != nil {
				b.Fatal(err)
			}
			dir := plans.NewDirectory(nil)
			e, err := New(memory.New(memory.Options{}), set, Options{Derive: func(set *rules.Set) Deriver {
				p := set.Plans()
				view, err := dir.Read(plans.Files{Plans: p.Names, Default: p.Default, By: p.By, List: map[string]string{}})
				if err != nil {
					b.Fatal(err)
				}
				return derive.Planned{Source: derive.New(nil), Plans: view}
			}})
			if err != nil {
				b.Fatal(err)
			}
			req := limit.Request{Attributes: []limit.Attribute{{Name: "customer", Value: "acme"}, {Name: "plan", Value: "pro"}}, Cost: 1}
			b.ReportAllocs()
			for b.Loop() {
				if d, err := e.Take(b.Context(), req); err != nil || !d.Allowed {
					b.Fatal(d, err)
				}
			}
		})
	}
}

// articlePlan is what the article on account-wide limits sells, in one plan: 100 M messages a month, of which an hour may use
// ten times its share, warned at 80 %, restricted at 2.5 times both, and a rate for the moment.
const articlePlan = `
plans:
  - name: 100M
    limits:
      - name: messages
        horizons:
          - {rate: 100M/month, soft: 80%, hard: 250%}
          - {rate: 1388888/hour, hard: 250%}
          - {rate: 20k/s, burst: 40000}
customers: {by: account, default: 100M}
`

// TestTheArticlesPlan walks through the article's burst: one publish of 1000 messages in each millisecond of four seconds.
// With limits of the month and the hour alone it passes, 3.5 million messages; the rate holds it to 120,000. An hour of the
// highest rate is warned at the hour's count and restricted at 2.5 times it; a customer who was sold the double goes on.
func TestTheArticlesPlan(t *testing.T) {
	burst := func(s *shop) (admitted int64) {
		for range 4000 {
			if s.take(1000, "account", "acme").Allowed {
				admitted += 1000
			}
			s.now = s.now.Add(time.Millisecond)
		}
		return admitted
	}
	if n := burst(newShop(t, strings.Replace(articlePlan, "          - {rate: 20k/s, burst: 40000}\n", "", 1))); n != 3_472_000 {
		t.Errorf("without a rate for the moment %d were admitted, the article says 3.5 million", n)
	}
	s := newShop(t, articlePlan)
	if n := burst(s); n > 120_000 || n < 119_000 {
		t.Errorf("%d were admitted, want 120,000", n)
	}
	sent, warned := int64(0), int64(0)
	s.now = s.now.Truncate(time.Hour).Add(time.Hour)
	hour := func() *limit.Result {
		for {
			d := s.take(20_000, "account", "acme")
			if r := d.Refused(); r != nil {
				return r
			}
			if sent += 20_000; d.Results[1].Soft && warned == 0 {
				warned = sent
			}
			s.now = s.now.Add(time.Second)
		}
	}
	if r := hour(); r.Limit != "100M.messages/hour" || sent != 3_460_000 || warned != 1_400_000 {
		t.Errorf("warned after %d, and after %d refused by %s", warned, sent, r.Limit)
	}
	s.set("acme", plans.Assignment{Plan: "100M", Counts: map[string]plans.Count{"messages/hour": {Percent: 200}, "messages/month": {Percent: 200}}})
	if r := hour(); r.Limit != "100M.messages/hour" || sent != 6_940_000 || r.Nominal != 2*1_388_888 {
		t.Errorf("after %d refused by %s of %d", sent, r.Limit, r.Nominal)
	}
}

// A proxy that asks by Envoy's protocol names the customer in an entry: the limits of his plan apply as over HTTP, and
// rules in Envoy's format match the entries as they came.
func TestPlansOfDescriptors(t *testing.T) {
	s := newShop(t, `
plans:
  - {name: free, limits: [{name: messages, rate: 10/month, algorithm: fixed_window}]}
  - {name: pro, limits: [{name: messages, rate: 20/month, algorithm: fixed_window}]}
customers: {by: customer, default: free, list: {acme: pro}}
`)
	for customer, want := range map[string]int64{"acme": 20, "bob": 10} {
		admitted := int64(0)
		for {
			entry := Descriptor{Attributes: []limit.Attribute{{Name: "customer", Value: customer}}, Cost: 1}
			q := Query{Domain: "edge", Descriptors: []Descriptor{entry, {Attributes: []limit.Attribute{{Name: "path", Value: "/"}}, Cost: 1}}}
			if err := s.engine.Decide(t.Context(), &q); err != nil {
				t.Fatal(err)
			}
			if !q.Decision.Allowed || admitted > want {
				break
			}
			admitted++
		}
		if admitted != want {
			t.Errorf("%s: %d were admitted, want %d", customer, admitted, want)
		}
	}
}
