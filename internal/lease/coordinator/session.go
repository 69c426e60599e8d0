package coordinator

import (
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/lease/pool"
	"github.com/stint-io/stint/limit"
)

// session is one run of one instance.
type session struct {
	lease.Member
	version  uint32
	site     bool   // it lends on what it is lent
	number   uint64 // of the last Grant
	accounts map[uint32]*account
	of       map[*resource]*account
	closed   pool.Closed // buckets of limits per instance

	timing
	expires limit.Time // when the coordinator takes back what the instance holds

	cuts   []*account    // accounts that have a cap and hold more than it
	shares []lease.Share // of the Grant that the next flush makes
	queued bool          // the session is in the coordinator's list of grants to make
}

// timing is when the reports of a session were sent and came.
type timing struct {
	latest     uint64        // the number of the latest report
	stamp      time.Duration // when the latest report that has renewed the leases was sent, by the instance's clock
	receivedAt limit.Time    // when that came
	late       time.Duration // how much longer it was in transit than the fastest one
	offset     time.Duration // the least difference between arrival and stamp: the clocks' plus the transit
	timed      bool          // there is an offset
	sent       time.Duration // the stamp of the report that is being received
}

// transit measures how much longer than the fastest one the latest report was in transit.
// The offset follows slowly upwards, by 1/256 of the difference per report, since the clocks
// drift apart.
func (s *timing) transit(now limit.Time, stamp time.Duration) {
	offset := time.Duration(now) - stamp
	if s.late = offset - s.offset; !s.timed || s.late <= 0 {
		s.late, s.offset, s.timed = 0, offset, true
	}
	s.offset += s.late / 256
}
