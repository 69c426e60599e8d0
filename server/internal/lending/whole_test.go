package lending

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/cluster/alone"
	"github.com/stint-io/stint/internal/lease"
)

// TestWholeBurstIsLent: whatever the rate, down to millionths of a token a second, instances that ask for more than
// there is get the whole bucket, but for parts of tokens that several of them have. It begins full where no former coordinator is known, at once and after a wait, and
// empty where one is.
func TestWholeBurstIsLent(t *testing.T) {
	if testing.Short() {
		t.Skip("TestTownSchedules has the same goroutines: nothing for the race detector")
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	for range 20 {
		burst, instances := 2+r.IntN(100), 1+r.IntN(5)
		// From a token in a million seconds to one in a hundred.
		period := time.Duration(float64(time.Second) * float64(burst) * []float64{1e2, 1e3, 1e4, 1e5, 9e5}[r.IntN(5)])
		waits, former := r.IntN(2) == 0, r.IntN(3) == 0
		state := State{Epoch: 9, first: !former}
		if waits || former {
			state.Recovery = lease.DefaultLease + lease.DefaultLease/64
		}
		if former {
			state.former = 8
		}
		text := fmt.Sprintf("limits: [{name: shared, rate: 1/%v, burst: %d, sharing: leased}]", (period / time.Duration(burst)).Truncate(time.Second), burst)
		synctest.Test(t, func(t *testing.T) {
			w := &town{t: t, register: alone.New(), lost: true, members: map[string]*townMember{}, shards: 1}
			s := newShard(Options{Limits: limits(t, text), State: state, Logger: slog.New(slog.DiscardHandler)})
			m := &townMember{shard: live(t, s).shard, town: w, address: "a", wires: map[*cable]bool{}}
			w.members["a"] = m
			var all []*resident
			for i := range instances {
				one := w.resident(i)
				one.demand = float64(1 + r.IntN(100))
				all = append(all, one)
			}
			got := w.live(15*time.Second+time.Duration(burst)*time.Second, all)
			want := burst
			if former {
				want = 0
			}
			parts := instances // and the coordinator's, less than a token each
			if instances == 1 {
				parts = 0
			}
			if got < max(0, want-parts) || got > want+1 {
				t.Errorf("%s: %d instances got %d tokens, want %d (waits %v, a former one %v)", text, instances, got, want, waits, former)
			}
			for _, one := range all {
				one.stop()
			}
		})
	}
}
