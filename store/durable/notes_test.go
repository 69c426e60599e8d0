package durable

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
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
