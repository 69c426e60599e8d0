package redis

import (
	"errors"
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Charges of one request on one key become one part, whose answer each of them gets, however
// many keys there are between; those of a refund stay apart. Unlimited charges have no part.
func TestChargesBecomeParts(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	s := &Store{}
	counters := func(p limit.Policy) *Counters {
		r, err := newRule(p)
		if err != nil {
			t.Fatal(err)
		}
		c := &Counters{store: s, id: "c"}
		c.bound.Store(&bound{r, keyHead(DefaultPrefix, r.kind, fmt.Sprint(p.Burst))})
		return c
	}
	c, free := counters(still(5)), counters(limit.Policy{Unlimited: true, Burst: 1})
	for _, n := range []int{1, few - 1, few, few + 1, 3 * few} {
		for _, together := range []bool{true, false} {
			var charges []store.Charge
			for round := range 2 {
				for k := range n {
					charges = append(charges, charge(c, fmt.Sprint(k), int64(1+k+round)))
				}
				charges = append(charges, charge(free, "0", 9))
			}
			o := newOperation(verbTake, 0)
			o.fill(charges, together)
			want := 2 * n
			if together {
				want = n
			}
			if len(o.parts) != want || len(o.home) != len(charges) {
				t.Fatalf("%d keys, together %v: %d parts for %d charges, want %d", n, together, len(o.parts), len(o.home), want)
			}
			for i := range o.parts {
				o.parts[i].verdict.Remaining = int64(100 + i)
			}
			o.answer(charges)
			for i := range charges {
				k := i % (n + 1)
				if k == n {
					if charges[i].Verdict != unlimited || o.home[i] != -1 {
						t.Errorf("an unlimited charge is told %+v", charges[i].Verdict)
					}
					continue
				}
				part, cost := k, int64(1+k)+int64(2+k)
				if !together {
					part, cost = i-i/(n+1), charges[i].Cost
				}
				if got := o.parts[o.home[i]]; o.home[i] != part || got.cost != cost || charges[i].Verdict.Remaining != int64(100+part) {
					t.Errorf("%d keys, together %v: charge %d is part %d of cost %d, want part %d of %d", n, together, i, o.home[i], got.cost, part, cost)
				}
			}
			o.release()
		}
	}
	o := newOperation(verbTake, 0)
	o.fill([]store.Charge{charge(c, "k", limit.MaxCount), charge(c, "k", limit.MaxCount), charge(c, "k", 1)}, true)
	if o.parts[0].cost != math.MaxInt64 {
		t.Errorf("costs that no number holds sum up to %d", o.parts[0].cost)
	}
}

// What was admitted without the server is kept for each key: charges of one window and one
// policy add up, later ones take the place of those of a window before, and there are not
// more keys than the bound.
func TestChargesKeptWithoutTheServer(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	compiled := func(p limit.Policy) *rule {
		r, err := newRule(p)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	bucket, window, other := compiled(tokens(1, time.Second, 10)), compiled(limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.PerSecond(10)}), compiled(tokens(2, time.Second, 10))
	const now = limit.Time(1_700_000_000_000_000_000)
	var l localCharges
	add := func(key string, r *rule, cost int64, at limit.Time, want int64) {
		t.Helper()
		l.add(key, &localCharge{rule: r, cost: cost, counts: true}, at)
		if got := l.keys[key]; got == nil || got.cost != want || got.rule != r {
			t.Errorf("%s: %+v, want a cost of %d", key, got, want)
		}
	}
	add("b", bucket, 3, now, 3)
	add("b", bucket, 4, now+5e9, 7)
	if reset := bucket.bucket.Peek(l.keys["b"].full, now+5e9, 0).ResetAfter; reset != 4*time.Second {
		t.Errorf("it owes for %v, want 4s: the 3 have been paid by then", reset)
	}
	add("b", other, 2, now+5e9, 2)
	add("b", other, math.MaxInt64, now+5e9, math.MaxInt64)
	add("w", window, 3, now, 3)
	add("w", window, 4, now+999_999_999, 7)
	add("w", window, 5, now+1_000_000_000, 5)
	l.refunded("w", 2)
	l.refunded("nobody", 2)
	add("w", window, 1, now+1_000_000_000, 4)
	l.refunded("w", 9)
	add("w", window, 1, now+1_000_000_000, 1)
	for i := 0; len(l.keys) < maxLocalCharges; i++ {
		l.add(fmt.Sprint(i), &localCharge{rule: window, cost: 1}, now)
	}
	l.add("one more", &localCharge{rule: window, cost: 1}, now)
	if len(l.keys) != maxLocalCharges || l.keys["one more"] != nil {
		t.Errorf("%d keys, want at most %d", len(l.keys), maxLocalCharges)
	}
	add("w", window, 1, now+1_000_000_000, 2)
}

// An answer of the script that package limit does not agree with is an error: another number
// of requests admitted, or findings that nobody asked for.
func TestDisagreementIsNoticed(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	r, err := newRule(still(5))
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		admitted int64
		findings []finding
		want     error
	}{{1, nil, nil}, {0, nil, errDisagree}, {2, nil, errDisagree}, {1, []finding{{}}, errDisagree}, {0, []finding{{}}, errDisagree}} {
		b, o := new(batch), newOperation(verbTake, 0)
		o.parts = append(o.parts, part{rule: r, key: "k", cost: 1})
		b.reset()
		b.accept(o)
		b.arrange()
		if got := b.replay(1e9, tt.admitted, tt.findings); !errors.Is(got, tt.want) {
			t.Errorf("%d admitted, %d findings: %v, want %v", tt.admitted, len(tt.findings), got, tt.want)
		}
		o.release()
	}
}

// Without Redis, and without counters that stand in, a charge is decided as it says: it is
// admitted as by a limit that is unused, refused for a second, or an error.
func TestDecidedAsOnFailureSays(t *testing.T) {
	s, err := New(Options{Addrs: []string{unusedAddress(t)}, Timeout: patient})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	c := bind(t, s, "c", still(7))
	for _, tt := range []struct {
		how     store.OnFailure
		shadow  bool
		allowed bool
		fails   bool
		want    limit.Verdict
	}{
		{store.FailAllow, false, true, false, limit.Verdict{Allowed: true, Remaining: 7}},
		{store.FailReject, false, false, false, limit.Verdict{Reason: limit.ReasonStoreFailure, RetryAfter: time.Second}},
		{store.FailReject, true, true, false, limit.Verdict{Reason: limit.ReasonStoreFailure, RetryAfter: time.Second}},
		{store.FailTake, false, false, true, limit.Verdict{}},
		{store.FailTake, true, true, false, limit.Verdict{Allowed: true, Remaining: 7}},
		{store.FailLocal, false, false, true, limit.Verdict{}},
		{store.FailLocal, true, true, false, limit.Verdict{Allowed: true, Remaining: 7}},
	} {
		for name, ask := range map[string]func([]store.Charge) (bool, error){
			"take": func(charges []store.Charge) (bool, error) { return s.Take(t.Context(), charges) },
			"peek": func(charges []store.Charge) (bool, error) { return s.Peek(t.Context(), charges) },
		} {
			charges := []store.Charge{charge(c, "k", 3)}
			charges[0].OnFailure, charges[0].Shadow = tt.how, tt.shadow
			ok, err := ask(charges)
			if ok != tt.allowed || (err != nil) != tt.fails || tt.fails != errors.Is(err, store.ErrUnavailable) {
				t.Errorf("%s: %+v: %v, %v", name, tt, ok, err)
			} else if !tt.fails && (charges[0].Verdict != tt.want || !charges[0].Failed) {
				t.Errorf("%s: %+v: told %+v", name, tt, charges[0])
			}
		}
	}
}
