package main

import (
	"context"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"time"
)

const (
	// collectorEvery is how often the pace of the garbage collector is set. Not less
	// often: a flood fills tens of megabytes in that time. Not more often: it stops the
	// process for some microseconds if it changes something.
	collectorEvery = 250 * time.Millisecond

	// leastGarbage is what may lie around however little is alive. Not less: a small
	// service would collect all the time.
	leastGarbage = 16 << 20
)

// paceCollector sets the pace of the garbage collector until ctx ends, so that the memory of
// the process is that of the counters and of what else is alive, and not twice all of that.
// By Go's own rule as much garbage may lie around as there is alive. The tables of counters
// have no pointers, so that it costs nothing to have them alive when garbage is collected,
// and count here for no garbage. A GOGC that is set is kept.
func paceCollector(ctx context.Context, tables func() int64) {
	if os.Getenv("GOGC") != "" {
		return
	}
	live := []metrics.Sample{{Name: "/gc/heap/live:bytes"}}
	percent := 100
	ticker := time.NewTicker(collectorEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			debug.SetGCPercent(100)
			return
		case <-ticker.C:
		}
		metrics.Read(live)
		if next := gcPercent(int64(live[0].Value.Uint64()), tables()); next != percent {
			percent = next
			debug.SetGCPercent(percent)
		}
	}
}

// gcPercent is GOGC for a heap of which so much is alive: in tenths, so that it is not set
// all the time; Go's own 100 at most.
func gcPercent(live, tables int64) int {
	if live <= 0 {
		return 100
	}
	garbage := max(live-tables, 0) + leastGarbage
	return int(min(max(garbage*10/live, 1), 10)) * 10
}
