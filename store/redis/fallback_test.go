package redis

import (
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

// TestShares: n shares admit at once no more than the whole, or n where the whole is
// less; and the rates of buckets, which can be divided exactly, add up to the whole's.
func TestShares(t *testing.T) {
	for _, algorithm := range []limit.Algorithm{limit.TokenBucket, limit.LeakyBucket, limit.FixedWindow, limit.SlidingWindowLog, limit.SlidingWindowCounter, limit.Concurrency} {
		for _, quota := range []int64{0, 1, 2, 3, 7, 100, 1000} {
			for n := int64(1); n < 12; n++ {
				p := limit.Policy{Algorithm: algorithm, Rate: limit.PerSecond(quota), Burst: quota, MaxInFlight: quota, Timeout: time.Minute}
				share := shareOf(p, n)
				if err := share.Validate(); err != nil {
					t.Fatalf("a share in %d of %v %d: %v", n, algorithm, quota, err)
				}
				if whole, sum := p.Quota(), n*share.Quota(); sum > max(whole, n) || whole > 0 && sum == 0 || whole == 0 && sum > 0 {
					t.Errorf("%d shares of %v %d admit %d at once", n, algorithm, whole, sum)
				}
				if b := algorithm == limit.TokenBucket || algorithm == limit.LeakyBucket; b && share.Rate != (limit.Rate{Count: quota, Period: time.Duration(n) * time.Second}) {
					t.Errorf("a share in %d of %v is %v", n, p.Rate, share.Rate)
				}
			}
		}
	}
}
