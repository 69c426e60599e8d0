package engine

import (
	"errors"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
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
	r := rand.New(rand.NewPCG(5, 5))
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

// counting counts bound counters, and fails on demand.
type counting struct {
	*memory.Store
	mu           sync.Mutex
	bound        map[string]int
	bind, unbind error
}

func (s *counting) Bind(spec store.Spec) (store.Counters, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bind != nil {
		return nil, s.bind
	}
	s.bound[spec.ID]++
	return s.Store.Bind(spec)
}

func (s *counting) Unbind(c store.Counters) error {
	if s.unbind != nil {
		return s.unbind
	}
	return s.Store.Unbind(c)
}

func newOverrides(most int) (*overrides, *counting) {
	s := &counting{Store: memory.New(memory.Options{}), bound: map[string]int{}}
	o := new(overrides)
	o.init(s, most)
	return o, s
}

// The counters of a period are kept while a window of it may be open: for its length and ten
// seconds after the last use, to a second. Room is made when it is needed, at most once a
// second.
func TestWhenOverridesGo(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	o, _ := newOverrides(1)
	begun := time.Unix(1000, 0)
	get := func(period, after time.Duration) bool {
		t.Helper()
		_, err := o.get(period, begun.Add(after))
		if err != nil && !errors.Is(err, ErrBadRequest) {
			t.Fatal(err)
		}
		return err == nil
	}
	const minute, second = time.Minute, time.Second
	if !get(minute, 0) || get(second, 0) {
		t.Fatal("there is room for one")
	}
	if !get(minute, second) || !get(minute, 30*second) || !get(minute, 31*second) || !get(minute, 31*second-1) {
		t.Error("one that is there is not found")
	}
	last := 30 * second // uses within a second of a note are not noted
	if get(second, last+minute+overrideGrace) {
		t.Error("it is dropped when its window may be open")
	}
	if get(second, last+minute+overrideGrace+second-1) {
		t.Error("it is looked for twice within a second")
	}
	if !get(second, last+minute+overrideGrace+second) {
		t.Error("it is not dropped")
	}
	// A window that is shorter than the grace is kept for that.
	at := last + minute + overrideGrace + second
	if get(minute, at+10*second) || !get(minute, at+11*second+1) {
		t.Error("one of a second is kept for eleven")
	}
	if overrideGrace != 10*second {
		t.Errorf("the grace is %v", overrideGrace)
	}
}

// Counters that cannot be had or dropped are an error that is not the caller's, and what was
// there stays.
func TestOverridesThatCannotBeBound(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	o, s := newOverrides(1)
	fault := errors.New("no")
	s.bind = fault
	now := time.Unix(1000, 0)
	if v, err := o.get(time.Minute, now); v != nil || !errors.Is(err, fault) || errors.Is(err, ErrBadRequest) || len(o.byPeriod) != 0 {
		t.Errorf("%v, %v", v, err)
	}
	s.bind = nil
	v, err := o.get(time.Minute, now)
	if err != nil || v.window != time.Minute || !v.counters.Spec().Policy.CountRefused {
		t.Fatalf("%+v, %v", v, err)
	}
	s.unbind = fault
	if _, err := o.get(time.Hour, now.Add(time.Hour)); !errors.Is(err, fault) || len(o.byPeriod) != 1 {
		t.Errorf("it cannot be dropped: %v, %d are there", err, len(o.byPeriod))
	}
	s.unbind = nil
	if _, err := o.get(time.Hour, now.Add(2*time.Hour)); err != nil || len(o.byPeriod) != 1 {
		t.Errorf("%v, %d are there", err, len(o.byPeriod))
	}
}

// However many ask at once for a period that is new, it has one table.
func TestOneTableForEachPeriod(t *testing.T) {
	o, s := newOverrides(1000)
	for n := range 200 {
		var all sync.WaitGroup
		var begun atomic.Int32
		o.mu.Lock() // they all find nothing, and then wait for each other
		for range 8 {
			all.Go(func() {
				begun.Add(1)
				if _, err := o.get(time.Duration(1+n)*time.Second, time.Now()); err != nil {
					t.Error(err)
				}
			})
		}
		for begun.Load() < 8 {
			runtime.Gosched()
		}
		for range 100 {
			runtime.Gosched()
		}
		o.mu.Unlock()
		all.Wait()
	}
	for id, n := range s.bound {
		if n != 1 {
			t.Errorf("%s was bound %d times", id, n)
		}
	}
	if len(s.bound) != 200 {
		t.Errorf("%d tables for 200 periods", len(s.bound))
	}
}

// What one descriptor asks of its limit another never meets: the keys of different domains,
// names and values differ, however they are split.
func TestOverrideKeysAreApart(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	seen := map[string]string{}
	for _, domain := range []string{"", "a", "ab"} {
		for _, pairs := range [][]limit.Attribute{nil, {{Name: "a"}}, {{Value: "a"}}, {{Name: "b", Value: "c"}}, {{Name: "bc"}}, {{Name: "b"}, {Name: "c"}}, {{Name: "b", Value: "\x01"}, {Name: "c"}}, {{}, {}}} {
			key, what := string(appendOverrideKey(nil, domain, pairs)), fmt.Sprintf("%q %q", domain, pairs)
			if was, ok := seen[key]; ok {
				t.Errorf("%s and %s are one", was, what)
			}
			seen[key] = what
		}
	}
}

// What was noted of the use of an override is at most a second old.
func TestUseIsNoted(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	var v override
	begun := time.Unix(1000, 0)
	v.touch(begun)
	for _, c := range []struct{ at, noted time.Duration }{{time.Second, 0}, {time.Second + 1, time.Second + 1}, {time.Second, time.Second + 1}, {2 * time.Second, time.Second + 1}, {3 * time.Second, 3 * time.Second}} {
		v.touch(begun.Add(c.at))
		if got := time.Duration(v.lastUsed.Load() - begun.UnixNano()); got != c.noted {
			t.Errorf("used after %v: noted %v", c.at, got)
		}
	}
}

// Requests may bring limits of 4096 different periods at a time.
func TestMostOverrides(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	e, err := New(memory.New(memory.Options{}), &rules.Set{}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	e.overrides.store = &counting{Store: memory.New(memory.Options{}), bound: map[string]int{}}
	now := time.Unix(1000, 0)
	for i := range 4097 {
		if _, err := e.overrides.get(time.Duration(1+i)*time.Millisecond, now); (err == nil) != (i < 4096) || err != nil && !errors.Is(err, ErrBadRequest) {
			t.Fatalf("period %d: %v", i+1, err)
		}
	}
}
