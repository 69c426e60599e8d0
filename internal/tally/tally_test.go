package tally_test

import (
	"context"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/tally"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// scripted answers each charge with a verdict of the test's.
type scripted struct {
	*memory.Store
	verdict limit.Verdict
	failed  bool
}

func (s *scripted) Take(_ context.Context, charges []store.Charge) (bool, error) {
	allowed := true
	for i := range charges {
		c := &charges[i]
		c.Verdict, c.Failed = s.verdict, s.failed
		allowed = allowed && (c.Verdict.Allowed || c.Shadow)
	}
	return allowed, nil
}

func parse(t *testing.T, text string) *rules.Set {
	t.Helper()
	set, err := rules.Parse("l.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// counted is a table, the engine that it observes, and the store behind.
type counted struct {
	*testing.T
	*tally.Table
	engine *engine.Engine
	store  *scripted
}

func open(t *testing.T, o tally.Options, text string) *counted {
	t.Helper()
	c := &counted{t, tally.New(o), nil, &scripted{Store: memory.New(memory.Options{}), verdict: limit.Verdict{Allowed: true}}}
	var err error
	if c.engine, err = engine.New(c.store, parse(t, text), engine.Options{Decisions: []engine.DecisionObserver{c.Table}}); err != nil {
		t.Fatal(err)
	}
	return c
}

func (c *counted) ask(d engine.Descriptor) {
	c.Helper()
	if err := c.engine.Decide(c.Context(), &engine.Query{Domain: "edge", Descriptors: []engine.Descriptor{d}}); err != nil {
		c.Fatal(err)
	}
}

func (c *counted) named(name string) tally.Tally {
	for n := range c.Tallies() {
		if n.Limit == name {
			return n
		}
	}
	return tally.Tally{}
}

// Each answer is counted once, under what became of it.
func TestEachAnswer(t *testing.T) {
	c := open(t, tally.Options{}, `
limits:
  - {name: a, rate: 100/s, soft: 80%, when: "request.size > 1", on_condition_error: match}
  - {name: shadow, rate: 100/s, shadow: true}
  - {name: tag, rate: 100/s, on_exceed: {tag: {name: over, value: yes}}}
  - {name: keyed, key: [user], rate: 100/s}
`)
	if got := c.named("a"); !reflect.DeepEqual(got, tally.Tally{Limit: "a"}) {
		t.Errorf("%+v", got)
	}
	for _, x := range []struct {
		limit.Verdict
		failed bool
	}{
		{limit.Verdict{Allowed: true, Remaining: 50}, false},
		{limit.Verdict{Allowed: true, Remaining: 10}, false},
		{limit.Verdict{Allowed: true, Remaining: 50}, true},
		{limit.Verdict{Reason: limit.ReasonRate}, false},
		{limit.Verdict{Reason: limit.ReasonStoreFailure}, true},
		{limit.Verdict{Reason: 250}, false},
	} {
		c.store.verdict, c.store.failed = x.Verdict, x.failed
		c.ask(engine.Descriptor{Cost: 1})
	}
	c.CountUnlimited(engine.NoService)
	a := tally.Tally{Limit: "a", Allowed: 3, Soft: 1, Despite: 6}
	a.Refused = [limit.ReasonCount]uint64{limit.ReasonRate: 1, limit.ReasonStoreFailure: 1, limit.ReasonNone: 1}
	a.Unlimited[engine.StoreFailed] = 1
	shadow := tally.Tally{Limit: "shadow", Allowed: 3, ShadowRefused: a.Refused, Unlimited: a.Unlimited}
	tag := tally.Tally{Limit: "tag", Allowed: 3, Tagged: a.Refused, Unlimited: a.Unlimited}
	keyed := tally.Tally{Limit: "keyed"}
	keyed.Unlimited[engine.MissingKey] = 3 // of the requests that were admitted
	for _, want := range []tally.Tally{a, shadow, tag, keyed} {
		if got := c.named(want.Limit); !reflect.DeepEqual(got, want) {
			t.Errorf("%+v\nwant %+v", got, want)
		}
	}
	if n := c.Unlimited(); n[engine.NoService] != 1 || n[engine.MissingKey] != 0 {
		t.Errorf("%v", n)
	}
}

// Of an admitted cost the part above near is counted, and at most the cost; of a rule in Envoy's format, and of a limit
// that came with the request.
func TestNear(t *testing.T) {
	own := engine.Descriptor{Attributes: []limit.Attribute{{Name: "b", Value: "x"}}, Cost: 10, HasOverride: true, Override: limit.Rate{Count: 100, Period: limit.PerHour(1).Period}}
	for _, x := range []struct {
		remaining, taken, want int64
		refused, failed        bool
	}{{50, 10, 0, false, false}, {20, 10, 0, false, false}, {15, 10, 5, false, false}, {0, 10, 10, false, false}, {0, 10, 0, true, false}, {0, 10, 0, false, true}} {
		c := open(t, tally.Options{}, "domain: edge\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 100}}]")
		c.store.verdict, c.store.failed = limit.Verdict{Allowed: !x.refused, Remaining: x.remaining}, x.failed
		c.ask(engine.Descriptor{Attributes: []limit.Attribute{{Name: "a", Value: "x"}}, Cost: x.taken})
		c.ask(own)
		for _, name := range []string{"edge.a", engine.OverrideName} {
			if got := c.named(name).NearLimit; got != uint64(x.want) {
				t.Errorf("%+v: %s: %d", x, name, got)
			}
		}
	}
	c := open(t, tally.Options{}, "limits: [{name: a, rate: 100/h}]")
	if c.ask(engine.Descriptor{Cost: 100}); c.named("a").Allowed != 1 || c.named("a").NearLimit != 0 {
		t.Errorf("a limit in stint's format has hits near its limit: %+v", c.named("a"))
	}
}

// Counts go on over a reload, also of a request that was decided by the limit before, and end with the limit.
func TestFollow(t *testing.T) {
	c := open(t, tally.Options{}, "limits: [{name: a, rate: 1/s}, {name: b, rate: 1/s}]")
	count := func(want uint64) {
		t.Helper()
		c.ask(engine.Descriptor{Cost: 1}) // by the engine's limits, which are the first ones
		if got := c.named("a").Allowed; got != want {
			t.Errorf("%d, want %d", got, want)
		}
	}
	count(1)
	c.Follow(parse(t, "limits: [{name: c, rate: 1/s}, {name: a, rate: 2/s}]"))
	count(2)
	c.Follow(parse(t, "limits: [{name: c, rate: 1/s}]"))
	count(0)
	c.Follow(parse(t, "limits: [{name: a, rate: 2/s}]"))
	count(1)
}

// A limit that never applies because its key is missing is reported once; one that has applied is not.
func TestUnkeyed(t *testing.T) {
	var told []string
	c := open(t, tally.Options{Unkeyed: func(l *rules.Limit, why string) { told = append(told, l.Name+": "+why) }}, "limits: [{name: a, key: [user], rate: 1/s}, {name: b, key: [ip], rate: 1/s}]")
	c.ask(engine.Descriptor{Attributes: []limit.Attribute{{Name: "ip", Value: "192.0.2.7"}}, Cost: 1})
	for i := 1; i < 30; i++ {
		if (i >= 10) != (len(told) == 1) {
			t.Fatalf("after %d: %q", i, told)
		}
		c.ask(engine.Descriptor{Attributes: []limit.Attribute{{Name: "users", Value: "u"}}, Cost: 1})
	}
	if !strings.HasPrefix(told[0], "a: ") || !strings.Contains(told[0], "user") {
		t.Errorf("%q", told)
	}
}

// Many at once: no answer is lost, also while limits are replaced.
func TestConcurrent(t *testing.T) {
	const text = "limits: [{name: a, rate: 1/h, burst: 4000}]"
	c := open(t, tally.Options{}, text)
	e, err := engine.New(memory.New(memory.Options{}), parse(t, text), engine.Options{Decisions: []engine.DecisionObserver{c.Table}})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 1000 {
				if _, err := e.Take(t.Context(), limit.Request{}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range 50 {
		if err := e.Swap(parse(t, text)); err != nil {
			t.Fatal(err)
		}
	}
	all.Wait()
	if got := c.named("a"); got.Allowed != 4000 || got.Refused[limit.ReasonRate] != 4000 {
		t.Errorf("%+v", got)
	}
}
