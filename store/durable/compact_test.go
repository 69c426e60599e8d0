package durable

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// The file is at most three times as long as what it has, and 16 MiB, however often keys and records change; and when what
// it has has ended or was removed, an hour later it has nothing.
func TestSize(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 1) {
		synctest.Test(t, func(t *testing.T) { sizeHolds(t, seed) })
	}
}

func sizeHolds(t *testing.T, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 20))
	d := newSimDisk(rand.New(rand.NewPCG(seed, 21)))
	s, err := Open(Options{Path: "/counts.db", disk: d})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() { ended <- s.Run(ctx) }()
	c, err := s.Bind(store.Spec{ID: "hour", Policy: limit.Policy{Algorithm: limit.FixedWindow, Rate: limit.Rate{Count: 1 << 50, Period: 24 * time.Hour}}})
	if err != nil {
		t.Fatal(err)
	}
	keys, rounds, records := 5000+r.IntN(20_000), 0, 0
	written := int64(0)
	for was := s.FileStats().Bytes; written < 40<<20; rounds++ {
		for k := range keys {
			if _, err := s.Take(ctx, []store.Charge{{Counters: c, Key: fmt.Append(nil, "customer-", k), Cost: 1}}); err != nil {
				t.Fatal(err)
			}
		}
		if records < 10 {
			records++
			if _, _, err := s.Records().Swap(ctx, "t", fmt.Sprint(records), nil, make([]byte, 1000), 0); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(DefaultBound / writesInBound)
		synctest.Wait()
		is := s.FileStats().Bytes
		written += max(is-was, 0)
		was = is
		live := int64(keys*40 + records*1100) // at most
		if most := 3*live + leastGrown + live; is > most {
			t.Fatalf("seed %d, round %d: %d bytes for %d keys, want at most %d", seed, rounds, is, keys, most)
		}
	}
	for k := range records {
		if _, _, err := s.Records().Swap(ctx, "t", fmt.Sprint(k+1), make([]byte, 1000), nil, 0); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(25*time.Hour + compactEvery)
	synctest.Wait()
	if is := s.FileStats().Bytes; is > headerSize+frameHead+10 {
		t.Errorf("seed %d: %d bytes of nothing", seed, is)
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
