package memory

import (
	"fmt"
	"log/slog"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Where the budget is full a new key gets a place at once when another limit's keys have
// drained: the room is taken back in the same Take.
func TestDrainedKeysOfAnotherLimitMakeRoom(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for name, p := range floods() {
		t.Run(name, func(t *testing.T) {
			clock := newManual()
			s := New(Options{MaxBytes: 512 << 10, Now: clock.now})
			drained := mustBind(t, s, "drained", limit.Policy{Rate: limit.PerSecond(1), Burst: 1})
			grows := mustBind(t, s, "grows", p)
			fill(t, s, drained, 1)
			flood := func(prefix string) (had int) {
				over := grows.account.overflowed.Load()
				for next := oneShard(grows, prefix); ; had++ {
					charge := one(grows, next())
					charge.Permit = 1
					if mustTake(t, s, charge); grows.account.overflowed.Load() > over {
						return had
					}
				}
			}
			before := flood("a")
			clock.advance(10 * time.Second)
			// The first new key begins with what new keys shared; the others are counted.
			if got := flood("b"); got < before/2 || got < 100 {
				t.Errorf("%d keys had places before, and %d more when the other limit's had drained", before, got)
			}
		})
	}
}

// A table that is to shrink needs no room for it in the budget, which may be full, or more
// than full.
func TestShrinkingNeedsNoRoom(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for name, p := range floods() {
		clock := newManual()
		s := New(Options{Now: clock.now})
		c := mustBind(t, s, name, p)
		for i := range 5000 {
			charge := one(c, fmt.Sprint(i))
			charge.Permit = 1
			mustTake(t, s, charge)
		}
		clock.advance(100 * time.Hour)
		was := s.Stats().Bytes
		extra := s.budget.max - was + 1000
		c.account.charge(extra)
		for range 10 {
			c.table.Load().get().sweep()
		}
		if got := s.Stats(); got.Bytes-extra > was/8 || got.Keys > 5000/8 {
			t.Errorf("%s: %d keys in %d bytes are left of 5000 in %d", name, got.Keys, got.Bytes-extra, was)
		}
	}
}

// A Take over several limits drops what is fresh for a new key's place, as a Take of one
// does: keys that come once leave nothing behind.
func TestTakesOverSeveralDropWhatIsFresh(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for name, p := range floods() {
		clock := newManual()
		s := New(Options{Now: clock.now})
		c, other := mustBind(t, s, name, p), mustBind(t, s, "other", limit.Policy{Rate: limit.PerSecond(1), Burst: 3})
		for i := range 5000 {
			charges := []store.Charge{one(c, fmt.Sprint(i)), one(other, fmt.Sprint(i))}
			charges[0].Permit = 1
			mustTake(t, s, charges...)
			clock.advance(3 * time.Hour)
		}
		if got := s.Stats().Keys; got > 2*shardCount*minSlots {
			t.Errorf("%s: %d keys have a state when all but one are as good as new", name, got)
		}
	}
}

// A Take over many new keys, which begins again when one key's place costs another's, makes
// each key one place and no more.
func TestTakeOverManyNewKeysMakesEachOnePlace(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for name, p := range floods() {
		s := New(Options{Now: newManual().now})
		c := mustBind(t, s, name, p)
		const n = 1500
		charges := make([]store.Charge, n)
		for i := range charges {
			charges[i] = one(c, fmt.Sprint(i))
			charges[i].Permit = uint64(1 + i)
		}
		if !mustTake(t, s, charges...) {
			t.Errorf("%s: new keys were refused", name)
		}
		if got := s.Stats(); got.Keys != n || got.Bytes != held(t, c) {
			t.Errorf("%s: %d keys have a state in %d bytes, want %d in %d", name, got.Keys, got.Bytes, n, held(t, c))
		}
	}
}

// What is given back while the key's shard grows is given back.
func TestUndoDuringGrowth(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	clock := &interrupted{manual: newManual()}
	k := mustKeyed(t, limit.Policy{Rate: limit.PerHour(1), Burst: 100}, Options{Now: clock.now})
	c, next := k.counters, oneShard(k.counters, "k")
	key := next()
	h := c.hashString(key)
	hold, v, done := wordsOf(c).prepare(h, 30)
	if !done || !v.Allowed {
		t.Fatalf("%+v, %v", v, done)
	}
	k.AllowN(key, 5) // so that undoing has to look at the time
	grown := false
	clock.then = func() {
		was := wordsOf(c).shards[shardOf(h)].slots.Load()
		for range 100 {
			k.Allow(next())
		}
		grown = wordsOf(c).shards[shardOf(h)].slots.Load() != was
	}
	keyedPreparer{keyedTaker{keyed: k}}.Rollback(hold)
	if got, err := k.Peek(key, 0); err != nil || got.Remaining != 95 || !grown {
		t.Errorf("%+v, %v, grown: %v; want 95 to remain of 100", got, err, grown)
	}
}

// A table that was given a later beginning is not given another by a Take that saw the old
// table: what was taken since stays taken.
func TestRebaseOnlyOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	clock := newManual()
	k := mustKeyed(t, limit.Policy{Rate: limit.PerHour(1), Burst: 10}, Options{Now: clock.now})
	k.AllowN("a", 2)
	old := wordsOf(k.counters)
	k.counters.rebase(old)
	k.AllowN("a", 3)
	k.AllowN("b", 4)
	k.counters.rebase(old)
	for key, want := range map[string]int64{"a": 5, "b": 6} {
		if v, err := k.Peek(key, 0); err != nil || v.Remaining != want {
			t.Errorf("%s: %+v, %v, want %d to remain", key, v, err, want)
		}
	}
}

// Several charges on one bucket are answered as one charge of their sum, each of them; and
// one that costs nothing is admitted where there is no room for what costs something.
func TestChargesOnOneBucketAreAnsweredAsOne(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for name, p := range floods() {
		clock := newManual()
		s := New(Options{Now: clock.now})
		c, twin := mustBind(t, s, name, p), mustBind(t, s, "twin", p)
		for key, costs := range map[string][]int64{"fits": {1, 1}, "all": {1, 1, 1}, "more": {1, 1, 2}, "never": {3, 3}} {
			for what, ask := range map[string]func(charges []store.Charge) (bool, error){
				"peek": func(charges []store.Charge) (bool, error) { return s.Peek(t.Context(), charges) },
				"take": func(charges []store.Charge) (bool, error) { return s.Take(t.Context(), charges) },
			} {
				var several []store.Charge
				whole := []store.Charge{one(twin, what+key)}
				whole[0].Cost, whole[0].Permit = 0, 1
				for _, cost := range costs {
					charge := one(c, what+key)
					charge.Cost, charge.Permit = cost, 1
					several = append(several, charge)
					whole[0].Cost += cost
				}
				got, err := ask(several)
				want, err2 := ask(whole)
				if err != nil || err2 != nil || got != want {
					t.Errorf("%s: %s %v: %v, %v, want %v, %v", name, what, costs, got, err, want, err2)
				}
				for i, charge := range several {
					if charge.Verdict != whole[0].Verdict {
						t.Errorf("%s: %s %v: %d-th: %+v, want %+v", name, what, costs, i+1, charge.Verdict, whole[0].Verdict)
					}
				}
			}
		}
		room := mustBind(t, s, "room", limit.Policy{Burst: 100})
		c.account.charge(s.budget.max - s.budget.used.Load())
		nothing := []store.Charge{one(c, "takefits"), one(room, "k")}
		nothing[0].Cost = 0
		if !mustTake(t, s, nothing...) || !nothing[0].Verdict.Allowed {
			t.Errorf("%s: a cost of 0 is refused: %+v", name, nothing[0].Verdict)
		}
	}
}

// No charges are admitted; charges that are not this store's are an error and take nothing.
func TestWhatIsNoCharge(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	s, other := New(Options{}), New(Options{})
	p := limit.Policy{Rate: limit.PerHour(1), Burst: 10}
	c, foreign := mustBind(t, s, "c", p), mustBind(t, other, "c", p)
	var none *Counters
	for what, ask := range map[string]func(charges []store.Charge) (bool, error){
		"Take":   func(charges []store.Charge) (bool, error) { return s.Take(t.Context(), charges) },
		"Peek":   func(charges []store.Charge) (bool, error) { return s.Peek(t.Context(), charges) },
		"Refund": func(charges []store.Charge) (bool, error) { return true, s.Refund(t.Context(), charges) },
		"Finish": func(charges []store.Charge) (bool, error) { return true, s.Finish(t.Context(), charges) },
		"Reset":  func(charges []store.Charge) (bool, error) { return true, s.Reset(t.Context(), charges) },
	} {
		if ok, err := ask(nil); !ok || err != nil {
			t.Errorf("%s of nothing: %v, %v", what, ok, err)
		}
		for i, bad := range []store.Counters{nil, none, foreign} {
			if _, err := ask([]store.Charge{one(c, "k"), {Counters: bad, Key: []byte("k"), Cost: 1}}); err == nil {
				t.Errorf("%s: counters %d are taken for this store's", what, i)
			}
		}
	}
	for i, bad := range []store.Counters{nil, none, foreign} {
		if err := s.Unbind(bad); err == nil {
			t.Errorf("Unbind: counters %d are taken for this store's", i)
		}
	}
	charges := []store.Charge{one(c, "k")}
	if ok, err := s.Peek(t.Context(), charges); !ok || err != nil || charges[0].Verdict.Remaining != 9 {
		t.Errorf("%+v, %v: something was taken", charges[0].Verdict, err)
	}
	if _, err := NewKeyed(limit.Policy{Algorithm: limit.Concurrency, MaxInFlight: 1, Timeout: time.Second}, Options{}); err == nil {
		t.Error("a Keyed of places in flight, which nobody can give back")
	}
	k := mustKeyed(t, p, Options{})
	if err := k.SetPolicy(limit.Policy{Algorithm: limit.Concurrency, MaxInFlight: 1, Timeout: time.Second}); err == nil || k.Policy() != p {
		t.Errorf("%v, %+v: a Keyed became one of places in flight", err, k.Policy())
	}
}

// A flood in a store's first second is logged once like any other.
func TestFloodAtTheBeginningIsLogged(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	var lines strings.Builder
	s := New(Options{MaxBytes: MinMaxBytes, Now: newManual().now, Logger: slog.New(slog.NewTextHandler(&lines, nil))})
	c := mustBind(t, s, "flooded", limit.Policy{Rate: limit.PerHour(1), Burst: 1})
	_, newcomer := fill(t, s, c, 1)
	for range 10 {
		mustTake(t, s, one(c, newcomer))
	}
	if got := strings.Count(lines.String(), "limit=flooded"); got != 1 {
		t.Errorf("%d lines, want 1: %s", got, lines.String())
	}
	if want := map[string]int64{"flooded": 11}; !reflect.DeepEqual(s.Stats().Overflows, want) {
		t.Errorf("%v, want %v", s.Stats().Overflows, want)
	}
}

// The budget admits what fills it to the last byte, and not one more; what growing tables
// leave free counts as used for them, within the part of a limit it does not.
func TestBudgetToTheLastByte(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, tt := range []struct {
		used, n, spare int64
		want           bool
	}{
		{0, 1000, 0, true},
		{0, 1001, 0, false},
		{600, 400, 0, true},
		{600, 401, 0, false},
		{0, 900, 100, true},
		{0, 901, 100, false},
		{0, 500, 900, true}, // its own part
		{0, 501, 500, false},
		{0, 501, 499, true},
		{1000, 0, 0, true},
		{1000, -1, 0, true},
		{2000, 0, 500, true},
		{1000, 1, 0, false},
	} {
		b := budget{max: 1000}
		a := b.open()
		a.charge(tt.used)
		if got := a.reserve(tt.n, tt.spare); got != tt.want {
			t.Errorf("%+v: got %v", tt, got)
		}
		want := tt.used
		if tt.want {
			want += tt.n
		}
		if a.used.Load() != want || b.used.Load() != want || b.claimed.Load() != max(500, want) {
			t.Errorf("%+v: %d used, %d in all, %d claimed", tt, a.used.Load(), b.used.Load(), b.claimed.Load())
		}
	}
}
