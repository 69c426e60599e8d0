package agree

import (
	"fmt"
	"math/rand/v2"

	"google.golang.org/protobuf/types/known/wrapperspb"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	rls "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	kind "github.com/envoyproxy/go-control-plane/envoy/type/v3"
)

// Draw returns a random request: most of its descriptors are those of the set's
// rules, some are changed so that they miss or meet another rule. One in a hundred
// is a request that a service refuses to answer.
//
// No limit comes with a request without a unit: that ends envoyproxy/ratelimit.
func (s Set) Draw(rng *rand.Rand) *rls.RateLimitRequest {
	file := s.Files[rng.IntN(len(s.Files))]
	q := &rls.RateLimitRequest{Domain: file.Domain}
	switch rng.IntN(200) {
	case 0:
		q.Domain = ""
	case 1:
		return q // without descriptors
	case 2, 3, 4:
		q.Domain = "nobody's"
	}
	for range 1 + []int{0, 0, 0, 0, 0, 1, 1, 2, 2, 4}[rng.IntN(10)] {
		d := s.descriptor(rng, file)
		if n := len(q.Descriptors); n > 0 && rng.IntN(12) == 0 {
			d.Entries = q.Descriptors[rng.IntN(n)].Entries
		}
		q.Descriptors = append(q.Descriptors, d)
	}
	switch n := rng.IntN(100); {
	case n < 10:
		q.HitsAddend = 1
	case n < 28:
		q.HitsAddend = 2 + rng.Uint32N(4)
	case n < 34:
		q.HitsAddend = 10 + rng.Uint32N(60)
	case n < 36:
		q.HitsAddend = 1_000_000
	}
	return q
}

func (s Set) descriptor(rng *rand.Rand, file File) *common.RateLimitDescriptor {
	d := &common.RateLimitDescriptor{}
	for rules := file.Descriptors; len(rules) > 0; {
		r := rules[rng.IntN(len(rules))]
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: r.Key, Value: concrete(rng, r.Value)})
		rules = r.Descriptors
		if r.Limit != nil && rng.IntN(3) == 0 {
			break
		}
	}
	if rng.IntN(6) == 0 {
		mutate(rng, d)
	}
	if rng.IntN(5) == 0 {
		d.HitsAddend = wrapperspb.UInt64([]uint64{0, 0, 1, 2, 3, 5, 50}[rng.IntN(7)])
	}
	if rng.IntN(20) == 0 {
		units := []kind.RateLimitUnit{kind.RateLimitUnit_SECOND, kind.RateLimitUnit_MINUTE, kind.RateLimitUnit_HOUR, kind.RateLimitUnit_DAY, kind.RateLimitUnit_MONTH, kind.RateLimitUnit_YEAR}
		d.Limit = &common.RateLimitDescriptor_RateLimitOverride{RequestsPerUnit: rng.Uint32N(20), Unit: units[rng.IntN(len(units))]}
		if rng.IntN(4) > 0 { // a value that no rule counts, most of the time
			d.Entries[len(d.Entries)-1].Value = fmt.Sprintf("own%d", rng.IntN(10))
		}
	}
	return d
}

// mutate changes a descriptor at one place.
func mutate(rng *rand.Rand, d *common.RateLimitDescriptor) {
	n := len(d.Entries)
	e := d.Entries[rng.IntN(n)]
	switch rng.IntN(7) {
	case 0:
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: "more", Value: "x"})
	case 1:
		if n > 1 {
			d.Entries = d.Entries[:n-1]
		}
	case 2:
		e.Value = "other"
	case 3:
		e.Value += "_x"
	case 4:
		e.Key += "_x"
	case 5:
		e.Value = ""
	case 6:
		d.Entries[0], d.Entries[n-1] = d.Entries[n-1], d.Entries[0]
	}
}
