package explore

import (
	"maps"
	"reflect"
	"slices"
	"testing"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
)

// explored returns a universe in which some thousand states were found.
func explored(t *testing.T) *Universe {
	t.Helper()
	u, w := New(lease.Terms{Rate: 4 * fixed.Token, Burst: 4 * fixed.Token}, [2]fixed.Amount{4 * fixed.Token, 4 * fixed.Token}, [4]bool{}, budget{crashes: 1, cuts: 1, repeats: 1, leaves: 1})
	for range 60 {
		if fault := u.calm(w); fault != "" {
			t.Fatal(fault)
		}
	}
	if v := NewSearch(u, w).Run(5000, func(*World) string { return "" }); v != nil {
		t.Fatal(v.Fault)
	}
	return u
}

// TestACopyBehavesAsTheOriginal: a machine that went from its beginning to a state without a copy
// in between is the same as the one that the search has for this state, and what is done to a
// copy does not change the original.
func TestACopyBehavesAsTheOriginal(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	u := explored(t)
	checkCopies(t, u.fleet.coordinators)
	checkCopies(t, u.fleet.instances)
}

func checkCopies[M, F any](t *testing.T, s *machines[M, F]) {
	t.Helper()
	digests := make([]digest, len(s.list))
	for d, n := range s.known {
		digests[n] = d
	}
	keys := slices.SortedFunc(maps.Keys(s.steps), func(a, b step) int { return int(a.of) - int(b.of) })
	for i, key := range keys {
		if key.of == 0 || i%7 != 0 {
			continue
		}
		original := s.machine(key.of)
		copied := deepCopy(s.copier, original)
		out := s.step(copied, key.in)
		if digestOf(s.encoder, original) != digests[key.of] {
			t.Fatalf("state %d changed by a step of its copy", key.of)
		}
		if want := s.steps[key]; digestOf(s.encoder, copied) != digests[want.next] || !out.equal(&want) {
			t.Fatalf("the step %+v of state %d differs the second time", key.in, key.of)
		}
		var inputs []input
		n := key.of
		for ; n != 0; n = s.list[n].before {
			inputs = append(inputs, s.list[n].by)
		}
		m := s.make(inputs[len(inputs)-1])
		for j := len(inputs) - 2; j >= 0; j-- {
			s.step(m, inputs[j])
		}
		want := s.steps[key]
		if out = s.step(m, key.in); digestOf(s.encoder, m) != digests[want.next] || !out.equal(&want) {
			t.Fatalf("without copies, %d steps lead elsewhere than to state %d", len(inputs), s.steps[key].next)
		}
	}
	if len(keys) < 150 {
		t.Errorf("checked %d steps of %T only", len(keys), s)
	}
}

// equal says whether two steps say the same.
func (o *outcome) equal(p *outcome) bool {
	return slices.Equal(o.messages, p.messages) && slices.Equal(o.must, p.must) && o.levels == p.levels && o.used == p.used && o.admitted == p.admitted
}

// TestCopyFollowsEveryPointer: cycles, pointers into the middle of an object, maps, slices and
// interfaces.
func TestCopyFollowsEveryPointer(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	type inner struct {
		n     int
		outer any
	}
	type outer struct {
		name  string
		embed inner
		peers []*inner
		by    map[string]*outer
		none  map[string]*outer
		lists map[int][]byte
	}
	a, b := &outer{name: "a"}, &outer{name: "b"}
	a.embed.n, b.embed.n = 1, 2
	a.peers = []*inner{&b.embed, &a.embed, nil} // before the objects that they are in
	b.embed.outer, a.embed.outer = a, b
	a.by = map[string]*outer{"b": b, "a": a}
	a.lists = map[int][]byte{1: {1, 2}}
	l := layouts{}
	c := deepCopy(newCopier(l), a)
	if !reflect.DeepEqual(a, c) || digestOf(newEncoder(l), a) != digestOf(newEncoder(l), c) {
		t.Fatalf("%+v became %+v", a, c)
	}
	if c.none != nil {
		t.Error("a map that is nil became one that is not")
	}
	if c.peers[1] != &c.embed || c.by["a"] != c || c.by["b"] == b || c.peers[0] != &c.by["b"].embed || c.embed.outer != any(c.by["b"]) {
		t.Errorf("the copy has pointers that lead elsewhere: %+v", c)
	}
	c.lists[1][0] = 9
	c.by["b"].embed.n = 7
	if a.lists[1][0] != 1 || b.embed.n != 2 || digestOf(newEncoder(l), a) == digestOf(newEncoder(l), c) {
		t.Error("the copy shares memory with the original, or their digests do not differ")
	}
}

// TestIgnoredFieldsExist: what the hash ignores are fields of the machines.
func TestIgnoredFieldsExist(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	found := 0
	for _, l := range explored(t).fleet.coordinators.layouts {
		for _, f := range l.fields {
			if f.ignored {
				found++
			}
		}
	}
	if found != len(ignored) {
		t.Errorf("%d of %d ignored fields are in the machines", found, len(ignored))
	}
}
