package accepts

import (
	"time"

	"github.com/stint-io/stint/limit"
)

// plain is the throttle as the book has it, for comparison: requests that the program wanted to
// send, and accepts, of one class in a sliding window, and the formula as it stands.
type plain struct {
	k        float64
	slot     int64
	requests [slots]int64
	accepted [slots]int64
	part     int64
}

func newPlain(k float64, window time.Duration) *plain {
	return &plain{k: k, slot: int64(window) / slots}
}

func (p *plain) send(now limit.Time, draw float64) bool {
	i := p.at(now)
	var requests, accepts float64
	for j := range slots {
		requests += float64(p.requests[j])
		accepts += float64(p.accepted[j])
	}
	p.requests[i]++
	return draw >= max(0, (requests-p.k*accepts)/(requests+1))
}

func (p *plain) answered(now limit.Time, accepted bool) {
	if i := p.at(now); accepted {
		p.accepted[i]++
	}
}

func (p *plain) at(now limit.Time) int64 {
	part := int64(now) / p.slot
	for i := max(p.part+1, part-slots+1); i <= part; i++ {
		p.requests[i%slots], p.accepted[i%slots] = 0, 0
	}
	p.part = part
	return part % slots
}
