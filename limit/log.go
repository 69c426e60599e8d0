package limit

import (
	"time"
	"unsafe"
)

// SlidingLog is the arithmetic of a sliding window log: never more than
// Rate.Count in any window of Rate.Period, exactly. The window at t is (t-Period,
// t]: what was taken exactly a period ago is out of it.
//
// It remembers each request, 16 bytes for each moment at which something was
// taken, at most Rate.Count+1 of them. A SlidingLog is a value without state, safe
// for concurrent use.
type SlidingLog struct {
	quota        int64
	period       time.Duration
	countRefused bool
	unlimited    bool
}

// LogState is the state of one key under a [SlidingLog]: a ring of times and costs. The zero
// value is a new key. It refers to memory of its own: copy it with Clone.
type LogState struct {
	ring []logEntry // its length is a capacity
	head int        // the oldest entry
	n    int
	sum  int64 // the cost of all n
}

type logEntry struct {
	at   Time
	cost int64
}

// NewSlidingLog returns the arithmetic of a SlidingWindowLog policy, which must be
// valid.
func NewSlidingLog(p Policy) SlidingLog {
	return SlidingLog{
		quota: p.Rate.Count, period: max(p.Rate.Period, 1),
		countRefused: p.CountRefused, unlimited: p.Unlimited,
	}
}

// CountingRefused returns the arithmetic of the same limit under a policy that counts
// refused requests.
func (l SlidingLog) CountingRefused() SlidingLog {
	l.countRefused = true
	return l
}

// Take takes cost at now if it fits. If it does not, s changes only when the
// policy counts refused requests. cost is at least 0.
func (l *SlidingLog) Take(s *LogState, now Time, cost int64) Verdict {
	if l.unlimited {
		return unlimitedVerdict()
	}
	now = max(now, 0)
	_, used := l.live(s, now)
	fits := l.fits(used, cost)
	if cost > 0 && (fits || l.countRefused) {
		l.record(s, now, cost)
	}
	return l.verdict(s, now, cost, 0, fits)
}

// Peek answers whether cost would fit and changes nothing. Its RetryAfter holds for a caller
// that has not asked yet: a refusal by Take may itself be counted.
func (l *SlidingLog) Peek(s LogState, now Time, cost int64) Verdict {
	if l.unlimited {
		return unlimitedVerdict()
	}
	now = max(now, 0)
	_, used := l.live(&s, now)
	if l.fits(used, cost) {
		return l.verdict(&s, now, cost, cost, true)
	}
	return l.verdict(&s, now, cost, 0, false)
}

// Refuse records a request that was refused, by this limit or by another: it
// stays in the log if the policy counts refused requests.
func (l *SlidingLog) Refuse(s *LogState, now Time, cost int64) {
	if l.countRefused && !l.unlimited && cost > 0 {
		l.record(s, max(now, 0), cost)
	}
}

// Refund gives back cost, taken within the last period. It is removed from the oldest entries,
// whatever entries were the caller's, so no window then holds more than the quota. What was
// taken before has left the log already and needs no refund.
func (l *SlidingLog) Refund(s *LogState, now Time, cost int64) {
	expired, _ := l.live(s, max(now, 0))
	s.drop(expired)
	for s.n > 0 && cost > 0 {
		oldest := &s.ring[s.head]
		if oldest.cost > cost {
			oldest.cost -= cost
			s.sum -= cost
			return
		}
		cost -= oldest.cost
		s.drop(1)
	}
}

// Holds reports whether what was taken at a time is still counted.
func (l *SlidingLog) Holds(_ LogState, now, taken Time) bool {
	return taken.Add(l.period) > max(now, 0)
}

// Fresh says whether s equals the state of a key that was never seen.
func (l *SlidingLog) Fresh(s LogState, now Time) bool {
	return s.n == 0 || max(now, 0) >= s.entry(s.n-1).at.Add(l.period)
}

// Convert carries s over from another policy: all entries stay. Entries that a shorter period
// has dropped are not restored by a longer one. s must not be used afterwards.
func (l *SlidingLog) Convert(s LogState, from *SlidingLog, now Time) LogState {
	if from.Fresh(s, now) {
		return LogState{}
	}
	return s
}

// Bytes is the memory that s refers to, beyond its own size.
func (s *LogState) Bytes() int { return len(s.ring) * int(unsafe.Sizeof(logEntry{})) }

// Clone returns a copy of s that shares no memory with it.
func (s *LogState) Clone() LogState {
	c := *s
	c.ring = append([]logEntry(nil), s.ring...)
	return c
}

// entry returns the i-th oldest entry; i is below n.
func (s *LogState) entry(i int) *logEntry {
	i += s.head
	if i >= len(s.ring) {
		i -= len(s.ring)
	}
	return &s.ring[i]
}

// drop forgets the n oldest entries.
func (s *LogState) drop(n int) {
	for range n {
		s.sum -= s.ring[s.head].cost
		if s.head++; s.head == len(s.ring) {
			s.head = 0
		}
		s.n--
	}
}

// resize moves the entries to a ring of that capacity, which holds them.
func (s *LogState) resize(capacity int) {
	ring := make([]logEntry, capacity)
	for i := range s.n {
		ring[i] = *s.entry(i)
	}
	s.ring, s.head = ring, 0
}

// live returns how many entries have left the window at now, and the cost of the others. A now
// before the newest entry counts as that entry's time.
func (l *SlidingLog) live(s *LogState, now Time) (expired int, used int64) {
	used = s.sum
	if s.n == 0 {
		return 0, 0
	}
	before := max(now, s.entry(s.n-1).at) - Time(l.period)
	for expired < s.n {
		e := s.entry(expired)
		if e.at > before {
			break
		}
		used -= e.cost
		expired++
	}
	return expired, used
}

func (l *SlidingLog) fits(used, cost int64) bool { return cost <= l.quota && used <= l.quota-cost }

// record adds an entry and drops those that no longer matter: expired ones and, under a policy
// that counts refused requests, the oldest as long as the newer ones alone exceed the quota.
// Entries are dropped only when one is added, so after a step back of the clock the log still
// has its newest entry.
func (l *SlidingLog) record(s *LogState, now Time, cost int64) {
	expired, _ := l.live(s, now)
	s.drop(expired)
	// quota+1 refuses everything, as any larger cost does.
	cost = min(cost, l.quota+1)
	if s.n > 0 && s.entry(s.n-1).at >= now {
		newest := s.entry(s.n - 1)
		add := min(cost, l.quota+1-min(newest.cost, l.quota+1))
		newest.cost += add
		s.sum += add
	} else {
		const first = 4
		switch {
		case s.n == len(s.ring):
			s.resize(max(first, 2*s.n))
		case len(s.ring) > 4*first && s.n < len(s.ring)/4:
			s.resize(len(s.ring) / 2)
		}
		s.n++
		*s.entry(s.n - 1) = logEntry{now, cost}
		s.sum += cost
	}
	for s.n > 1 && s.sum-s.ring[s.head].cost > l.quota {
		s.drop(1)
	}
}

// verdict describes s after extra more was taken, which is what a Peek would take.
func (l *SlidingLog) verdict(s *LogState, now Time, cost, extra int64, fits bool) Verdict {
	expired, used := l.live(s, now)
	used = addCounts(used, extra)
	v := Verdict{Allowed: fits, Remaining: max(0, l.quota-used)}
	switch {
	case extra > 0:
		v.ResetAfter = waitUntil(max(now, s.newest()).Add(l.period), now)
	case expired < s.n:
		v.ResetAfter = waitUntil(s.newest().Add(l.period), now)
	}
	if fits {
		return v
	}
	if cost > l.quota {
		v.Reason, v.RetryAfter = ReasonCost, Never
		return v
	}
	v.Reason = ReasonRate
	for i := expired; i < s.n && used > l.quota-cost; i++ {
		e := s.entry(i)
		used -= e.cost
		v.RetryAfter = waitUntil(e.at.Add(l.period), now)
	}
	return v
}

func (s *LogState) newest() Time {
	if s.n == 0 {
		return 0
	}
	return s.entry(s.n - 1).at
}
