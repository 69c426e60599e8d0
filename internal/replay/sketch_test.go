package replay

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stint-io/stint/limit"
)

// No count of a sketch is too low, none is too high by more than its bound, and every key that has more than
// the bound is there. Up to its size the counts are exact.
func TestSketch(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, keys := range []uint64{900, 50_000} {
		r := rand.New(rand.NewPCG(keys, 1))
		draw := rand.NewZipf(r, 1.1, 3, keys-1)
		exact := map[string]int64{}
		var s sketch
		for i := range 200_000 {
			key := fmt.Sprint(draw.Uint64())
			exact[key]++
			s.add([]byte(key), limit.Time(i))
		}
		if exceeds := s.bound() > s.total/sketchSize; exceeds || s.full != (len(exact) > sketchSize) {
			t.Fatalf("%d keys: a bound of %d", keys, s.bound())
		}
		if !s.full && s.bound() != 0 {
			t.Fatalf("%d keys: a bound of %d, want exact counts", keys, s.bound())
		}
		there := map[string]bool{}
		for i, c := range s.top(sketchSize) {
			there[c.key] = true
			if n := exact[c.key]; c.n < n || c.n > n+s.bound() || c.n-c.over > n {
				t.Fatalf("%d keys: %s is counted %d (over by at most %d), it came %d times, bound %d", keys, c.key, c.n, c.over, n, s.bound())
			}
			if i > 0 && c.n > s.top(i)[i-1].n {
				t.Fatal("not in order")
			}
			if i == 20 {
				break
			}
		}
		for _, c := range s.heap {
			there[c.key] = true
		}
		for key, n := range exact {
			if n > s.bound() && !there[key] {
				t.Fatalf("%d keys: %s came %d times and is not there", keys, key, n)
			}
		}
	}
}
