package cluster

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stint-io/stint/internal/seeding"
)

func membersOf(n int, r *rand.Rand) (members []Member) {
	for i := range n {
		members = append(members, Member{ID: fmt.Sprintf("node-%x-%d", r.Uint32(), i)})
	}
	return members
}

func scopesOf(n int) (scopes []string) {
	for i := range n {
		scopes = append(scopes, fmt.Sprintf("leases-%dof%d", i, n))
	}
	return scopes
}

// TestPreferredIsThatOfEveryVersion: members of several versions agree only if it never changes.
func TestPreferredIsThatOfEveryVersion(t *testing.T) {
	oneGoroutine(t)
	got := ""
	for _, scope := range scopesOf(16) {
		m, ok := Preferred([]Member{{ID: "a"}, {ID: "b"}, {ID: "c"}}, scope)
		if !ok {
			t.Fatal("nobody is preferred")
		}
		got += m.ID
	}
	if want := goldenPreferred; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if _, ok := Preferred(nil, "leases"); ok {
		t.Error("somebody of nobody is preferred")
	}
}

// TestPreferredMovesLittle: a member that leaves moves only what it had, one that joins takes only for
// itself, and the order of members does not matter; for random members.
func TestPreferredMovesLittle(t *testing.T) {
	oneGoroutine(t)
	for seed := range seeding.Draw(t, 200) {
		r := rand.New(rand.NewPCG(seed, 1))
		members := membersOf(2+r.IntN(12), r)
		gone := members[r.IntN(len(members))]
		rest := slices.DeleteFunc(slices.Clone(members), func(m Member) bool { return m == gone })
		r.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
		for _, scope := range scopesOf(64) {
			with, _ := Preferred(members, scope)
			without, _ := Preferred(rest, scope)
			if with != gone && with != without {
				t.Fatalf("seed %d: %s moved from %s to %s when %s left", seed, scope, with.ID, without.ID, gone.ID)
			}
		}
	}
}

// TestPreferredSpreads: of 64 scopes each of three members has a part that is binomial with p = 1/3:
// 21.3 with a deviation of 3.8. All three of 300 clusters stay within 5 deviations, 2 to 40, and nine
// of ten parts within two.
func TestPreferredSpreads(t *testing.T) {
	oneGoroutine(t)
	near, parts := 0, 0
	for seed := range seeding.Draw(t, 300) {
		members := membersOf(3, rand.New(rand.NewPCG(seed, 2)))
		count := map[string]int{}
		for _, scope := range scopesOf(64) {
			m, _ := Preferred(members, scope)
			count[m.ID]++
		}
		for _, m := range members {
			n := count[m.ID]
			if n < 3 || n > 40 {
				t.Errorf("seed %d: %s has %d of 64", seed, m.ID, n)
			}
			if parts++; n >= 14 && n <= 29 {
				near++
			}
		}
	}
	if near*10 < parts*9 {
		t.Errorf("%d of %d parts are near a third", near, parts)
	}
}

const goldenPreferred = "ababcabcaaaaabca"
