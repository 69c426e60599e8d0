package lending

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/cluster/alone"
	"github.com/stint-io/stint/rules"
)

// parted is a register that a member reaches until it is killed.
type parted struct {
	cluster.Register
	gone atomic.Bool
}

var errGone = errors.New("gone")

func (p *parted) Read(ctx context.Context, key string) (cluster.Record, error) {
	if p.gone.Load() {
		return cluster.Record{}, errGone
	}
	return p.Register.Read(ctx, key)
}

func (p *parted) Swap(ctx context.Context, key string, revision uint64, value []byte) (uint64, error) {
	if p.gone.Load() {
		return 0, errGone
	}
	return p.Register.Swap(ctx, key, revision, value)
}

// TestOrphansAreTakenOnce: when a member is killed each of its shards has one term at another member in the time in
// which leases of the former are in use, whoever should lead it.
func TestOrphansAreTakenOnce(t *testing.T) {
	// With the race detector Go 1.26 itself fails now and then: the timers of a bubble share one race context.
	if testing.Short() {
		t.Skip("TestYield has the same goroutines: nothing for the race detector")
	}
	set, err := rules.Parse("test", []byte("limits: [{name: l, rate: 1/s, sharing: leased}]"))
	if err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 10 {
		synctest.Test(t, func(t *testing.T) {
			const shards = 8
			r, members := alone.New(), 3+rng.IntN(2)
			ctx, cancel := context.WithCancel(t.Context())
			var all []*Service
			var ways []*parted
			var running sync.WaitGroup
			for i := range members {
				way := &parted{Register: r}
				s := New(Options{Limits: set, State: State{Epoch: epochAbove(0), Key: []byte("key")}, Logger: slog.New(slog.DiscardHandler)}, shards)
				self := cluster.Member{ID: fmt.Sprint("n", i, "-", rng.IntN(1000))}
				if err := s.Join(Cluster{Register: way, Self: self, First: true}, cluster.PresenceOptions{Register: way, Self: self, Logger: slog.New(slog.DiscardHandler)}); err != nil {
					t.Fatal(err)
				}
				running.Go(func() { s.Run(ctx) })
				all, ways = append(all, s), append(ways, way)
			}
			time.Sleep(40*time.Second + time.Duration(rng.IntN(1000))*time.Millisecond)
			terms := func() (n uint64) {
				for i, s := range all {
					if !ways[i].gone.Load() {
						st, _ := s.Standing()
						n += st.Terms
					}
				}
				return n
			}
			dead := rng.IntN(members)
			st, _ := all[dead].Standing()
			orphans := uint64(st.Led)
			ways[dead].gone.Store(true)
			before := terms()
			time.Sleep(5 * time.Second)
			if got := terms() - before; got != orphans {
				t.Errorf("%d terms began for %d shards of %d members", got, orphans, members)
			}
			led := 0
			for i, s := range all {
				if i != dead {
					st, _ := s.Standing()
					led += st.Led
				}
			}
			if led != shards {
				t.Errorf("%d of %d shards are led", led, shards)
			}
			cancel()
			running.Wait()
		})
	}
}
