package coordinator

import (
	"time"

	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

// session is one run of one instance.
type session struct {
	lease.Member
	version  uint32
	number   uint64 // of the last Grant
	accounts map[uint32]*account
	of       map[*resource]*account

	timing
	expires limit.Time // when the coordinator takes back what the instance holds

	cuts   []*account    // accounts that have a cap and hold more than it
	shares []lease.Share // of the Grant that the next flush makes
	queued bool          // the session is in the coordinator's list of grants to make
}

// timing is when the reports of a session were sent and came.
type timing struct {
	latest  uint64        // the number of the latest report
	stamp   time.Duration // when that was sent, by the instance's clock
	heardAt limit.Time    // when it came
	late    time.Duration // how much longer it was under way than the fastest one
	offset  time.Duration // the least difference between arrival and stamp: the clocks' plus the transit
	timed   bool          // there is an offset
	sent    time.Duration // the stamp of the report that is being received
}

// cut notes that a got a cap. Until its report shows that it has come down, every Grant to
// its session repeats the cap: a Grant renews all leases, and a lease that is renewed by a
// Grant without the cap would be used above it.
func (s *session) cut(a *account) {
	if !a.cutting {
		a.cutting = true
		s.cuts = append(s.cuts, a)
	}
}

// uncut forgets the cuts of accounts that have come down to their caps.
func (s *session) uncut() {
	left := s.cuts[:0]
	for _, a := range s.cuts {
		h := a.held()
		if a.cutting = !a.closed && a.lease != 0 && (h.Rate > a.capRate || h.Burst > a.capBurst); a.cutting {
			left = append(left, a)
		}
	}
	clear(s.cuts[len(left):])
	s.cuts = left
}

// transit measures how much longer than the fastest one the latest report was under way.
// The offset follows slowly upwards, by 1/256 of the difference per report, since the clocks
// drift apart.
func (s *timing) transit(now limit.Time, stamp time.Duration) {
	offset := time.Duration(now) - stamp
	if s.late = offset - s.offset; !s.timed || s.late <= 0 {
		s.late, s.offset, s.timed = 0, offset, true
	}
	s.offset += s.late / 256
}
