package bucket

import (
	"sync/atomic"
	"unsafe"
)

// tally is a running total to which many add. Its zero value is 0. Nothing is estimated:
// a total that is read holds all that was added before.
//
// It is one word until two processors add at the same time. From then on each goroutine
// adds to one of several cells, which its stack chooses: a cache line that goes to and
// fro between two processors costs more than the whole decision that is counted.
type tally struct {
	alone  atomic.Int64
	spread atomic.Pointer[cells]
}

// tallyCells is a power of two. Not fewer: two goroutines share one in one of so many
// cases, and then wait for each other. Not more: it is memory for each limit that is asked
// by several processors at a time, 2 KiB.
const (
	tallyCells = 16
	tallyBits  = 4
)

// cell has a pair of cache lines to itself: processors fetch them in pairs.
type cell struct {
	n atomic.Int64
	_ [120]byte
}

func (t *tally) Add(n int64) {
	if cells := t.spread.Load(); cells != nil {
		cells.add(n)
		return
	}
	t.addAlone(n)
}

// addAlone adds while there are no cells, and makes them when another processor adds too.
func (t *tally) addAlone(n int64) {
	if was := t.alone.Load(); t.alone.CompareAndSwap(was, was+n) {
		return
	}
	t.spread.CompareAndSwap(nil, new(cells))
	t.spread.Load().add(n)
}

// cells are those of a tally.
type cells [tallyCells]cell

func (c *cells) add(n int64) {
	var here byte
	stack := uint64(uintptr(unsafe.Pointer(&here))) >> 11 // the smallest stack has 2 KiB
	c[stack*0x9e3779b97f4a7c15>>(64-tallyBits)].n.Add(n)
}

// Load returns the total. It is never below what it was before, as long as no caller adds
// less than 0.
func (t *tally) Load() int64 {
	n := t.alone.Load()
	if cells := t.spread.Load(); cells != nil {
		for i := range cells {
			n += cells[i].n.Load()
		}
	}
	return n
}
