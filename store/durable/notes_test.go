package durable

import (
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/store"
)

// A key that is noted after a set was taken is in the next one, whatever was noted of it before and whenever the
// interval ended: a look at what was noted recently must not take the set before for the one that is open.
func TestNotedInEachSet(t *testing.T) {
	var n notes
	n.init()
	for round := range 100 {
		for range 3 {
			n.add([]byte("key"))
		}
		if keys := n.take(); len(keys) != 1 || keys[0] != "key" {
			t.Fatalf("round %d: %q", round, keys)
		}
	}
	if keys := n.take(); len(keys) != 0 {
		t.Fatalf("nothing was noted: %q", keys)
	}
}

// A Take of a key that is noted for the file already allocates nothing, whichever policy of those that are kept it is of,
// and whether the writer has taken the set before.
func TestNotedKeysDoNotAllocate(t *testing.T) {
	// A bound that no test exceeds: no Take has to write.
	s, err := Open(Options{Path: filepath.Join(t.TempDir(), "stint.db"), Bound: 24 * time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for seed := range seeding.Draw(t, 20) {
		r := rand.New(rand.NewPCG(seed, 14))
		p := drawPolicy(r)
		c, err := s.Bind(store.Spec{ID: fmt.Sprint(seed), Policy: p})
		if err != nil {
			t.Fatal(err)
		}
		charges := []store.Charge{{Counters: c, Key: fmt.Append(nil, "key", r.Uint64()), Cost: 1, CountRefused: r.IntN(2) == 0}}
		for round := range 3 {
			// The first run of AllocsPerRun, which is not measured, notes the key in the set that is open.
			n := testing.AllocsPerRun(100, func() {
				if _, err := s.Take(t.Context(), charges); err != nil {
					t.Error(err)
				}
			})
			if n != 0 && !raceEnabled {
				t.Errorf("seed %d: %v allocations per Take of a noted key in round %d of %+v, want 0", seed, n, round, p)
			}
			if err := s.Flush(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// What is counted before a key is noted is seen by the one who takes the set: after the last take each key has been
// looked at since its last change.
func TestNotedConcurrently(t *testing.T) {
	const keys, workers, rounds = 50, 4, 20_000
	var n notes
	n.init()
	var counts, seen [keys]atomic.Int64
	look := func() {
		for _, key := range n.take() {
			var k int
			if _, err := fmt.Sscan(key, &k); err != nil {
				t.Error(err)
				return
			}
			seen[k].Store(counts[k].Load())
		}
	}
	var working sync.WaitGroup
	for w := range workers {
		working.Go(func() {
			for i := range rounds {
				k := (i*7 + w) % keys
				counts[k].Add(1)
				n.add(fmt.Append(nil, k))
			}
		})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		working.Wait()
	}()
	for ended := false; !ended; {
		select {
		case <-done:
			ended = true
		default:
		}
		look()
	}
	look()
	for k := range keys {
		if seen[k].Load() != counts[k].Load() {
			t.Errorf("key %d: %d were counted, and %d seen when it was last noted", k, counts[k].Load(), seen[k].Load())
		}
	}
}
