package main

import (
	"context"
	"math/rand/v2"
	"runtime/debug"
	"testing"
	"testing/synctest"
	"time"
)

func TestGCPercent(t *testing.T) {
	const mib = 1 << 20
	for _, tt := range []struct {
		live, tables int64
		want         int
	}{
		{0, 0, 100},
		{4 * mib, 0, 100},
		{100 * mib, 0, 100},
		{1000 * mib, 0, 100},
		{1000 * mib, 500 * mib, 50},
		{300 * mib, 256 * mib, 20},
		{8000 * mib, 7950 * mib, 10},
		{100 * mib, 200 * mib, 10}, // the tables have grown since
	} {
		if got := gcPercent(tt.live, tt.tables); got != tt.want {
			t.Errorf("%d MiB alive, %d of them tables: %d, want %d", tt.live/mib, tt.tables/mib, got, tt.want)
		}
	}
	for range 10_000 { // tables have no share in the garbage, but for the rounding
		live := 1 + rand.Int64N(1<<34)
		tables := rand.Int64N(live)
		got := int64(gcPercent(live, tables))
		if most := live - tables + leastGarbage; got > 10 && live/100*got > most || got < 100 && live/100*(got+10) < most-live/50 {
			t.Fatalf("%d alive, %d of them tables: %d %%", live, tables, got)
		}
	}
}

// The pace is Go's own when the service has ended, and not touched where GOGC says it.
func TestPaceCollector(t *testing.T) {
	before := debug.SetGCPercent(100)
	defer debug.SetGCPercent(before)
	for gogc, want := range map[string]int{"": 100, "77": 33} {
		t.Setenv("GOGC", gogc)
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			asked := 0
			go func() {
				defer close(done)
				paceCollector(ctx, func() int64 { asked++; return 1 << 40 })
			}()
			time.Sleep(10*collectorEvery + 1)
			synctest.Wait()
			debug.SetGCPercent(33)
			cancel()
			<-done
			if got := debug.SetGCPercent(100); got != want || gogc == "" && asked != 10 {
				t.Errorf("GOGC=%q: asked %d times, %d %% afterwards", gogc, asked, got)
			}
		})
	}
}
