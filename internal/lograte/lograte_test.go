package lograte

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// TestMinute: one event a minute is logged, of however many at a time.
func TestMinute(t *testing.T) {
	var m Minute
	at := time.Unix(1, 0)
	for _, step := range []struct {
		after time.Duration
		want  int32
	}{{0, 1}, {0, 0}, {time.Minute - 1, 0}, {1, 1}, {time.Hour, 1}, {time.Second, 0}} {
		at = at.Add(step.after)
		var allowed atomic.Int32
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				if m.Allow(at) {
					allowed.Add(1)
				}
			})
		}
		all.Wait()
		if allowed.Load() != step.want {
			t.Errorf("at %v: %d were allowed, want %d", at, allowed.Load(), step.want)
		}
	}
}
