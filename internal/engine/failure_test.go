package engine_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/explain"
	"github.com/stint-io/stint/internal/tally"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// retryAfter is what a store that does not answer says to those it refuses.
const retryAfter = 3 * time.Second

// flaky is a store that answers, or does not, as the test says. Charges that it
// cannot reach are decided as their OnFailure says.
type flaky struct {
	*memory.Store
	local *memory.Store
	calls []string // the operations that were asked for
	fail  map[string]bool
	away  string // the limit whose counters alone are out of reach, as a part of a cluster is
}

func newFlaky(t *testing.T, yaml string) (*flaky, *bench) {
	t.Helper()
	f := &flaky{local: memory.New(memory.Options{}), fail: map[string]bool{}}
	b := &bench{Table: tally.New(tally.Options{}), t: t}
	b.now.Store(time.Date(2026, 5, 4, 12, 30, 30, 0, time.UTC).UnixNano())
	f.Store = memory.New(memory.Options{Now: func() limit.Time { return limit.Time(b.now.Load()) }})
	b.store = f.Store
	var err error
	if b.Engine, err = engine.New(f, parse(t, yaml), engine.Options{Decisions: []engine.DecisionObserver{b.Table}}); err != nil {
		t.Fatal(err)
	}
	return f, b
}

// down makes the operations fail from here on; none = all of them.
func (f *flaky) down(operations ...string) {
	if len(operations) == 0 {
		operations = []string{"take", "peek", "refund", "finish"}
	}
	f.calls = nil
	clear(f.fail)
	for _, o := range operations {
		f.fail[o] = true
	}
}

func (f *flaky) up() { clear(f.fail) }

func (f *flaky) ask(operation string) error {
	f.calls = append(f.calls, operation)
	if f.fail[operation] {
		return fmt.Errorf("flaky: %s: %w", operation, store.ErrUnavailable)
	}
	return nil
}

func (f *flaky) Take(ctx context.Context, charges []store.Charge) (bool, error) {
	if err := f.ask("take"); err != nil {
		return f.decide(ctx, charges, f.local.Take, err)
	}
	allowed, err := f.Store.Take(ctx, charges)
	for i := range charges {
		if c := &charges[i]; f.away != "" && c.Counters.Spec().ID == f.away {
			c.Failed, c.Verdict = true, limit.Verdict{Allowed: true}
		}
	}
	return allowed, err
}

func (f *flaky) Peek(ctx context.Context, charges []store.Charge) (bool, error) {
	if err := f.ask("peek"); err != nil {
		return f.decide(ctx, charges, f.local.Peek, err)
	}
	return f.Store.Peek(ctx, charges)
}

func (f *flaky) Refund(ctx context.Context, charges []store.Charge) error {
	if err := f.ask("refund"); err != nil {
		return err
	}
	for i := range charges {
		if charges[i].Failed {
			return errors.New("flaky: a refund of what was never taken")
		}
	}
	return f.Store.Refund(ctx, charges)
}

func (f *flaky) Finish(ctx context.Context, charges []store.Charge) error {
	if err := f.ask("finish"); err != nil {
		return err
	}
	return f.Store.Finish(ctx, charges)
}

func (f *flaky) decide(ctx context.Context, charges []store.Charge, local func(context.Context, []store.Charge) (bool, error), failure error) (bool, error) {
	allowed := true
	for i := range charges {
		c := &charges[i]
		c.Failed = true
		how := c.OnFailure
		if how == store.FailTake && c.Shadow {
			how = store.FailAllow // it refuses nothing, and so fails nothing
		}
		switch how {
		case store.FailTake:
			return false, failure
		case store.FailAllow:
			c.Verdict = limit.Verdict{Allowed: true}
		case store.FailReject:
			c.Verdict = limit.Verdict{Reason: limit.ReasonStoreFailure, RetryAfter: retryAfter}
		case store.FailLocal:
			here, err := f.local.Bind(c.Counters.Spec())
			if err != nil {
				return false, err
			}
			own := []store.Charge{*c}
			own[0].Counters = here
			if _, err := local(ctx, own); err != nil {
				return false, err
			}
			c.Verdict = own[0].Verdict
		}
		allowed = allowed && (c.Verdict.Allowed || c.Shadow)
	}
	return allowed, nil
}

// loadFiles loads one configuration from several files.
func loadFiles(t *testing.T, texts ...string) (*rules.Set, error) {
	t.Helper()
	dir := t.TempDir()
	for i, text := range texts {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return rules.Load(dir)
}

func tallyOf(t *testing.T, b *bench, name string) tally.Tally {
	t.Helper()
	for n := range b.Tallies() {
		if n.Limit == name {
			return n
		}
	}
	t.Fatalf("there is no tally of %s", name)
	return tally.Tally{}
}

// Each limit is decided as its on_store_failure says, and the result says that it was.
func TestStoreFailureAsEachLimitSays(t *testing.T) {
	for _, c := range []struct {
		limits string
		status int    // 0 = allowed
		want   uint64 // admitted without the limit
	}{
		{"{name: a, rate: 2/hour, soft: 50%, on_store_failure: allow}", 0, 3},
		{"{name: a, rate: 2/hour, soft: 50%}", 0, 3},
		{"{name: a, rate: 2/hour, on_store_failure: reject, on_exceed: {reject: 418}}", 503, 0},
		{"{name: a, rate: 2/hour, on_store_failure: reject, shadow: true}", 0, 3},
		{"{name: a, rate: 2/hour, on_store_failure: local, on_exceed: {reject: 418}}", 418, 2},
		{"{name: a, rate: 9/hour, on_store_failure: reject, on_exceed: {ban: {for: 1h}}}", 503, 0},
		{"{name: a, rate: 9/hour, on_store_failure: local, on_exceed: {ban: {for: 1h, after: 2/hour}}}", 429, 2},
	} {
		f, b := newFlaky(t, "limits:\n  - "+c.limits+"\n")
		f.down()
		var d limit.Decision
		for range 3 {
			d = b.take(1)
			if r := d.Results[0]; !r.StoreFailed || r.Soft {
				t.Errorf("%s: store failed is %v, soft is %v", c.limits, r.StoreFailed, r.Soft)
			}
		}
		if d.Status != c.status || d.Allowed != (c.status == 0) {
			t.Errorf("%s: allowed %v with status %d, want status %d", c.limits, d.Allowed, d.Status, c.status)
		}
		if c.status == 503 && (d.Refused().Reason != limit.ReasonStoreFailure || d.RetryAfter() != retryAfter) {
			t.Errorf("%s: refused for %v, retry after %v", c.limits, d.Refused().Reason, d.RetryAfter())
		}
		if got := tallyOf(t, b, "a").Unlimited[engine.StoreFailed]; got != c.want {
			t.Errorf("%s: tallied %d, want %d", c.limits, got, c.want)
		}
		f.up()
		d = b.take(1)
		wantAllowedAny(t, d)
		if d.Results[0].StoreFailed || tallyOf(t, b, "a").Unlimited[engine.StoreFailed] != c.want {
			t.Errorf("%s: %+v with the store back", c.limits, d.Results[0])
		}
	}
}

// A ban that cannot be looked up refuses as a store failure and not as a ban, and
// does not hide that the limit itself refused.
func TestStoreFailureIsNoBan(t *testing.T) {
	f, b := newFlaky(t, "limits:\n  - {name: a, rate: 1/hour, on_store_failure: reject, on_exceed: {ban: {for: 1h, after: 9/hour}}}\n")
	f.down()
	wantRefused(t, b.take(1), "a", limit.ReasonStoreFailure)
	f.up()
	wantAllowed(t, b.take(1), 0)
	wantRefused(t, b.take(1), "a", limit.ReasonRate)
}

// A refusal that the client can help has its own status, also beside limits that
// were admitted without the store; the first limit that refuses speaks.
func TestStoreFailureBesideARefusal(t *testing.T) {
	f, b := newFlaky(t, `
limits:
  - {name: open, rate: 1/hour}
  - {name: share, rate: 1/hour, on_store_failure: local}
  - {name: closed, key: [user], rate: 1/hour, on_store_failure: reject}
`)
	f.down()
	wantAllowedAny(t, b.take(1))
	d := b.take(1, "user=u")
	wantRefused(t, d, "share", limit.ReasonRate)
	if d.Status != 429 || d.Results[2].Reason != limit.ReasonStoreFailure {
		t.Errorf("status %d, %+v", d.Status, d.Results)
	}
	// Limits that were admitted without the store have no standing to ask for.
	f.calls = nil
	if d := b.peek(1, "user=u"); d.Allowed || !slices.Equal(f.calls, []string{"peek"}) {
		t.Errorf("%+v after %v, want a refusal after one peek", d, f.calls)
	}
}

const envoyLimits = `
domain: edge
descriptors:
  - key: user
    rate_limit: {unit: hour, requests_per_unit: 5}
`

// Envoy's rules, and limits that come with requests, leave the choice to Envoy: the
// store is asked once, and its error goes out.
func TestStoreFailureOfEnvoysRulesIsAnError(t *testing.T) {
	f, b := newFlaky(t, envoyLimits)
	override := engine.Descriptor{
		Attributes: attributes("user=u"), Cost: 1, HasOverride: true,
		Override: limit.Rate{Count: 5, Period: time.Hour},
	}
	for _, d := range []engine.Descriptor{{Attributes: attributes("user=u"), Cost: 1}, override} {
		q := engine.Query{Domain: "edge", Descriptors: []engine.Descriptor{d}}
		f.down()
		if err := b.Decide(t.Context(), &q); !errors.Is(err, store.ErrUnavailable) || len(f.calls) != 1 {
			t.Errorf("%v after %v, want store.ErrUnavailable after one take", err, f.calls)
		}
		f.up()
		if err := b.Decide(t.Context(), &q); err != nil || !q.Decision.Allowed || q.Decision.Results[0].Remaining != 4 {
			t.Errorf("with the store back: %+v, %v", q.Decision, err)
		}
	}
}

// swapping is a store that fails while the configuration is being replaced.
type swapping struct {
	*memory.Store
	swap  func()
	takes int
}

func (s *swapping) Take(context.Context, []store.Charge) (bool, error) {
	s.takes++
	s.swap()
	return false, store.ErrUnavailable
}

// After a swap a request is decided again, but not one that an unavailable store may have
// charged.
func TestUnavailableStoreIsNotAskedAgainAfterASwap(t *testing.T) {
	s := &swapping{Store: memory.New(memory.Options{})}
	e, err := engine.New(s, parse(t, envoyLimits), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s.swap = func() {
		if err := e.Swap(parse(t, envoyLimits)); err != nil {
			t.Error(err)
		}
	}
	q := engine.Query{Domain: "edge", Descriptors: []engine.Descriptor{{Attributes: attributes("user=u"), Cost: 1}}}
	if err := e.Decide(t.Context(), &q); !errors.Is(err, store.ErrUnavailable) || s.takes != 1 {
		t.Errorf("%v after %d takes, want store.ErrUnavailable after 1", err, s.takes)
	}
}

// A refund that the store does not take is lost where the limit can decide without
// the store, and an error where it cannot. In neither case is it tried again.
func TestRefundWithoutTheStore(t *testing.T) {
	f, b := newFlaky(t, "limits:\n  - {name: a, key: [user], rate: 5/hour}\n")
	wantAllowed(t, b.take(3, "user=u"), 2)
	f.down("refund")
	q := engine.Query{Descriptors: []engine.Descriptor{{Attributes: attributes("user=u"), Cost: 3, Refund: true}}}
	if err := b.Decide(t.Context(), &q); err != nil || !q.Decision.Allowed {
		t.Fatalf("%+v, %v", q.Decision, err)
	}
	wantRemaining(t, q.Decision, 2)
	if !slices.Equal(f.calls, []string{"refund", "take"}) || b.NotReturned() != 1 {
		t.Errorf("calls %v, %d not returned", f.calls, b.NotReturned())
	}

	f, b = newFlaky(t, envoyLimits)
	f.down("refund")
	q.Domain = "edge"
	if err := b.Decide(t.Context(), &q); !errors.Is(err, store.ErrUnavailable) || !slices.Equal(f.calls, []string{"refund"}) {
		t.Errorf("%v after %v, want store.ErrUnavailable after the refund", err, f.calls)
	}
}

const quotaLimits = `
domain: edge
descriptors:
  - {key: one, rate_limit: {unit: hour, requests_per_unit: 0}, quota_mode: true}
  - {key: two, rate_limit: {unit: hour, requests_per_unit: 0}, quota_mode: true}
`

// A request that all quota rules refuse stays refused when the store does not take
// back what the other limits gave, and the store is not asked over and over.
func TestGiveBackWithoutTheStore(t *testing.T) {
	f := &flaky{Store: memory.New(memory.Options{}), local: memory.New(memory.Options{}), fail: map[string]bool{}}
	set, err := loadFiles(t, quotaLimits, "limits:\n  - {name: all, key: [one], rate: 5/hour}\n  - {name: places, key: [one], algorithm: concurrency, max_in_flight: 5}\n")
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(f, set, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	q := engine.Query{Domain: "edge", Descriptors: []engine.Descriptor{
		{Attributes: attributes("one=1"), Cost: 1}, {Attributes: attributes("two=2"), Cost: 1},
	}}
	for _, c := range []struct {
		down  string
		calls []string
	}{
		{"nothing", []string{"take", "refund", "finish", "peek"}},
		{"finish", []string{"take", "refund", "finish"}},
		{"refund", []string{"take", "refund"}},
	} {
		f.down(c.down)
		before := e.NotReturned()
		if err := e.Decide(t.Context(), &q); err != nil || q.Decision.Allowed || q.Decision.Permit != 0 {
			t.Errorf("%s down: %+v, %v, want a refusal", c.down, q.Decision, err)
		}
		want := before + 1
		if c.down == "nothing" {
			want = before
		}
		if !slices.Equal(f.calls, c.calls) || e.NotReturned() != want {
			t.Errorf("%s down: calls %v, %d not returned, want %v and %d", c.down, f.calls, e.NotReturned(), c.calls, want)
		}
	}
}

// What a limit admitted without its counters was taken from nowhere, and is not given
// back to them.
func TestGiveBackOnlyWhatWasTaken(t *testing.T) {
	set, err := loadFiles(t, quotaLimits, "limits:\n  - {name: away, key: [one], rate: 5/hour}\n  - {name: here, key: [one], rate: 5/hour}\n")
	if err != nil {
		t.Fatal(err)
	}
	f := &flaky{Store: memory.New(memory.Options{}), local: memory.New(memory.Options{}), fail: map[string]bool{}}
	e, err := engine.New(f, set, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range set.Limits() {
		if l.Name == "away" {
			f.away = l.Base.ID
		}
	}
	q := engine.Query{Domain: "edge", Descriptors: []engine.Descriptor{
		{Attributes: attributes("one=1"), Cost: 1}, {Attributes: attributes("two=2"), Cost: 1},
	}}
	// Refund errs when it gets what failed.
	if err := e.Decide(t.Context(), &q); err != nil || q.Decision.Allowed || !slices.Equal(f.calls, []string{"take", "refund", "peek"}) {
		t.Errorf("%+v, %v after %v, want a refusal after a take and a refund", q.Decision, err, f.calls)
	}
	for _, r := range q.Decision.Results {
		if r.Limit == "here" && r.Remaining != 5 {
			t.Errorf("%d left of what was given back, want 5", r.Remaining)
		}
	}
}

// Several quota rules decide together, and not at all when they cannot be read.
func TestStoreFailureOfQuotasIsAnError(t *testing.T) {
	f, b := newFlaky(t, quotaLimits)
	q := engine.Query{Domain: "edge", Descriptors: []engine.Descriptor{
		{Attributes: attributes("one=1"), Cost: 1}, {Attributes: attributes("two=2"), Cost: 1},
	}}
	f.down()
	for _, q.Peek = range []bool{false, true} {
		if err := b.Decide(t.Context(), &q); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("peek %v: %+v, %v, want store.ErrUnavailable", q.Peek, q.Decision, err)
		}
	}
}

// The standing of limits is a courtesy: a refused request stays refused, with what
// the first peek knew, when the store does not answer the second.
func TestStandingWithoutTheStore(t *testing.T) {
	f, b := newFlaky(t, `
limits:
  - {name: all, rate: 10/hour}
  - {name: named, key: [name], rate: 5/hour, missing: reject}
`)
	wantAllowed(t, b.take(3, "name=n"), 7, 2)
	peeks := 0
	b2 := &secondPeek{flaky: f, count: &peeks}
	e, err := engine.New(b2, b.Set(), engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := e.Take(t.Context(), limit.Request{Cost: 2})
	if err != nil {
		t.Fatal(err)
	}
	wantRefused(t, d, "named", limit.ReasonMissing)
	wantRemaining(t, d, 7, 0)
	if peeks != 2 || d.Results[0].StoreFailed {
		t.Errorf("%d peeks, %+v", peeks, d.Results[0])
	}
}

// secondPeek is a store that does not answer every second peek.
type secondPeek struct {
	*flaky
	count *int
}

func (s *secondPeek) Peek(ctx context.Context, charges []store.Charge) (bool, error) {
	*s.count++
	if *s.count%2 == 0 {
		s.down("peek")
	} else {
		s.up()
	}
	return s.flaky.Peek(ctx, charges)
}

// A place that cannot be given back is an error of Finish alone: it is counted,
// asking again is harmless, and the request that held it is not concerned.
func TestFinishWithoutTheStore(t *testing.T) {
	f, b := newFlaky(t, "limits:\n  - {name: places, algorithm: concurrency, max_in_flight: 1}\n")
	d := b.take(1)
	if d.Permit == 0 {
		t.Fatalf("no permit: %+v", d)
	}
	f.down()
	if err := b.Finish(t.Context(), limit.Request{}, d.Permit); !errors.Is(err, store.ErrUnavailable) || b.NotReturned() != 1 {
		t.Errorf("%v, %d not returned", err, b.NotReturned())
	}
	wantAllowedAny(t, b.take(1)) // without the store, as the limit says
	f.up()
	wantRefused(t, b.take(1), "places", limit.ReasonConcurrency)
	if err := b.Finish(t.Context(), limit.Request{}, d.Permit); err != nil {
		t.Error(err)
	}
	wantAllowedAny(t, b.take(1))
}

// Explain invents no figures while nobody knows them.
func TestExplainWithoutTheStore(t *testing.T) {
	f, b := newFlaky(t, "limits:\n  - {name: a, rate: 5/hour, on_store_failure: reject}\n")
	wantAllowed(t, b.take(3), 2)
	f.down()
	x, err := explain.Request(t.Context(), b.Engine, limit.Request{})
	if err != nil {
		t.Fatal(err)
	}
	if x.Decision.Allowed || x.Decision.Status != 503 || !x.Decision.Results[0].StoreFailed || x.Limits[0].Used != 0 ||
		x.Limits[0].OnStoreFailure.String() != "reject" {
		t.Errorf("%+v", x)
	}
	if got := tallyOf(t, b, "a").Unlimited[engine.StoreFailed]; got != 0 {
		t.Errorf("a peek was counted: %d", got)
	}
}
