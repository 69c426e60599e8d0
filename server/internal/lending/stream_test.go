package lending

import (
	"context"
	"math/rand/v2"
	"testing"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/seeding"
)

// What was not sent yet is brought up to date, not queued.
func TestMerge(t *testing.T) {
	st := &stream{}
	st.out.wake = make(chan struct{}, 1)
	put := func(number uint64, handles ...uint32) {
		g := &lease.Grant{Number: number}
		for _, h := range handles {
			g.Shares = append(g.Shares, lease.Share{Handle: h, Lease: number})
		}
		st.put(g)
	}
	put(1, 1, 2)
	put(2, 2, 3)
	put(3)
	g := st.next()
	if g.GetNumber() != 3 || len(g.GetShares()) != 3 {
		t.Fatalf("%v", g)
	}
	for i, want := range []uint64{1, 2, 2} {
		if s := g.GetShares()[i]; s.GetHandle() != uint32(i+1) || s.GetLease() != want {
			t.Errorf("%v", g)
		}
	}
	if st.stalledFor() == 0 || st.next() != nil || st.stalledFor() != 0 {
		t.Error("a write does not begin and end")
	}
}

// Whatever grants are put while nothing is sent, what is sent then says of each handle the
// latest, once.
func TestMergesToTheLatest(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 200) {
		r := rand.New(rand.NewPCG(seed, 3))
		st := newStream(context.Background(), nil)
		want := map[uint32]uint64{}
		number := uint64(0)
		for range r.IntN(6) {
			number++
			g := &lease.Grant{Number: number}
			for _, h := range r.Perm(8)[:r.IntN(5)] {
				g.Shares = append(g.Shares, lease.Share{Handle: uint32(h), Lease: number})
				want[uint32(h)] = number
			}
			st.put(g)
		}
		g := st.next()
		if (g == nil) != (number == 0) || g.GetNumber() != number || len(g.GetShares()) != len(want) {
			t.Fatalf("seed %d: %v, want %v", seed, g, want)
		}
		for _, s := range g.GetShares() {
			if s.GetLease() != want[s.GetHandle()] {
				t.Fatalf("seed %d: %v, want %v", seed, g, want)
			}
		}
	}
}
