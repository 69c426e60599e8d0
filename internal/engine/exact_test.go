package engine

import (
	"math"
	"math/big"
	"testing"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// More than a share of a quota is used: as with exact fractions, whatever the numbers.
func TestAboveIsExact(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	check := func(quota, nominal, left int64, percent int) {
		t.Helper()
		used := new(big.Int).Sub(big.NewInt(quota), big.NewInt(left))
		used.Mul(used, big.NewInt(100))
		want := used.Cmp(new(big.Int).Mul(big.NewInt(nominal), big.NewInt(int64(percent)))) > 0
		if got := above(quota, nominal, left, percent); got != want {
			t.Errorf("%d of %d left, above %d %% of %d: %v, want %v", left, quota, percent, nominal, got, want)
		}
	}
	for quota := range int64(20) {
		for left := range quota + 3 { // more than all may be left for a moment: none is used then
			for percent := 1; percent <= 100; percent++ {
				check(quota, quota, left, percent)
				check(quota, quota/2, left, percent)
			}
		}
	}
	r := seeding.Rand(t)
	for range 20_000 {
		quota := 1 + r.Int64N(math.MaxInt64)>>r.IntN(62)
		percent := 1 + r.IntN(100)
		edge := quota - quota/100*int64(percent)
		check(quota, quota, min(quota, max(0, edge+r.Int64N(5)-2)), percent)
		check(quota, 1+r.Int64N(quota), r.Int64N(quota), percent)
	}
}

// A ban makes the limit's refusal its own; one that cannot be looked up does not hide that the
// limit itself refused. Whatever refuses, the longest wait counts and nothing is left.
func TestBanInPlaceOfAVerdict(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	fits := limit.Verdict{Allowed: true, Remaining: 7, ResetAfter: 5, Delay: 3}
	full := limit.Verdict{Reason: limit.ReasonRate, Remaining: 2, RetryAfter: 4, ResetAfter: 9}
	banned := limit.Verdict{Reason: limit.ReasonRate, RetryAfter: 6, ResetAfter: 8}
	unknown := limit.Verdict{Reason: limit.ReasonStoreFailure, RetryAfter: 1}
	for name, c := range map[string]struct{ v, ban, want limit.Verdict }{
		"neither":          {fits, limit.Verdict{Allowed: true, Remaining: 1, RetryAfter: 99}, fits},
		"the limit":        {full, limit.Verdict{Allowed: true}, full},
		"the ban":          {fits, banned, limit.Verdict{Reason: limit.ReasonBanned, RetryAfter: 6, ResetAfter: 8}},
		"both":             {full, banned, limit.Verdict{Reason: limit.ReasonBanned, RetryAfter: 6, ResetAfter: 9}},
		"unknown":          {fits, unknown, limit.Verdict{Reason: limit.ReasonStoreFailure, RetryAfter: 1, ResetAfter: 5}},
		"unknown and full": {full, unknown, limit.Verdict{Reason: limit.ReasonRate, RetryAfter: 4, ResetAfter: 9}},
	} {
		v := c.v
		if foldBan(&v, &c.ban); v != c.want {
			t.Errorf("%s: %+v, want %+v", name, v, c.want)
		}
	}
}

// A query is kept for the next request up to a bound on each of its buffers, and what is kept
// refers to nothing of the request.
func TestQueriesThatAreKept(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, c := range []struct {
		q    Query
		kept bool
	}{
		{Query{}, true},
		{Query{charges: make([]store.Charge, 1024), keys: make([]byte, 32<<10), Descriptors: make([]Descriptor, 1024)}, true},
		{Query{charges: make([]store.Charge, 1025)}, false},
		{Query{keys: make([]byte, 32<<10+1)}, false},
		{Query{Descriptors: make([]Descriptor, 1025)}, false},
	} {
		if c.q.Small() != c.kept {
			t.Errorf("%d charges, %d bytes of keys, %d descriptors: kept %v", len(c.q.charges), len(c.q.keys), len(c.q.Descriptors), c.q.Small())
		}
	}
	var e Engine
	q := &Query{}
	q.single(limit.Request{Attributes: []limit.Attribute{{Name: "a", Value: "b"}}})
	if e.release(q); q.Descriptors != nil || q.one[0].Attributes != nil {
		t.Errorf("it refers to %v", q.one[0].Attributes)
	}
}

// Permits are numbers that every JSON parser reads, of more than 2^50 values, and never 0.
func TestPermitsAreNumbers(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	seen, largest := map[uint64]bool{}, uint64(0)
	for range 1000 {
		p := newPermit()
		if p == 0 || p >= 1<<53 || seen[p] {
			t.Fatalf("permit %d", p)
		}
		seen[p], largest = true, max(largest, p)
	}
	if largest < 1<<52 {
		t.Errorf("the largest of 1000 permits is %d", largest)
	}
}
