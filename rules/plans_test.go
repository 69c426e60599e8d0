package rules

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stint-io/stint/limit"
)

const twoPlans = `
plans:
  - name: free
    limits:
      - {name: messages, rate: 10/month, algorithm: fixed_window}
      - {name: burst, rate: 5/s}
  - name: pro
    limits:
      - {name: messages, rate: 100/month, algorithm: fixed_window}
      - {name: per-user, key: [customer, user], rate: 50/month, algorithm: fixed_window}
customers: {by: [customer], default: free, list: {acme: pro}}
limits:
  - {name: all, rate: 1000/s}
`

// A request meets the limits of its plan, and those that no plan has; budgets of one name have one counter.
func TestPlans(t *testing.T) {
	s := mustParse(t, twoPlans)
	if p := s.Plans(); !slices.Equal(p.Names, []string{"free", "pro"}) || p.Default != "free" || len(p.List) != 1 || p.List[0].Name != "acme" {
		t.Errorf("%+v", p)
	}
	meets := func(pairs ...string) string {
		var attrs []limit.Attribute
		for i := 0; i < len(pairs); i += 2 {
			attrs = append(attrs, limit.Attribute{Name: pairs[i], Value: pairs[i+1]})
		}
		found, _ := s.MatchAll("", attrs, attrs, nil, nil)
		var names []string
		for i := range found {
			name := found[i].Limit.Name
			if found[i].Skip != SkipNone {
				name += " skipped"
			}
			names = append(names, name)
		}
		slices.Sort(names)
		return strings.Join(names, ", ")
	}
	for _, c := range []struct {
		attrs []string
		want  string
	}{
		{[]string{"plan", "free", "customer", "a"}, "all, free.burst, free.messages"},
		{[]string{"plan", "pro", "customer", "a", "user", "u"}, "all, pro.messages, pro.per-user"},
		{[]string{"plan", "free"}, "all, free.burst skipped, free.messages skipped"}, // who names no customer
		{[]string{"plan", "gold", "customer", "a"}, "all"},
	} {
		if got := meets(c.attrs...); got != c.want {
			t.Errorf("%v meets %s, want %s", c.attrs, got, c.want)
		}
	}
	pools := map[string][]string{}
	for _, l := range s.Limits() {
		pools[l.Base.Pool] = append(pools[l.Base.Pool], l.Base.ID)
	}
	want := map[string][]string{"messages": {"messages!plans", "messages!plans"}, "per-user": {"per-user!plans"}, "": {"free.burst", "all"}}
	if fmt.Sprint(pools) != fmt.Sprint(want) {
		t.Errorf("counters %v, want %v", pools, want)
	}
	// pro has nothing for the moment: all of a month may be used within a second.
	if w := s.Warnings(); len(w) != 1 || !strings.Contains(w[0].Message, `the shortest window of plan "pro" is 720h0m0s`) {
		t.Errorf("%v", w)
	}
	for _, w := range s.Unprovided() {
		if strings.Contains(w.Message, `"plan"`) {
			t.Errorf("the plan is found by the service: %v", w)
		}
	}
	if len(mustParse(t, "limits: [{name: a, rate: 5/s}]").Plans().Names) != 0 {
		t.Error("plans out of nothing")
	}
}

// Overrides that give single keys more than the limit has that they are within are warned of, and no others.
func TestWithin(t *testing.T) {
	const file = `
limits:
  - {name: org, key: [org], rate: 100/month, algorithm: fixed_window, overrides: [{when: {org: big}, rate: 1000/month}, {when: {org: free}, unlimited: true}]}
  - name: team
    key: [org, team]
    rate: 10/month
    algorithm: fixed_window
    within: org
    overrides:
      - {when: {org: acme, team: a}, rate: 60/month}
      - {when: {team: b, org: acme}, rate: %s/month}
      - {when: {org: big, team: a}, rate: 1000/month}
      - {when: {org: free, team: a}, rate: 100000/month}
      - {when: {org: acme}, rate: 500/month}
      - {when: {org: acme, team: "x*"}, rate: 500/month}
      - {when: {org: acme, team: c, user: u}, rate: 500/month}
      - {when: {org: acme, team: [d, e]}, rate: 500/month}
`
	set := mustParse(t, fmt.Sprintf(file, "40"))
	if len(set.Warnings()) != 0 {
		t.Errorf("%v", set.Warnings())
	}
	if d := set.Divisions(); len(d) != 1 || d[0].Parent.Name != "org" || len(d[0].Children) != 1 || d[0].Children[0].Within != "org" {
		t.Errorf("%+v", d)
	}
	list := mustParse(t, fmt.Sprintf(file, "41")).Warnings()
	if len(list) != 1 || list[0].Line != 8 || list[0].Message != `the overrides of "team" give 2 keys of org=acme 101 together, and "org" has 100` {
		t.Errorf("%v", list)
	}
	list = mustParse(t, fmt.Sprintf(file, "4611686018427387904")).Warnings()
	if len(list) != 1 || !strings.Contains(list[0].Message, "4611686018427387964 together") {
		t.Errorf("%v", list)
	}
	// In a plan the limit of the same plan comes first.
	set = mustParse(t, strings.Replace(twoPlans, "{name: per-user, ", "{name: per-user, within: messages, ", 1))
	if d := set.Divisions(); len(d) != 1 || d[0].Parent.Name != "pro.messages" || !set.Plans().Customers(d[0].Parent) || set.Plans().Customers(d[0].Children[0]) {
		t.Errorf("%+v", d)
	}
}
