package memory

import (
	"fmt"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// oneShard yields keys of one shard, so that what fills it fills it evenly.
func oneShard(c *Counters, prefix string) func() string {
	i := 0
	return func() string {
		for {
			key := fmt.Sprint(prefix, i)
			if i++; shardOf(c.hashString(key)) == 7 {
				return key
			}
		}
	}
}

// Where the budget has no room for a larger array a shard makes do with the one that it
// has, as soon as a quarter of its keys has drained: as many new keys get a place of their
// own at once, with the whole burst.
func TestDrainedKeysMakeRoom(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for name, p := range floods() {
		if p.Algorithm == limit.SlidingWindowCounter {
			continue // whose states fade for two hours
		}
		t.Run(name, func(t *testing.T) {
			// flood takes cost for new keys until one has no place, at most so many.
			flood := func(k *Keyed, prefix string, cost int64, most int) (had int) {
				next, over := oneShard(k.counters, prefix), k.Stats().Overflowed
				for had < most {
					v := k.counters.take(k.counters.hashString(next()), ask{cost: cost, permit: 1})
					if k.Stats().Overflowed > over {
						return had
					}
					if had++; !v.Allowed {
						t.Fatalf("key %d, of cost %d, is refused: %+v", had, cost, v)
					}
				}
				return had
			}
			clock := newManual()
			open := func() *Keyed { return mustKeyed(t, p, Options{MaxBytes: 80 << 10, Now: clock.now}) }
			all := flood(open(), "k", 1, 1e6)

			k := open()
			early := flood(k, "early", 1, all/4)
			clock.advance(10 * time.Minute)
			if late := flood(k, "late", 3, all-early); early+late != all || all < 100 {
				t.Fatalf("%d and then %d had places, want %d in all", early, late, all)
			}
			clock.advance(51 * time.Minute) // the early ones are as good as new now
			if got := flood(k, "new", 3, all/4); got != all/4 {
				t.Errorf("%d new keys got a place of their own when %d had drained: %+v", got, all/4, k.Stats())
			}
		})
	}
}

// What new keys share counts as an overflow also where a key has a slot, and the budget has
// no room for a copy of the log that they share.
func TestNoRoomForACopyOfWhatIsShared(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	clock := newManual()
	k := mustKeyed(t, limit.Policy{Algorithm: limit.SlidingWindowLog, Rate: limit.PerHour(100)}, Options{MaxBytes: MinMaxBytes, Now: clock.now})
	c, budget := k.counters, &k.counters.store.budget
	slotted, empty := oneShard(c, "slotted"), func() string {
		for i := 0; ; i++ {
			if key := fmt.Sprint("empty", i); shardOf(c.hashString(key)) == 8 {
				return key
			}
		}
	}()
	take := func(key string) limit.Verdict {
		t.Helper()
		v, err := k.Take(key, 1)
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	if v := take(slotted()); v.Remaining != 99 {
		t.Fatalf("%+v", v)
	}
	// Nobody gets slots any more, but what is there may grow.
	c.account.charge(budget.max - budget.used.Load() - 4096)
	for i := range 10 {
		clock.advance(time.Millisecond)
		if v := take(empty); v.Remaining != int64(99-i) {
			t.Fatalf("%+v", v)
		}
	}
	if got := k.Stats().Overflowed; got != 10 {
		t.Fatalf("%d Takes on what is shared, want 10", got)
	}
	c.account.charge(budget.max - budget.used.Load())
	if v := take(slotted()); v.Allowed || v.Reason != limit.ReasonTableFull {
		t.Errorf("with no room for another entry: %+v", v)
	}
	if got := k.Stats().Overflowed; got != 11 {
		t.Errorf("%d Takes on what is shared, want 11", got)
	}
}

// No key has the hashes that mark slots, and all others keep theirs.
func TestHashesAreNoMarks(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, h := range []uint64{0, 1, 2, 1 << 32, slotClosed - 1, slotClosed} {
		got := avoidMarks(h)
		if got == 0 || got == slotClosed || got == overflowHash || h != 0 && h != slotClosed && got != h {
			t.Errorf("%x became %x", h, got)
		}
	}
}

// Several keys of one shard, and keys of several limits, are charged each for itself by one
// Take.
func TestKeysOfOneShardAreChargedApart(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for name, p := range floods() {
		s := New(Options{Now: newManual().now})
		a, b := mustBind(t, s, "a", p), mustBind(t, s, "b", p)
		var charges []store.Charge
		for nextA, nextB := oneShard(a, "a"), oneShard(b, "b"); len(charges) < 12; {
			key := nextA()
			charges = append(charges, one(a, key), one(b, key), one(b, nextB()))
		}
		for i := range charges {
			charges[i].Permit = uint64(1 + i)
		}
		if !mustTake(t, s, charges...) {
			t.Fatalf("%s: refused", name)
		}
		for i, charge := range charges {
			again := []store.Charge{charge}
			again[0].Cost = 0
			if _, err := s.Peek(t.Context(), again); err != nil || again[0].Verdict.Remaining != 2 || charge.Verdict.Remaining != 2 {
				t.Errorf("%s: charge %d: told %+v, then %+v, %v, want 2 of 3 to remain", name, i, charge.Verdict, again[0].Verdict, err)
			}
		}
	}
}
