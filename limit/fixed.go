package limit

import (
	"math"
	"time"
)

// FixedCounter is the arithmetic of a fixed window: Rate.Count in each window of
// Rate.Period, with an optional ban for keys that go over.
//
// A FixedCounter is a value without state, safe for concurrent use.
type FixedCounter struct {
	quota        int64
	period, ban  time.Duration
	banFromNow   bool
	firstHit     bool
	countRefused bool
	unlimited    bool
	calendar     *calendar // nil = windows of one length
}

// FixedState is the state of one key under a [FixedCounter]. A Count of 0 means
// that no window is open, whatever Start is; the zero value is a new key.
//
// A Count above the quota means that the key went over. That alone lengthens the
// window by the ban, so a ban needs no field of its own. A ban from now on is that of a window that
// ends in the moment in which the key went over.
type FixedState struct {
	Start Time
	Count int64
}

// NewFixedCounter returns the arithmetic of a FixedWindow policy, which must be
// valid.
func NewFixedCounter(p Policy) FixedCounter {
	w := FixedCounter{
		quota: p.Rate.Count,
		// A rate of 0 may come without a period. Its windows admit nothing, but need a length
		// for the division by it.
		period: max(p.Rate.Period, 1), ban: p.Ban, banFromNow: p.BanFromNow,
		firstHit:     p.Align == AlignFirstHit,
		countRefused: p.CountRefused, unlimited: p.Unlimited,
	}
	if p.Align == AlignCalendar && p.Rate.Period != 0 {
		w.calendar = calendarOf(p)
	}
	return w
}

// CountingRefused returns the arithmetic of the same limit under a policy that counts
// refused requests.
func (w FixedCounter) CountingRefused() FixedCounter {
	w.countRefused = true
	return w
}

// WithQuota returns the arithmetic of the same windows under another count. States
// mean the same to both, unless there is a ban.
func (w FixedCounter) WithQuota(quota int64) FixedCounter {
	w.quota = quota
	return w
}

// Take takes cost at now if it fits. If it does not, s changes only when the
// policy counts refused requests or bans. cost is at least 0.
func (w *FixedCounter) Take(s *FixedState, now Time, cost int64) Verdict {
	if w.unlimited {
		return unlimitedVerdict()
	}
	now = max(now, 0)
	open := w.open(*s, now)
	fits := w.fits(open, cost)
	if cost > 0 {
		if fits {
			open.Count += cost
			*s = open
		} else if w.goOver(&open, now, cost) {
			*s = open
		}
	}
	return w.verdict(open, now, cost, fits)
}

// Peek answers whether cost would fit and changes nothing. Its RetryAfter holds for a caller
// that has not asked yet: a refusal by Take may start a ban, a refusal by Peek does not.
func (w *FixedCounter) Peek(s FixedState, now Time, cost int64) Verdict {
	if w.unlimited {
		return unlimitedVerdict()
	}
	now = max(now, 0)
	open := w.open(s, now)
	fits := w.fits(open, cost)
	if fits {
		open.Count += cost
	}
	return w.verdict(open, now, cost, fits)
}

// Refuse records a request that was refused, by this limit or by another: it is
// counted if the policy counts refused requests, and bans the key if the policy
// bans and the cost did not fit here.
func (w *FixedCounter) Refuse(s *FixedState, now Time, cost int64) {
	if w.unlimited || cost <= 0 {
		return
	}
	now = max(now, 0)
	open := w.open(*s, now)
	if w.fits(open, cost) {
		if !w.countRefused {
			return
		}
		open.Count += cost
		*s = open
	} else if w.goOver(&open, now, cost) {
		*s = open
	}
}

// Refund gives back cost, taken in the window that is open at now. What was taken
// in a window that has ended needs no refund. A ban is not lifted.
func (w *FixedCounter) Refund(s *FixedState, now Time, cost int64) {
	if now >= w.end(*s) || w.ban > 0 && s.Count > w.quota {
		return
	}
	s.Count = max(0, s.Count-cost)
}

// Holds reports whether what was taken at a time is counted in the window of s, so that it can be given back.
func (w *FixedCounter) Holds(s FixedState, _, taken Time) bool { return taken >= s.Start }

// Fresh says whether s equals the state of a key that was never seen.
func (w *FixedCounter) Fresh(s FixedState, now Time) bool {
	return s.Count <= 0 || max(now, 0) >= w.end(s)
}

// Convert carries s over from another policy: what was counted in the window that
// is open stays counted in the one that now is, and a ban stays a ban. A smaller
// quota bans nobody who had not gone over.
//
// Where the new window ends sooner, the count stays for as many windows as it takes at the new
// quota, but not beyond the end of the old window. Otherwise alternating between a long and a
// short period would grant the quota of the long one in each short one. The state is then that
// of the last of these windows, which begins in the future.
func (w *FixedCounter) Convert(s FixedState, from *FixedCounter, now Time) FixedState {
	now = max(now, 0)
	if from.Fresh(s, now) {
		return FixedState{}
	}
	ended := from.closes(s.Start)
	if w.ban > 0 {
		if from.ban > 0 && s.Count > from.quota {
			s.Count = max(s.Count, w.quota+1)
			if w.banFromNow || from.banFromNow {
				// What counts is when the window ended, from which the ban is counted.
				s.Start = max(0, ended-Time(w.period))
			}
			return s
		}
		s.Count = min(s.Count, w.quota)
	}
	latest := max(now, s.Start)
	if w.calendar == nil {
		latest = max(now, min(s.Start, ended.Add(-w.period)))
	}
	switch {
	case !w.firstHit:
		s.Start = w.align(latest)
	case latest >= s.Start.Add(w.period):
		// The new window is shorter and over, but what was counted may have
		// been taken a moment ago.
		s.Start = latest
	}
	if s.Count > w.quota && ended > w.closes(s.Start) {
		more := int64(ended-s.Start-1) / int64(w.period)
		if w.quota > 0 {
			more = min(more, (s.Count-1)/w.quota)
		}
		if w.calendar != nil {
			// As if each were the longest one, so that they are not too few.
			each := longest[w.calendar.span]
			s.Start = w.align(min(s.Start.Add(time.Duration(min(more, int64(Never/each)))*each), ended-1))
			return s
		}
		s.Start = s.Start.Add(time.Duration(more) * w.period)
	}
	return s
}

// open returns the window that is open at now, which may be a new, empty one.
func (w *FixedCounter) open(s FixedState, now Time) FixedState {
	if !w.Fresh(s, now) {
		return s
	}
	if w.firstHit {
		return FixedState{Start: now}
	}
	return FixedState{Start: w.align(now)}
}

// align returns where the window begins that now is in.
func (w *FixedCounter) align(now Time) Time {
	if w.calendar != nil {
		start, _ := w.calendar.window(now)
		return start
	}
	return now - now%Time(w.period)
}

// closes returns where the window of a state ends, without a ban.
func (w *FixedCounter) closes(start Time) Time {
	if w.calendar != nil {
		_, end := w.calendar.window(max(start, 0))
		return end
	}
	return start.Add(w.period)
}

// Window returns the window of an aligned policy that now is in, from start up to and without end. With
// AlignFirstHit it is the one that a request at now would open.
func (w *FixedCounter) Window(now Time) (start, end Time) {
	now = max(now, 0)
	if !w.firstHit {
		start = w.align(now)
	} else {
		start = now
	}
	return start, w.closes(start)
}

// end is when the window of s, and the ban behind it, is over.
func (w *FixedCounter) end(s FixedState) Time {
	end := w.closes(s.Start)
	if w.ban > 0 && s.Count > w.quota {
		end = end.Add(w.ban)
	}
	return end
}

func (w *FixedCounter) fits(s FixedState, cost int64) bool {
	return cost <= w.quota && s.Count <= w.quota-cost
}

// goOver changes s as a cost that does not fit does: it is counted, or starts a ban. It reports
// whether s changed.
func (w *FixedCounter) goOver(s *FixedState, now Time, cost int64) bool {
	switch {
	case now >= w.closes(s.Start):
		return false // banned already: further requests do not prolong a ban
	case w.countRefused:
		s.Count = addCounts(s.Count, cost)
	case w.ban > 0 && s.Count <= w.quota:
		s.Count = w.quota + 1
	default:
		return false
	}
	if w.banFromNow && s.Count > w.quota {
		s.Start = now - Time(w.period)
	}
	return true
}

func (w *FixedCounter) verdict(s FixedState, now Time, cost int64, fits bool) Verdict {
	v := Verdict{Allowed: fits, Remaining: max(0, w.quota-s.Count)}
	if s.Count > 0 {
		v.ResetAfter = waitUntil(w.end(s), now)
	}
	switch {
	case fits:
	case cost > w.quota:
		v.Reason, v.RetryAfter = ReasonCost, Never
	default:
		v.Reason, v.RetryAfter = ReasonRate, v.ResetAfter
		if now >= w.closes(s.Start) {
			v.Reason = ReasonBanned
		}
	}
	return v
}

// unlimitedVerdict is every algorithm's answer under an unlimited policy.
func unlimitedVerdict() Verdict { return Verdict{Allowed: true, Remaining: math.MaxInt64} }

// waitUntil is the time from now until t; Never when t is beyond what a Time holds.
func waitUntil(t, now Time) time.Duration {
	if t == math.MaxInt64 {
		return Never
	}
	return time.Duration(max(0, t-now))
}

// addCounts returns a+b for counts that are not negative, at most MaxInt64.
func addCounts(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}
