package throttle_test

import (
	"context"
	"testing"
	"time"

	"github.com/stint-io/stint/throttle"
)

// A hook that panics takes no place for ever: who called Start has no Work whose Done it could call.
func TestHookThatPanicsHoldsNoPlace(t *testing.T) {
	calls := 0
	th := newThrottle(t, throttle.Options{Concurrency: 1, Hooks: throttle.Hooks{
		OnStart: func(throttle.Criticality, time.Duration, time.Duration) {
			if calls++; calls == 1 {
				panic("a fault of the program")
			}
		},
	}})
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is hidden")
			}
		}()
		_, _, _ = th.Start(t.Context(), throttle.Request{})
	}()
	if s := th.Stats(); s.Running != 0 {
		t.Errorf("%d run", s.Running)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	w, d, err := th.Start(ctx, throttle.Request{})
	if err != nil || !d.Allowed {
		t.Fatalf("the next: %v, %v", d, err)
	}
	w.Done()
}
