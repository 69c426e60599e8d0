package limit_test

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

// A limiter at the rate Inf admits everything, whatever its burst and algorithm, and is a limit again with another rate.
func TestInf(t *testing.T) {
	for _, algorithm := range []limit.Algorithm{limit.TokenBucket, limit.LeakyBucket, limit.FixedWindow, limit.SlidingWindowCounter} {
		l, err := limit.NewLimiter(limit.Policy{Algorithm: algorithm, Rate: limit.Inf})
		if err != nil {
			t.Fatal(err)
		}
		everything := func() {
			t.Helper()
			for range 1000 {
				if !l.Allow() {
					t.Fatalf("%v: refused at the rate Inf", algorithm)
				}
			}
			if err := l.WaitN(context.Background(), math.MaxInt32); err != nil {
				t.Errorf("%v: %v", algorithm, err)
			}
		}
		everything()
		if err := l.SetRate(limit.PerHour(1)); err != nil {
			t.Fatal(err)
		}
		if l.Policy().Unlimited || l.AllowN(time.Now(), 2) {
			t.Errorf("%v: unlimited at one per hour", algorithm)
		}
		if err := l.SetRate(limit.Inf); err != nil {
			t.Fatal(err)
		}
		everything()
	}
	explicit, err := limit.NewLimiter(limit.Policy{Rate: limit.PerHour(1), Unlimited: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := explicit.SetRate(limit.PerHour(2)); err != nil || !explicit.Policy().Unlimited {
		t.Errorf("SetRate took Unlimited away: %v", err)
	}
}
