package due

import (
	"math/rand/v2"
	"testing"

	"github.com/stint-io/stint/internal/seeding"
	"github.com/stint-io/stint/limit"
)

type item struct {
	place Place
	at    limit.Time // as a model has it; 0 = in no queue
}

func (i *item) Place() *Place { return &i.place }

// TestQueueIsInOrder: whatever is set, moved and removed, the values that are due are those whose
// time has come, and the first time is the least.
func TestQueueIsInOrder(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for seed := range seeding.Draw(t, 200) {
		r := rand.New(rand.NewPCG(seed, 1))
		items := make([]*item, 1+r.IntN(60))
		for i := range items {
			items[i] = new(item)
		}
		var q Queue[*item]
		for range 400 {
			v := items[r.IntN(len(items))]
			switch r.IntN(5) {
			case 0:
				q.Remove(v)
				v.at = 0
			case 1:
				now := limit.Time(r.IntN(100))
				for v, ok := q.Due(now); ok; v, ok = q.Due(now) {
					if v.at == 0 || v.at > now {
						t.Fatalf("seed %d: one of %d is due at %d", seed, v.at, now)
					}
					q.Remove(v)
					v.at = 0
				}
				for _, o := range items {
					if o.at != 0 && o.at <= now {
						t.Fatalf("seed %d: one of %d is not due at %d", seed, o.at, now)
					}
				}
			default:
				v.at = limit.Time(1 + r.IntN(100))
				q.Set(v, v.at)
			}
			n, least := 0, limit.Time(1<<62)
			for _, o := range items {
				if o.place.In() != (o.at != 0) {
					t.Fatalf("seed %d: in the queue is %v, want %v", seed, o.place.In(), o.at != 0)
				}
				if o.at != 0 {
					n, least = n+1, min(least, o.at)
				}
			}
			if at, ok := q.First(); q.Len() != n || ok != (n > 0) || ok && at != least {
				t.Fatalf("seed %d: %d values, the first at %d, %v; want %d, %d", seed, q.Len(), at, ok, n, least)
			}
		}
	}
}

func BenchmarkQueue(b *testing.B) {
	const n = 100_000
	var q Queue[*item]
	r := rand.New(rand.NewPCG(1, 1))
	for range n {
		q.Set(new(item), limit.Time(r.IntN(1000*n)))
	}
	for b.Loop() {
		at, _ := q.First()
		v, _ := q.Due(at)
		q.Set(v, at+limit.Time(r.IntN(1000*n)))
	}
}
