package bucket

import (
	"math"
	"testing"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// TestNewBucketHoldsNothing: not even room, at any time.
func TestNewBucketHoldsNothing(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, now := range []limit.Time{0, 1, start, math.MaxInt64 - 1} {
		if b := NewBucket(nil); b.MaxCost(now) != 0 || b.Remaining(now) != 0 || b.Observe(now).Level != 0 || b.Earliest(now, 1) != limit.Never {
			t.Errorf("at %d a new bucket has %d of %d", now, b.Remaining(now), b.MaxCost(now))
		}
	}
}

// TestBucketAtTheEndOfItsSpan: the last moment that its setting counts is as good as those before and
// after it: what comes is decided, and the level goes on.
func TestBucketAtTheEndOfItsSpan(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, rate := range []fixed.Amount{1000 * fixed.Token, 8_000_000 * fixed.Token} {
		for _, off := range []limit.Time{-1, 0, 1} {
			b := bucketOf(start, rate, 100, 0)
			end := start + limit.Time(b.setting.Load().span) + off
			if h, taken, _ := b.Prepare(end, 40); taken {
				b.Rollback(end, h, 40)
			} else {
				t.Errorf("%v/s: 40 of 100 are not there", rate)
			}
			if ok, _ := b.Try(end, 30); !ok || !allow(t, b, end, 70) || allow(t, b, end, 1) {
				t.Errorf("%v/s: 100 are not there at the end of the span, or more", rate)
			}
			if came := b.Observe(end + second/limit.Time(rate.Floor())).Level; came < fixed.Token-2 || came > fixed.Token {
				t.Errorf("%v/s: %v come in the time of one", rate, came)
			}
		}
	}
}
