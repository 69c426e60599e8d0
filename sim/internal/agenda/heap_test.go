package agenda

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stint-io/stint/internal/seeding"
)

// The heap gives back what a sort would, whatever the order of pushes, pops and
// replacements.
func TestHeapEqualsSort(t *testing.T) {
	for seed := range seeding.Draw(t, 300) {
		r := rand.New(rand.NewPCG(seed, 1))
		var h Heap[int32]
		var model []Event[int32]
		least := func() int {
			at := 0
			for i := range model {
				if model[i].before(&model[at]) {
					at = i
				}
			}
			return at
		}
		for seq := range uint64(400) {
			e := Event[int32]{At: r.Int64N(50), Seq: seq, Of: int32(seq)}
			switch k := r.IntN(4); {
			case k < 2 || len(model) == 0:
				h.Push(e)
				model = append(model, e)
			case k == 2:
				at := least()
				if got := h.Pop(); got != model[at] {
					t.Fatalf("seed %d: popped %+v, want %+v", seed, got, model[at])
				}
				model = slices.Delete(model, at, at+1)
			default:
				h.Replace(e)
				model[least()] = e
			}
		}
		slices.SortFunc(model, func(a, b Event[int32]) int {
			return cmp.Or(cmp.Compare(a.At, b.At), cmp.Compare(a.Seq, b.Seq))
		})
		for _, want := range model {
			if got := h.Pop(); got != want {
				t.Fatalf("seed %d: popped %+v, want %+v", seed, got, want)
			}
		}
	}
}
