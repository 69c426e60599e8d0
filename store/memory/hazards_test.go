package memory

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// interrupted is a clock that runs a function in the middle of the call that reads
// it: what another goroutine may do between a Take's reading and its deciding. It is
// for tests of one goroutine.
type interrupted struct {
	*manual
	then func()
}

func (c *interrupted) now() limit.Time {
	at := c.manual.now()
	if then := c.then; then != nil {
		c.then = nil
		then()
	}
	return at
}

func mustBind(t testing.TB, s *Store, id string, p limit.Policy) *Counters {
	t.Helper()
	c, err := s.bind(store.Spec{ID: id, Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func mustTake(t testing.TB, s *Store, charges ...store.Charge) bool {
	t.Helper()
	ok, err := s.Take(context.Background(), charges)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

func one(c *Counters, key string) store.Charge {
	return store.Charge{Counters: c, Key: []byte(key), Cost: 1}
}

func wordsOf(c *Counters) *wordTable { return c.current().(*wordTable) }

// fill takes cost for new keys of c until one has no place of its own, and returns the
// charges of the others and that one's key.
func fill(t testing.TB, s *Store, c *Counters, cost int64) (fillers []store.Charge, newcomer string) {
	t.Helper()
	for i := 0; ; i++ {
		charge := one(c, fmt.Sprint("key", i))
		charge.Cost = cost
		mustTake(t, s, charge)
		if s.Stats().Overflowed > 0 {
			return fillers, string(charge.Key)
		}
		fillers = append(fillers, charge)
	}
}

// A state that was dropped because it was full at a later time than the one that a
// slow Take has read is not admitted from at that earlier time.
func TestSlowTakeOfADroppedStateIsNotOver(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	clock := &interrupted{manual: newManual()}
	k := mustKeyed(t, limit.Policy{Rate: limit.PerSecond(1), Burst: 3}, Options{Now: clock.now})
	for i := range 2000 {
		k.Allow(fmt.Sprint("filler", i))
	}
	for range 3 {
		k.Allow("k")
	}
	clock.then = func() {
		clock.advance(3 * time.Second)
		wordsOf(k.counters).sweep()
		if keys := k.Stats().Keys; keys != 0 {
			t.Errorf("%d keys were not dropped: the test tests nothing", keys)
		}
	}
	admitted := 0
	for range 10 {
		if k.Allow("k") {
			admitted++
		}
	}
	if admitted > 3 {
		t.Errorf("%d admitted at one moment, over the burst of 3", admitted)
	}
}

// A key that gets a slot while a slow Take of it is on its way to the overflow bucket
// is not charged in both: alone, or as one of several.
func TestSlowTakeOnTheOverflowBucketIsNotOver(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, charges := range []int{1, 2} {
		for readings := range 8 {
			t.Run(fmt.Sprintf("%d charges, reading %d", charges, readings), func(t *testing.T) {
				clock := &interrupted{manual: newManual()}
				s := New(Options{MaxBytes: 64 << 10, Now: clock.now})
				c := mustBind(t, s, "c", limit.Policy{Rate: limit.PerHour(3), Burst: 3})
				other := one(mustBind(t, s, "other", limit.Policy{Rate: limit.PerHour(100), Burst: 100}), "k")
				mustTake(t, s, other)
				fillers, newcomer := fill(t, s, c, 3)
				h := c.hash([]byte(newcomer))
				wordsOf(c).overflow.Store(0)
				all := []store.Charge{one(c, newcomer), other}
				admitted := 0
				take := func(charges ...store.Charge) {
					if mustTake(t, s, charges...) {
						admitted++
					}
				}
				interrupt := func() {
					sh := &wordsOf(c).shards[shardOf(h)]
					if !sh.mu.TryLock() {
						return // nobody can get a slot now
					}
					sh.mu.Unlock()
					if wordsOf(c).overflow.Load() >= wordLocked || wordsOf(c).hasSlot(h) {
						return
					}
					if err := s.Reset(context.Background(), fillers); err != nil {
						t.Error(err)
					}
					clock.advance(time.Second)
					wordsOf(c).sweep()
					for range 4 {
						take(one(c, newcomer))
					}
				}
				for range readings {
					next := interrupt
					interrupt = func() { clock.then = next }
				}
				clock.then = interrupt
				take(all[:charges]...)
				clock.then = nil
				for range 4 {
					take(one(c, newcomer))
				}
				if admitted > 3 {
					t.Errorf("%d admitted at one moment, over the burst of 3", admitted)
				}
			})
		}
	}
}

// A key that was decided on the overflow bucket and gets a slot while the table moves
// starts from what that bucket has used.
func TestOverflowBucketThatMovesIsInherited(t *testing.T) {
	clock := newManual()
	s := New(Options{MaxBytes: 64 << 10, Now: clock.now})
	c := mustBind(t, s, "c", limit.Policy{Rate: limit.PerHour(3), Burst: 3})
	fillers, newcomer := fill(t, s, c, 1)
	for mustTake(t, s, one(c, newcomer)) {
	}
	if err := s.Reset(context.Background(), fillers); err != nil {
		t.Fatal(err)
	}
	clock.advance(time.Second)
	wordsOf(c).partOverflow()
	if mustTake(t, s, one(c, newcomer)) {
		t.Error("a key had a second burst while its table moved")
	}
	if !wordsOf(c).hasSlot(c.hash([]byte(newcomer))) {
		t.Error("the newcomer has no slot: the test tests nothing")
	}
}

// Making room for one limit locks words, so a Take over several limits must not do it while it
// has one locked.
func TestTakeOverSeveralWithAFullBudgetEnds(t *testing.T) {
	clock := newManual()
	s := New(Options{MaxBytes: 64 << 10, Now: clock.now})
	log := mustBind(t, s, "log", limit.Policy{Algorithm: limit.SlidingWindowLog, Rate: limit.PerHour(300)})
	words := mustBind(t, s, "words", limit.Policy{Rate: limit.PerSecond(1), Burst: 3})
	for i := range 1000 {
		mustTake(t, s, one(words, fmt.Sprint(i)))
	}
	for range 200 {
		mustTake(t, s, one(log, "k"))
		clock.advance(time.Millisecond)
	}
	clock.advance(10 * time.Second)
	s.budget.used.Store(s.budget.max - 4096)
	s.budget.claimed.Store(s.budget.max - 4096)
	done := make(chan bool)
	go func() { done <- mustTake(t, s, one(log, "k"), one(words, "1")) }()
	select {
	case <-done:
	case <-time.After(20 * time.Second):
		t.Fatal("the Take waits for a word that it holds itself")
	}
	if keys := wordsOf(words).keys(); keys == 1000 {
		t.Error("nothing was swept: the test tests nothing")
	}
}

// A Take over several limits that finds one of them moved lets go of what it has
// locked, and of nothing else.
func TestTakeOverSeveralLetsGoOfWhatItHolds(t *testing.T) {
	clock := newManual()
	s := New(Options{MaxBytes: 64 << 10, Now: clock.now})
	p := limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.PerHour(1000)}
	full, moves := mustBind(t, s, "full", p), mustBind(t, s, "moves", p)
	mustTake(t, s, one(moves, "k"))
	_, newcomer := fill(t, s, full, 1)
	charges := []store.Charge{one(full, newcomer), one(moves, "k")}
	members := make([]member, len(charges))
	for i := range charges {
		members[i] = newMember(&charges[i])
		members[i].find(false)
	}
	p.Rate.Count++
	mustBind(t, s, "moves", p)
	if lockAll(members, s.since()) {
		t.Fatal("locked a table that has moved")
	}
	if !members[0].over {
		t.Error("the first limit is not on its overflow bucket: the test tests nothing")
	}
	if !mustTake(t, s, charges...) {
		t.Error("refused")
	}
}

// Costs whose sum no number holds are refused, as the sum would be.
func TestChargesOnOneBucketDoNotWrapAround(t *testing.T) {
	for name, p := range map[string]limit.Policy{
		"bucket": {Rate: limit.PerSecond(1), Burst: limit.MaxCount},
		"window": {Algorithm: limit.FixedWindow, Rate: limit.PerHour(limit.MaxCount)},
	} {
		s := New(Options{})
		c := mustBind(t, s, name, p)
		all := make([]store.Charge, 5)
		for n := 2; n <= len(all); n++ {
			for i := range all[:n] {
				all[i] = store.Charge{Counters: c, Key: []byte("k"), Cost: limit.MaxCount}
			}
			if ok := mustTake(t, s, all[:n]...); ok || all[0].Verdict.Reason != limit.ReasonCost {
				t.Errorf("%s: %d times the largest cost: %v, %+v", name, n, ok, all[0].Verdict)
			}
		}
	}
}

// A clock that steps back to before a table was made admits no more, and makes the
// table forget nothing.
func TestClockThatStepsBack(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for name, p := range floods() {
		t.Run(name, func(t *testing.T) {
			clock := newManual()
			s := New(Options{Now: clock.now})
			clock.advance(24 * time.Hour)
			c := mustBind(t, s, "c", p)
			admitted := 0
			take := func() {
				if mustTake(t, s, one(c, "k")) {
					admitted++
				}
			}
			take()
			for _, step := range []time.Duration{-20 * time.Hour, -10 * time.Hour, 30 * time.Hour} {
				clock.advance(step)
				for i := range 500 { // the table grows
					mustTake(t, s, one(c, fmt.Sprint(step, i)))
				}
				for range 4 {
					take()
				}
			}
			if admitted != 3 {
				t.Errorf("%d admitted, want the quota of 3", admitted)
			}
		})
	}
}

// One Take may bring any number of new keys: none of their places costs another's.
func TestTakeOverManyNewKeysEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for name, p := range floods() {
		t.Run(name, func(t *testing.T) {
			s := New(Options{Now: newManual().now})
			c := mustBind(t, s, "c", p)
			for n := 1; n <= 2000; n += 333 {
				charges := make([]store.Charge, n)
				for i := range charges {
					charges[i] = one(c, fmt.Sprint(n, "-", i))
				}
				charges[0].Cost = 4 // refused: all are fresh still
				if mustTake(t, s, charges...) {
					t.Error("4 of 3 were admitted")
				}
				charges[0].Key, charges[0].Cost = []byte(fmt.Sprint(n, "-another")), 1
				if !mustTake(t, s, charges...) {
					t.Error("new keys were refused")
				}
			}
		})
	}
}

// Permits, unbinding and new policies while Takes are under way: no crash, and what
// is unbound counts nothing afterwards and holds nothing.
func TestUnbindDuringTakes(t *testing.T) {
	s := New(Options{MaxBytes: 64 << 10})
	all := make([]limit.Policy, 0, 8)
	for _, p := range floods() {
		all = append(all, p)
	}
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range 60 {
				a := mustBind(t, s, "a", all[(i+g)%len(all)])
				b := mustBind(t, s, fmt.Sprint("b", g), all[i%len(all)])
				for j := range 40 {
					charges := []store.Charge{one(a, fmt.Sprint(j)), one(b, fmt.Sprint(j%7)), one(a, fmt.Sprint(j/2))}
					charges[0].Permit = uint64(j)
					mustTake(t, s, charges...)
					_ = s.Finish(context.Background(), charges[:1])
					_ = s.Refund(context.Background(), charges[1:])
				}
				if err := s.Unbind([]*Counters{a, b}[i%2]); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	a := mustBind(t, s, "a", all[0])
	if err := s.Unbind(a); err != nil {
		t.Fatal(err)
	}
	for range 10 {
		if !mustTake(t, s, one(a, "k")) {
			t.Error("a limit that is no more refused")
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st.Bytes != 0 || st.Keys != 0 || st.Limits != 0 {
		t.Errorf("after Close: %+v", st)
	}
}
