package engine_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/observe"
	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// changedStore notes each change of its counters. Some calls fail before they change anything.
type changedStore struct {
	*memory.Store
	rnd     *rand.Rand
	changes []string
	takes   []string // what each Take answered
}

func (s *changedStore) fails() error {
	switch s.rnd.IntN(30) {
	case 0:
		return store.ErrUnavailable
	case 1:
		return errors.New("broken")
	}
	return nil
}

func (s *changedStore) Take(ctx context.Context, charges []store.Charge) (bool, error) {
	if err := s.fails(); err != nil {
		s.takes = append(s.takes, err.Error())
		return false, err
	}
	allowed, err := s.Store.Take(ctx, charges)
	s.takes = append(s.takes, change(observe.Event{Allowed: allowed, Charges: charges}))
	s.changes = append(s.changes, change(observe.Event{Allowed: allowed, Charges: charges}))
	return allowed, err
}

func (s *changedStore) Refund(ctx context.Context, charges []store.Charge) error {
	if err := s.fails(); err != nil {
		return err
	}
	s.changes = append(s.changes, change(observe.Event{Kind: observe.Returned, Charges: charges}))
	return s.Store.Refund(ctx, charges)
}

func (s *changedStore) Reset(ctx context.Context, charges []store.Charge) error {
	if err := s.fails(); err != nil {
		return err
	}
	s.changes = append(s.changes, change(observe.Event{Kind: observe.Reset, Charges: charges}))
	return s.Store.Reset(ctx, charges)
}

func change(e observe.Event) string {
	var b strings.Builder
	fmt.Fprint(&b, e.Kind, e.Allowed)
	for _, c := range e.Charges {
		c.Key, c.Counters = slices.Clone(c.Key), nil
		fmt.Fprintf(&b, "\n\t%s %+v", e.Charges[0].Counters.Spec().ID, c)
	}
	return b.String()
}

// bucket is one key of one counter.
type bucket struct {
	store.Counters
	id, key string
}

// seen keeps what it observes, and what that leaves of each bucket.
type seen struct {
	changes   []string
	decisions []string
	used      map[bucket]int64
}

func (s *seen) Observe(e observe.Event) {
	s.changes = append(s.changes, change(e))
	for i := range e.Charges {
		c := &e.Charges[i]
		at := bucket{c.Counters, c.Counters.Spec().ID, string(c.Key)}
		switch {
		case e.Kind == observe.Taken && e.Took(c):
			s.used[at] += c.Cost
		case e.Kind == observe.Returned:
			s.used[at] = max(0, s.used[at]-c.Cost)
		case e.Kind == observe.Reset:
			s.used[at] = 0
		}
	}
}

func (s *seen) Follow(*rules.Set) {}

func (s *seen) Decided(q *engine.Query) {
	text := fmt.Sprint(q.Decision.Allowed)
	for i := range q.Decision.Results {
		text += fmt.Sprintf("\n\t%+v", q.Decision.Results[i])
	}
	s.decisions = append(s.decisions, text)
}

// TestEveryChangeIsObserved: whatever is decided, reserved, settled and changed by hand, and whichever call the store
// does not answer, there is one event for each change of the counters, with its charges and verdicts. So what the
// events add up to is what the counters hold. Behind them each decision that was not an error, and did not only ask, has
// one event with its answers. Each time that the store is asked to take is traced.
func TestEveryChangeIsObserved(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	const own = `
limits:
  - {name: user, key: [user], rate: 30/day, algorithm: fixed_window}
  - {name: small, key: [user], match: {small: yes}, rate: 9/day, algorithm: fixed_window}
  - {name: shadow, key: [user], rate: 7/day, algorithm: fixed_window, shadow: true}
  - {name: named, key: [name], match: {strict: yes}, missing: reject, rate: 9/day, algorithm: fixed_window}
  - {name: after, key: [user], match: {after: yes}, charge: after, rate: 9/day, algorithm: fixed_window}
  - {name: flight, match: {small: yes}, algorithm: concurrency, max_in_flight: 3, timeout: 1h}
  - {name: ban, key: [user], match: {ban: yes}, rate: 5/day, algorithm: fixed_window, on_exceed: {ban: {for: 1h, after: 2/hour}}}
  - {name: model, key: [user], match: {share: yes}, rate: 1/hour, burst: 8, share: {by: tenant}}
`
	const envoy = `
domain: edge
descriptors:
  - {key: one, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 6}}
  - {key: two, quota_mode: true, rate_limit: {unit: day, requests_per_unit: 6}}
`
	pairs := []string{"small=yes", "strict=yes", "name=x", "after=yes", "ban=yes", "share=yes", "tenant=a", "tenant=b", "one=1", "two=2"}
	set, err := loadFiles(t, own, envoy)
	if err != nil {
		t.Fatal(err)
	}
	total, decisions := map[observe.Kind]int{}, 0
	for seed := range seeding.Draw(t, 30) {
		rnd := rand.New(rand.NewPCG(seed, 32))
		now := limit.At(time.Date(2026, 5, 4, 12, 30, 30, 0, time.UTC))
		st := &changedStore{Store: memory.New(memory.Options{Now: func() limit.Time { return now }}), rnd: rnd}
		first, second := &seen{used: map[bucket]int64{}}, &seen{used: map[bucket]int64{}}
		var traced []string
		trace := func(ctx context.Context) func([]store.Charge, bool, error) {
			if ctx != t.Context() || len(traced) != len(st.takes) {
				t.Error("a trace does not begin before the store is asked, with the request's context")
			}
			return func(charges []store.Charge, allowed bool, err error) {
				if err != nil {
					traced = append(traced, err.Error())
				} else {
					traced = append(traced, change(observe.Event{Allowed: allowed, Charges: charges}))
				}
			}
		}
		e, err := engine.New(st, set, engine.Options{Observers: []observe.Observer{first, second}, Decisions: []engine.DecisionObserver{first, second}, Trace: trace})
		if err != nil {
			t.Fatal(err)
		}
		request := func() limit.Request {
			r := limit.Request{Cost: rnd.Int64N(6), CountRefused: rnd.IntN(4) == 0, Peek: rnd.IntN(10) == 0}
			r.Attributes = attributes(fmt.Sprint("user=u", rnd.IntN(2)))
			for _, i := range rnd.Perm(len(pairs))[:rnd.IntN(5)] {
				if !(strings.HasPrefix(pairs[i], "tenant=") && slices.ContainsFunc(r.Attributes, func(a limit.Attribute) bool { return a.Name == "tenant" })) {
					r.Attributes = append(r.Attributes, attributes(pairs[i])...)
				}
			}
			return r
		}
		for range 300 {
			was := len(st.changes)
			var err error
			var decided []string
			answer := func(d limit.Decision) {
				text := fmt.Sprint(d.Allowed)
				for i := range d.Results {
					text += fmt.Sprintf("\n\t%+v", d.Results[i])
				}
				decided = append(decided, text)
			}
			switch rnd.IntN(8) {
			case 0:
				q := engine.Query{Domain: "edge", CountRefused: rnd.IntN(4) == 0}
				for range 1 + rnd.IntN(3) {
					r := request()
					d := engine.Descriptor{Attributes: r.Attributes, Cost: r.Cost, Refund: rnd.IntN(4) == 0}
					if rnd.IntN(4) == 0 {
						d.HasOverride, d.Override = true, limit.PerHour(1+rnd.Int64N(9))
					}
					q.Descriptors = append(q.Descriptors, d)
				}
				if err = e.Decide(t.Context(), &q); err == nil {
					answer(q.Decision)
				}
			case 1:
				r := request()
				r.Peek = false
				d, parts, _, err2 := e.TakeParts(t.Context(), r)
				if err = err2; len(d.Results) > 0 || err == nil {
					answer(d)
				}
				if err == nil && len(parts) > 0 {
					err = e.Settle(t.Context(), parts, now, now, rnd.Int64N(9))
				}
			case 2:
				list := e.Counters([]string{"user", "small", "shadow"}[rnd.IntN(3)], nil)
				key, err2 := list[0].Limit.KeyFrom(attributes(fmt.Sprint("user=u", rnd.IntN(2))))
				if err2 != nil {
					t.Fatal(err2)
				}
				charge := []store.Charge{{Counters: list[0].Counters, Key: key, Cost: rnd.Int64N(9)}}
				if rnd.IntN(5) == 0 {
					err = e.Reset(t.Context(), charge)
				} else {
					err = e.Refund(t.Context(), charge)
				}
			default:
				r := request()
				var d limit.Decision
				if d, err = e.Take(t.Context(), r); err == nil && !r.Peek {
					answer(d)
				}
			}
			if err != nil && !errors.Is(err, store.ErrUnavailable) && !strings.Contains(err.Error(), "broken") {
				t.Fatal(err)
			}
			if !slices.Equal(first.changes, st.changes[was:]) || !slices.Equal(first.changes, second.changes) {
				t.Fatalf("STINT_SEED=%d: observed\n%s\nthe store changed\n%s", seed, strings.Join(first.changes, "\n"), strings.Join(st.changes[was:], "\n"))
			}
			if !slices.Equal(first.decisions, decided) || !slices.Equal(first.decisions, second.decisions) {
				t.Fatalf("STINT_SEED=%d: observed\n%s\ndecided\n%s", seed, strings.Join(first.decisions, "\n"), strings.Join(decided, "\n"))
			}
			decisions += len(decided)
			first.changes, second.changes, first.decisions, second.decisions = nil, nil, nil, nil
		}
		for at, used := range first.used {
			p := at.Spec().Policy
			if p.Algorithm != limit.FixedWindow || p.CountRefused || p.Ban > 0 {
				continue
			}
			one := []store.Charge{{Counters: at.Counters, Key: []byte(at.key)}}
			if _, err := st.Peek(t.Context(), one); err != nil {
				t.Fatal(err)
			}
			if got, want := p.Quota()-one[0].Verdict.Remaining, min(used, p.Quota()); got != want {
				t.Errorf("STINT_SEED=%d: %s %q has used %d, and the events say %d", seed, at.id, at.key, got, want)
			}
		}
		if !slices.Equal(traced, st.takes) {
			t.Error("not every answer to a Take was traced")
		}
		if !maps.Equal(first.used, second.used) {
			t.Error("two observers saw different events")
		}
		for _, c := range st.changes {
			total[observe.Kind(c[0]-'0')]++
		}
	}
	if total[observe.Taken] < 1000 || total[observe.Returned] < 100 || total[observe.Reset] < 10 || decisions < 1000 {
		t.Errorf("too few changes to mean anything: %v", total)
	}
}

// TestObserversCostNoAllocation: an event is a value.
func TestObserversCostNoAllocation(t *testing.T) {
	n := observed(0)
	e, err := engine.New(memory.New(memory.Options{}), parse(t, "limits: [{name: user, key: [user], rate: 1G/s}]"), engine.Options{Observers: []observe.Observer{&n}, Decisions: []engine.DecisionObserver{&n}})
	if err != nil {
		t.Fatal(err)
	}
	req := limit.Request{Attributes: attributes("user=u")}
	if got := testing.AllocsPerRun(200, func() {
		if d, err := e.Take(context.Background(), req); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
	}); got > 1+poolSlack || n != 402 {
		t.Errorf("an observed Take allocates %v times, want 1; %d events", got, n)
	}
}

// observed counts events.
type observed int

func (n *observed) Observe(observe.Event) { *n++ }

func (n *observed) Decided(*engine.Query) { *n++ }

func (n *observed) Follow(*rules.Set) {}
