package bucket

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/stint-io/stint/internal/fixed"
)

// TestTallyConcurrent: whoever adds at the same time, and however often it is read
// meanwhile, the total is what was added, and never goes back.
func TestTallyConcurrent(t *testing.T) {
	for range 50 {
		var sum tally
		var adders sync.WaitGroup
		want := int64(0)
		for i := range 8 {
			n := int64(1 + rand.IntN(5))
			want += 2000 * n
			adders.Go(func() {
				for range 2000 {
					sum.Add(n)
				}
				if i%2 == 0 {
					sum.Add(-1) // is possible, and exact as well
					sum.Add(1)
				}
			})
		}
		adders.Wait()
		if got := sum.Load(); got != want {
			t.Fatalf("%d, want %d", got, want)
		}
	}
}

// TestRefusedConcurrentAreAllCounted: many goroutines are refused by one bucket, with cells and
// before there are any. What was attempted is exact, and never goes back while they are.
func TestRefusedConcurrentAreAllCounted(t *testing.T) {
	for _, spread := range []bool{false, true} {
		b := NewBucket(nil)
		b.Update(start, 1, fixed.Whole(3), fixed.Whole(3))
		if spread {
			b.refused.spread.Store(new(cells))
		}
		const each = 5000
		var callers sync.WaitGroup
		for range 16 {
			callers.Go(func() {
				for i := range each {
					switch i % 4 {
					case 0:
						if taken, _ := b.Try(start, 1); !taken {
							b.Refuse(1)
						}
					case 1:
						b.Allow(start, -1) // is not counted
						b.Allow(start, 1)
					default:
						b.Allow(start, 1)
					}
				}
			})
		}
		stop := make(chan struct{})
		var reader sync.WaitGroup
		reader.Go(func() {
			last := fixed.Amount(0)
			for {
				r := b.Observe(start)
				if r.Attempted < last || r.Attempted > fixed.Whole(16*each) {
					t.Errorf("%v attempted, after %v", r.Attempted, last)
				}
				last = r.Attempted
				select {
				case <-stop:
					return
				default:
					runtime.Gosched()
				}
			}
		})
		callers.Wait()
		close(stop)
		reader.Wait()
		if r := b.Observe(start); r.Attempted != fixed.Whole(16*each) || r.Admitted != fixed.Whole(3) {
			t.Errorf("%v attempted and %v admitted, want %v and 3", r.Attempted, r.Admitted, fixed.Whole(16*each))
		}
	}
}

// TestTallyStaysSmall: one who adds alone needs no cells.
func TestTallyStaysSmall(t *testing.T) {
	var sum tally
	for range 1000 {
		sum.Add(2)
	}
	if sum.spread.Load() != nil || sum.Load() != 2000 {
		t.Errorf("%d, in cells: %v", sum.Load(), sum.spread.Load() != nil)
	}
}
