package contender_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/bench/internal/contender"
)

func limiters() []contender.Contender {
	return append([]contender.Contender{contender.Stint(), contender.FlatTable()}, contender.Rivals()...)
}

func open(t *testing.T, c contender.Contender, p contender.Plan) contender.Limiter {
	t.Helper()
	l, err := c.New(p)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Each one really limits, and each key by itself: a contender that was wired up
// wrongly would be fast.
func TestContendersLimit(t *testing.T) {
	plan := contender.Plan{Count: 1, Period: time.Hour, Burst: 10}
	for _, c := range limiters() {
		if c.Blocks {
			continue
		}
		t.Run(c.Name, func(t *testing.T) {
			l := open(t, c, plan)
			keys := contender.NewKeys(3)
			for i := range keys.Len() {
				if got := l.Hot(keys.At(i), 100); got != 10 {
					t.Errorf("key %d: %d of 100 admitted, want 10", i, got)
				}
			}
			if got := l.Spin(contender.NewWalk(keys, 1), 100); got != 0 {
				t.Errorf("the walk over used-up keys: %d admitted", got)
			}
		})
	}
}

// One word is one bucket whatever the key.
func TestFloorLimits(t *testing.T) {
	l := open(t, contender.OneWord(), contender.Plan{Count: 1, Period: time.Hour, Burst: 10})
	if got := l.Hot("a", 7) + l.Hot("b", 7); got != 10 {
		t.Errorf("%d admitted, want 10", got)
	}
}

// Uber's limiter waits instead of refusing: 20 at 1000/s, less its slack of 10,
// take at least 9 ms.
func TestUberWaits(t *testing.T) {
	for _, c := range contender.Rivals() {
		if !c.Blocks {
			continue
		}
		l := open(t, c, contender.Plan{Count: 1000, Period: time.Second, Burst: 1})
		start := time.Now()
		if l.Hot("k", 20) != 20 || time.Since(start) < 9*time.Millisecond {
			t.Errorf("%s: 20 at 1000/s took %v", c.Name, time.Since(start))
		}
	}
}

func TestPlansAdmitWhatTheyClaim(t *testing.T) {
	for _, c := range append(limiters(), contender.OneWord()) {
		t.Run(c.Name, func(t *testing.T) {
			if got := open(t, c, contender.AlwaysAllowed).Hot("hot", 50_000); got != 50_000 {
				t.Errorf("AlwaysAllowed: %d of 50000 admitted", got)
			}
			if c.Blocks {
				return
			}
			if got := open(t, c, contender.LongLived).Hot("hot", 50_000); got != 50_000 {
				t.Errorf("LongLived: %d of 50000 admitted", got)
			}
			if got := open(t, c, contender.Refused).Hot("hot", 1000); got != 1 {
				t.Errorf("Refused: %d of 1000 admitted, want 1", got)
			}
		})
	}
}

// Two goroutines on one key never admit more than the burst: no lost update in
// the floors, nor in stint.
func TestContendersAreExactTogether(t *testing.T) {
	for _, c := range []contender.Contender{contender.Stint(), contender.FlatTable(), contender.OneWord()} {
		l := open(t, c, contender.Plan{Count: 1, Period: time.Hour, Burst: 10_000})
		var admitted atomic.Int64
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() { admitted.Add(int64(l.Hot("k", 10_000))) })
		}
		all.Wait()
		if admitted.Load() != 10_000 {
			t.Errorf("%s: %d admitted, want 10000", c.Name, admitted.Load())
		}
	}
}

func TestKeysAreDistinct(t *testing.T) {
	keys := contender.NewKeys(100_000)
	seen := make(map[string]bool, keys.Len())
	for i := range keys.Len() {
		seen[keys.At(i)] = true
	}
	if len(seen) != 100_000 || keys.Len() != 100_000 || len(keys.At(7)) != contender.KeyLen {
		t.Errorf("%d distinct keys of %d", len(seen), keys.Len())
	}
}

// The walk is uniform: n log n steps and some miss almost nothing, no key is met
// far too often, and a second walk with the same seed goes the same way.
func TestWalkIsUniformAndRepeats(t *testing.T) {
	const n = 1000
	keys := contender.NewKeys(n)
	count := make(map[string]int)
	w := contender.NewWalk(keys, 42)
	for range 100 * n {
		count[w.Next()]++
	}
	var chi float64
	for i := range n {
		d := float64(count[keys.At(i)] - 100)
		chi += d * d / 100
	}
	// Chi-squared with 999 degrees of freedom: 999 on average, 45 its deviation.
	if chi < 999-6*45 || chi > 999+6*45 {
		t.Errorf("chi-squared %.0f over %d keys: not uniform", chi, n)
	}

	seen := make([]bool, n)
	if got := contender.NewWalk(keys, 42).Distinct(100*n, seen); got != len(count) {
		t.Errorf("recount found %d keys, the walk met %d", got, len(count))
	}
	for i := range n {
		if seen[i] != (count[keys.At(i)] > 0) {
			t.Fatalf("recount differs at key %d", i)
		}
	}
}

func TestWalkDoesNotAllocate(t *testing.T) {
	w := contender.NewWalk(contender.NewKeys(1000), 1)
	l := open(t, contender.HashOnly(), contender.AlwaysAllowed)
	if a := testing.AllocsPerRun(100, func() { l.Spin(w, 100) }); a != 0 {
		t.Errorf("%v allocations", a)
	}
}

// A million keys find a place each in the flat table: none shares another's.
func TestFlatTableHoldsAMillion(t *testing.T) {
	keys := contender.NewKeys(1_000_000)
	l := open(t, contender.FlatTable(), contender.Refused)
	for i := range keys.Len() {
		if !l.Allow(keys.At(i)) {
			t.Fatalf("key %d was refused its first", i)
		}
	}
	for i := range keys.Len() {
		if l.Allow(keys.At(i)) {
			t.Fatalf("key %d was admitted twice", i)
		}
	}
}
