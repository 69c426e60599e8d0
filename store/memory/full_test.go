package memory

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// crowded is a store whose budget is full of live keys of one limit, so that the keys
// which take returns have no place of their own: new keys share one bucket.
func crowded(t *testing.T, p limit.Policy) (s *Store, c *Counters, clock *manual, strangers [3]string) {
	t.Helper()
	clock = newManual()
	s = New(Options{MaxBytes: MinMaxBytes, Now: clock.now})
	c, err := s.bind(store.Spec{ID: "crowded", Policy: p})
	if err != nil {
		t.Fatal(err)
	}
	k := &Keyed{c}
	for i, n := 0, 0; n < len(strangers); i++ {
		key := fmt.Sprint("key", i)
		before := k.Stats().Overflowed
		if _, err := k.Take(key, 1); err != nil {
			t.Fatal(err)
		}
		if k.Stats().Overflowed > before && i > 1000 {
			strangers[n] = key
			n++
		}
	}
	return s, c, clock, strangers
}

func takeOf(t *testing.T, s *Store, charges ...store.Charge) bool {
	t.Helper()
	ok, err := s.Take(t.Context(), charges)
	if err != nil {
		t.Fatal(err)
	}
	return ok
}

// When the table is full, the bucket that new keys share is used up for all of them, also in a
// request over several limits, whose refusal has the reason and charges none of the other
// limits.
func TestFullTableBesideOthers(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for name, p := range floods() {
		t.Run(name, func(t *testing.T) {
			s, c, _, strangers := crowded(t, p)
			room, err := s.Bind(store.Spec{ID: "room", Policy: limit.Policy{Burst: 100}})
			if err != nil {
				t.Fatal(err)
			}
			for _, key := range strangers {
				both := []store.Charge{{Counters: room, Key: []byte("k"), Cost: 1}, {Counters: c, Key: []byte(key), Cost: 1}}
				if takeOf(t, s, both...) {
					t.Errorf("%q has a burst of its own", key)
				}
				if v := both[1].Verdict; v.Allowed || v.Reason != limit.ReasonTableFull || !both[0].Verdict.Allowed || both[0].Verdict.Remaining != 100 {
					t.Errorf("%q: told %+v, and of the other limit %+v", key, v, both[0].Verdict)
				}
			}
		})
	}
}

// A changed policy carries over what new keys share as well: they get no second burst.
func TestFullTableChangesItsPolicy(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for name, next := range map[string]limit.Policy{
		"packed":   {Rate: limit.PerHour(2), Burst: 3},
		"unpacked": {Rate: limit.Rate{Count: 999_983, Period: 999_979 * time.Hour}, Burst: 3},
	} {
		t.Run(name, func(t *testing.T) {
			s, c, clock, strangers := crowded(t, limit.Policy{Rate: limit.PerHour(3), Burst: 3})
			if _, err := s.Bind(store.Spec{ID: "crowded", Policy: next}); err != nil {
				t.Fatal(err)
			}
			over := s.Stats().Overflowed
			for _, key := range strangers {
				if takeOf(t, s, store.Charge{Counters: c, Key: []byte(key), Cost: 1}) {
					t.Errorf("%q is admitted once more after the change", key)
				}
			}
			if s.Stats().Overflowed == over {
				t.Error("there was room, so nothing was shared")
			}
			clock.advance(10 * time.Hour)
			was := s.Stats()
			for _, key := range strangers {
				if !takeOf(t, s, store.Charge{Counters: c, Key: []byte(key), Cost: 3}) {
					t.Errorf("%q has nothing of its own when there is room: %+v, then %+v", key, was, s.Stats())
				}
			}
		})
	}
}

// A limit without a bound admits all, and has no keys.
func TestUnlimitedHasNoKeys(t *testing.T) {
	k := mustKeyed(t, limit.Policy{Unlimited: true}, Options{})
	for i := range 1000 {
		if v, err := k.Take(fmt.Sprint(i), limit.MaxCount); err != nil || v != unlimited {
			t.Fatalf("%+v, %v", v, err)
		}
	}
	if st := k.Stats(); st.Keys != 0 || st.Overflowed != 0 {
		t.Errorf("%+v", st)
	}
}

// A store that was closed holds nothing, and counts the Takes that met a full table all the
// same.
func TestCloseDropsAll(t *testing.T) {
	s, _, _, _ := crowded(t, limit.Policy{Rate: limit.PerHour(3), Burst: 3})
	before := s.Stats()
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if st := s.Stats(); st.Keys != 0 || st.Bytes != 0 || st.Limits != 0 || st.Overflowed != before.Overflowed {
		t.Errorf("%+v before, %+v after", before, st)
	}
}

// looks counts how often the table asks whether the state of a key is fresh, as it does of each state of a shard that it
// scans.
func (t *lockedTable[S]) looks() *atomic.Int64 {
	n := new(atomic.Int64)
	fresh := t.rule.fresh
	t.rule.fresh = func(s *S, now limit.Time) bool {
		if s != &t.overflow.states[0] {
			n.Add(1)
		}
		return fresh(s, now)
	}
	return n
}

// While the budget is full a shard is scanned once in a pause, however many new keys come meanwhile: what a flood costs does
// not grow with the keys that are there.
func TestFullShardIsScannedOncePerPause(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for name, p := range floods() {
		t.Run(name, func(t *testing.T) {
			for seed := range seeding.Draw(t, 3) {
				r := rand.New(rand.NewPCG(seed, 15))
				_, c, clock, _ := crowded(t, p)
				table, ok := c.current().(interface {
					looks() *atomic.Int64
					keys() int64
				})
				if !ok {
					return // a table of words
				}
				k := &Keyed{c}
				flood := func(n int) {
					for range n {
						if _, err := k.Take(fmt.Sprint("flood", r.Uint64()), 1); err != nil {
							t.Fatal(err)
						}
					}
				}
				flood(20_000) // each shard gets full
				looks, keys := table.looks(), table.keys()
				if flood(5000); looks.Load() != 0 || keys < 300 {
					t.Fatalf("seed %d: %d looks at %d keys, while the clock stands and all shards are full", seed, looks.Load(), keys)
				}
				for range 10 {
					looks.Store(0)
					clock.advance(time.Duration(pause(1<<16)) + time.Duration(r.Int64N(int64(time.Second))))
					flood(5000)
					// Each shard is scanned, and all are once more to find what can be dropped; both may clean before.
					if n := looks.Load(); n == 0 || n > 4*keys {
						t.Fatalf("seed %d: %d looks at %d keys after a pause, want one scan of each shard", seed, n, keys)
					}
				}
			}
		})
	}
}
