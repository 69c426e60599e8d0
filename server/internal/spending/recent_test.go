package spending

import (
	"fmt"
	"hash/maphash"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

// TestOften: the fifth request for a key in a second makes it one that comes often, whatever the second, and a
// request in the next one is its first.
func TestOften(t *testing.T) {
	var r recent
	seed := maphash.MakeSeed()
	for _, second := range []int64{0, 1, 2, 1<<24 - 1, 1 << 24, 1<<24 + 1} {
		for i := range 300 {
			now := limit.Time(second)*limit.Time(time.Second) + limit.Time(i)*limit.Time(time.Millisecond)
			if often := r.often(seed, now, []byte("key")); often != (i >= oftenEnough-1) {
				t.Fatalf("request %d of second %d: %v", i, second, often)
			}
		}
	}
	// Of as many keys as there are slots one is taken for another once in 2^32 times.
	for i := range recentSlots {
		if r.often(seed, limit.Time(time.Hour), fmt.Append(nil, "other", i)) {
			t.Fatalf("key %d comes often", i)
		}
	}
}
