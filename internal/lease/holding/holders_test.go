package holding

import (
	"fmt"
	"testing"

	"github.com/stint-io/stint/internal/seeding"
)

// TestHoldersAreEncoded: what was included is covered after a round trip of the encoding, and
// little else.
func TestHoldersAreEncoded(t *testing.T) {
	r := seeding.Rand(t)
	for range 200 {
		var h Holders
		included := map[string]bool{}
		sessions, limits := 1+r.IntN(50), 1+r.IntN(10)
		for range r.IntN(100) {
			s, l := 1+r.Uint64N(uint64(sessions)), fmt.Sprint("limit", r.IntN(limits))
			h.Include(s, l)
			included[fmt.Sprint(s, l)] = true
		}
		got, err := DecodeHolders(h.Encode())
		if err != nil || got.Unknown || got.Sessions() != h.Sessions() {
			t.Fatalf("%d sessions became %d, %v", h.Sessions(), got.Sessions(), err)
		}
		for s := range uint64(sessions + 1) {
			for l := range limits {
				name := fmt.Sprint("limit", l)
				if n := len(h.of[s]); included[fmt.Sprint(s, name)] && !got.Covers(s, name) ||
					!included[fmt.Sprint(s, name)] && got.Covers(s, name) && !(n == 1 && h.of[s][0] == allLimits) {
					t.Fatalf("session %d, %s: included %v, covered %v", s, name, included[fmt.Sprint(s, name)], got.Covers(s, name))
				}
			}
		}
	}
}

// TestHoldersThatCannotBeRead are unknown: the successor then waits for everybody.
func TestHoldersThatCannotBeRead(t *testing.T) {
	var h Holders
	h.Include(7, "a")
	whole := h.Encode()
	for n := range whole {
		if n == 2 {
			continue // nobody
		}
		if got, err := DecodeHolders(whole[:n]); err == nil || !got.Unknown {
			t.Errorf("the first %d of %d bytes were read as %+v", n, len(whole), got)
		}
	}
	if got, err := DecodeHolders(append([]byte{9}, whole[1:]...)); err == nil || !got.Unknown {
		t.Errorf("another version was read as %+v", got)
	}
	for s := range uint64(MaxSessions + 1) {
		h.Include(s, "a")
	}
	if got, err := DecodeHolders(h.Encode()); err != nil || !got.Unknown || !h.Covers(1<<40, "b") {
		t.Errorf("too many sessions are %+v, %v", got, err)
	}
}

// TestHoldersIntersect: what both sets say is left, and neither is changed by later changes of the other.
func TestHoldersIntersect(t *testing.T) {
	r := seeding.Rand(t)
	for range 500 {
		var sets [2]Holders
		for i := range sets {
			if sets[i].Unknown = r.IntN(8) == 0; sets[i].Unknown {
				continue
			}
			for range r.IntN(30) {
				sets[i].Include(r.Uint64N(6), fmt.Sprint("limit", r.IntN(7)))
			}
		}
		both := sets[0].Clone()
		both.Intersect(&sets[1])
		for s := range uint64(6) {
			for l := range 7 {
				name := fmt.Sprint("limit", l)
				if want := sets[0].Covers(s, name) && sets[1].Covers(s, name); both.Covers(s, name) != want {
					t.Fatalf("session %d, %s: %v, want %v", s, name, !want, want)
				}
			}
		}
		before := string(sets[1].Encode())
		both.Include(1, "another")
		if string(sets[1].Encode()) != before {
			t.Fatal("the sets share memory")
		}
	}
}
