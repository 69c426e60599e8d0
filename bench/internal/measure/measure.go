// Package measure runs contenders in turn, in short slices, and compares them
// round by round: on a machine whose speed wanders, two figures are comparable
// only when they were taken within the same second.
//
// It knows nothing of limiters and prints nothing.
package measure

import (
	"runtime"
	"runtime/debug"
	"sync"
	"time"
)

// Batch is how many operations run between two looks at the clock. Not smaller:
// the look itself, some 50 ns, would show in operations as short as that. Not
// larger: at a microsecond each, a batch already takes 2 ms of a 200 ms slice.
const Batch = 2048

// Sample is one slice of one contender.
type Sample struct {
	Ops      int64   // operations done
	Yes      int64   // of these, answered yes
	Allocs   int64   // heap objects allocated meanwhile by the whole process
	NsPerOp  float64 // wall nanoseconds per operation, over all threads together
	ByWorker []int64 // operations by worker
}

// AllocsPerOp is the heap objects allocated per operation.
func (s Sample) AllocsPerOp() float64 { return float64(s.Allocs) / float64(s.Ops) }

// Slice runs spin on the given number of goroutines for about d and counts.
// spin(worker, n) does n operations and returns how many were answered yes.
func Slice(workers int, d time.Duration, spin func(worker, n int) int) Sample {
	type result struct {
		ops, yes int64
		elapsed  time.Duration
		_        [40]byte // a cache line of its own
	}
	results := make([]result, workers)
	begin := make(chan struct{})
	var ended sync.WaitGroup
	var before, after runtime.MemStats
	for w := range workers {
		ended.Go(func() {
			<-begin
			var ops, yes int64
			start := time.Now()
			for time.Since(start) < d {
				yes += int64(spin(w, Batch))
				ops += Batch
			}
			results[w] = result{ops: ops, yes: yes, elapsed: time.Since(start)}
		})
	}
	runtime.ReadMemStats(&before)
	close(begin)
	ended.Wait()
	runtime.ReadMemStats(&after)

	s := Sample{ByWorker: make([]int64, workers), Allocs: int64(after.Mallocs - before.Mallocs)}
	var opsPerNs float64
	for w, r := range results {
		s.Ops += r.ops
		s.Yes += r.yes
		s.ByWorker[w] = r.ops
		opsPerNs += float64(r.ops) / float64(r.elapsed.Nanoseconds())
	}
	s.NsPerOp = 1 / opsPerNs
	return s
}

// garbageBound is how much garbage may pile up between slices before it is
// collected. Large enough that a collection is rare, small enough for a laptop.
const garbageBound = 1 << 30

// Interleave takes one sample of each of n contenders per round, in an order
// that shifts by one each round, after one round that is thrown away. The
// result is indexed by contender, then by round.
//
// The collector is off during slices: all contenders live in one heap, and each
// would otherwise pay for marking the others' keys.
func Interleave[S any](rounds, n int, sample func(contender int) (S, error)) ([][]S, error) {
	defer debug.SetGCPercent(debug.SetGCPercent(-1))
	runtime.GC()
	var clean runtime.MemStats
	runtime.ReadMemStats(&clean)

	out := make([][]S, n)
	for round := -1; round < rounds; round++ {
		for i := range n {
			c := (i + round + 1) % n
			s, err := sample(c)
			if err != nil {
				return nil, err
			}
			if round >= 0 {
				out[c] = append(out[c], s)
			}
			var now runtime.MemStats
			if runtime.ReadMemStats(&now); now.HeapAlloc > clean.HeapAlloc+garbageBound {
				runtime.GC()
			}
		}
	}
	return out, nil
}
