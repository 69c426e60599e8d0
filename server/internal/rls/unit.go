package rls

import (
	"math"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/stint-io/stint/limit"
)

// unitOf names the units, the largest first, as Envoy's service counts them.
func unitOf(i int) (pb.RateLimitResponse_RateLimit_Unit, time.Duration) {
	const day = 24 * time.Hour
	switch i {
	case 0:
		return pb.RateLimitResponse_RateLimit_YEAR, 365 * day
	case 1:
		return pb.RateLimitResponse_RateLimit_MONTH, 30 * day
	case 2:
		return pb.RateLimitResponse_RateLimit_WEEK, 7 * day
	case 3:
		return pb.RateLimitResponse_RateLimit_DAY, day
	case 4:
		return pb.RateLimitResponse_RateLimit_HOUR, time.Hour
	case 5:
		return pb.RateLimitResponse_RateLimit_MINUTE, time.Minute
	case 6:
		return pb.RateLimitResponse_RateLimit_SECOND, time.Second
	}
	return pb.RateLimitResponse_RateLimit_UNKNOWN, 0
}

// periodOf returns the length of a unit; 0 for UNKNOWN and for numbers that are
// no unit.
func periodOf(u pb.RateLimitResponse_RateLimit_Unit) time.Duration {
	for i := 0; ; i++ {
		if unit, d := unitOf(i); d == 0 || unit == u {
			return d
		}
	}
}

// UnitName returns the name of the unit of that length; "UNKNOWN" where there is none.
func UnitName(period time.Duration) string {
	for i := 0; ; i++ {
		if unit, d := unitOf(i); d == 0 || d == period {
			return unit.String()
		}
	}
}

// setRate writes a policy as requests per unit. A period that is no multiple of a
// second has no unit in this protocol, and neither has a number of permits:
// the unit is then UNKNOWN.
func setRate(to *pb.RateLimitResponse_RateLimit, p limit.Policy) {
	if p.Algorithm == limit.Concurrency {
		to.RequestsPerUnit = clamp(p.MaxInFlight)
		return
	}
	to.RequestsPerUnit = clamp(p.Rate.Count)
	for i := 0; ; i++ {
		unit, d := unitOf(i)
		if d == 0 {
			return
		}
		n := int64(p.Rate.Period / d)
		if n == 0 || p.Rate.Period%d != 0 || n > math.MaxUint32 {
			continue
		}
		to.Unit = unit
		if n > 1 {
			to.UnitMultiplier = wrapperspb.UInt32(uint32(n))
		}
		return
	}
}

func clamp(n int64) uint32 { return uint32(min(max(n, 0), math.MaxUint32)) }
