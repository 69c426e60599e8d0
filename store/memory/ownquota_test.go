package memory

import (
	"math/rand/v2"
	"testing"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Charges that bring their own burst share the bucket: each is decided as package limit does by the same rate with that
// burst, whether the state is a word or not.
func TestBucketsByQuotasOfTheirOwn(t *testing.T) {
	for _, rate := range []limit.Rate{limit.PerSecond(100), {Count: 1, Period: 1}, {Count: 999983, Period: 1e9}} {
		for _, counts := range []bool{false, true} {
			now := limit.Time(1e18)
			s := New(Options{Now: func() limit.Time { return now }})
			p := limit.Policy{Rate: rate, Burst: 1000, CountRefused: counts}
			c, err := s.Bind(store.Spec{ID: "a", Policy: p})
			if err != nil {
				t.Fatal(err)
			}
			rnd, state := rand.New(rand.NewPCG(1, uint64(rate.Count))), limit.BucketState{}
			for i := range 2000 {
				quota, cost := rnd.Int64N(1500), rnd.Int64N(300)
				b := limit.NewBucket(p).WithQuota(quota)
				charges := []store.Charge{{Counters: c, Key: []byte("k"), Cost: cost, Quota: quota, HasQuota: true}}
				ask, want := s.Take, b.Take(&state, now, cost)
				if i%5 == 0 { // together with another bucket
					charges = append(charges, store.Charge{Counters: c, Key: []byte("other")})
				}
				ok, err := ask(t.Context(), charges)
				if got := charges[0].Verdict; err != nil || got != want || ok != want.Allowed {
					t.Fatalf("%v, step %d: cost %d of %d: %v, %v\n got %+v\nwant %+v", rate, i, cost, quota, ok, err, got, want)
				}
				if cost > 0 {
					seen := []store.Charge{{Counters: c, Key: []byte("k"), Cost: 0, Quota: quota, HasQuota: true}}
					if _, err := s.Peek(t.Context(), seen); err != nil || seen[0].Verdict != b.Peek(state, now, 0) {
						t.Fatalf("%v, step %d: a look: %+v, %v", rate, i, seen[0].Verdict, err)
					}
				}
				now = now.Add(limit.Policy{Rate: rate, Burst: rnd.Int64N(200)}.Window())
			}
		}
	}
}
