package tables

import (
	"fmt"
	"runtime"
	"time"

	"github.com/stint-io/stint/bench/internal/contender"
	"github.com/stint-io/stint/bench/internal/measure"
)

// Memory is what a key costs: bytes of heap, and time of each full collection.
func Memory(cfg Config, rep *Report) error {
	keys := contender.NewKeys(cfg.Keys)
	contenders := append([]contender.Contender{contender.FlatTable(), contender.Stint()}, contender.Rivals()...)
	rows := [][]string{{"no limiter", "–", collections().Format("%.1f")}}
	for _, c := range contenders {
		bytes, gc, err := weigh(c, keys)
		if err != nil {
			return err
		}
		rows = append(rows, []string{c.Name, fmt.Sprintf("%.1f", bytes), gc.Format("%.1f")})
		if c.Name == contender.StintName {
			rep.AtMost("memory per key", bytes, 48, " bytes")
			rep.AtMost("full collection with all keys", gc.Median(), 20, " ms")
		}
	}
	rep.Section(fmt.Sprintf("Memory of %d keys", cfg.Keys),
		"Heap that stays after two full collections, per key of 16 bytes, and the wall time of a full collection (median of 5).",
		"The keys' own bytes existed before and are not counted, so a contender pays for them only if it copies them.",
		"Each key had one of one admitted; afterwards each was asked for again and refused, so that all were there.")
	rep.Table([]string{"", "bytes per key", "full GC, ms"}, rows)
	return nil
}

// weigh fills a contender and measures the heap before and after.
func weigh(c contender.Contender, keys *contender.Keys) (bytesPerKey float64, gc measure.Series, err error) {
	plan := contender.Refused
	if c.Blocks {
		plan = contender.AlwaysAllowed
	}
	const foreign = 16 << 20 // what the program itself may hold beside the keys
	before := liveHeap()
	if others := before - int64(keys.Len()*contender.KeyLen); others > foreign {
		return 0, nil, fmt.Errorf("bench: %d bytes of others are in the heap before %s is: its collections would be theirs", others, c.Name)
	}
	l, err := c.New(plan)
	if err != nil {
		return 0, nil, fmt.Errorf("bench: %s: %w", c.Name, err)
	}
	defer contender.Close(l)
	for i := range keys.Len() {
		if !l.Allow(keys.At(i)) {
			return 0, nil, fmt.Errorf("bench: %s refused the first request of key %d", c.Name, i)
		}
	}
	bytesPerKey = float64(liveHeap()-before) / float64(keys.Len())
	gc = collections()
	for i := range keys.Len() {
		if l.Allow(keys.At(i)) && !c.Blocks {
			return 0, nil, fmt.Errorf("bench: %s forgot key %d", c.Name, i)
		}
	}
	return bytesPerKey, gc, nil
}

// liveHeap returns the bytes of heap in use after two full collections: the
// first queues finalizers, the second frees what they held.
func liveHeap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// collections times five full collections, in milliseconds.
func collections() measure.Series {
	s := make(measure.Series, 5)
	for i := range s {
		start := time.Now()
		runtime.GC()
		s[i] = float64(time.Since(start).Microseconds()) / 1000
	}
	return s
}
