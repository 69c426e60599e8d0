package sim

import (
	"slices"
	"time"
)

// timeline is which limit is in force when: each entry holds until the next.
type timeline []era

type era struct {
	at    int64
	limit Limit
	rate  float64 // tokens per second
}

// newTimeline returns the limits of a scenario. With grace a rate or burst counts for
// that much longer than it is in force.
func newTimeline(s *Scenario, grace time.Duration) timeline {
	exact := timeline{{limit: s.Limit}}
	for _, c := range s.Changes {
		if last := &exact[len(exact)-1]; last.at == int64(c.At) {
			last.limit = c.Limit
		} else {
			exact = append(exact, era{at: int64(c.At), limit: c.Limit})
		}
	}
	for i := range exact {
		exact[i].rate = exact[i].limit.PerSecond()
	}
	if grace == 0 {
		return exact
	}
	var turns []int64
	for i, e := range exact {
		turns = append(turns, e.at)
		if i > 0 {
			turns = append(turns, e.at+int64(grace))
		}
	}
	slices.Sort(turns)
	var kind timeline
	for _, at := range slices.Compact(turns) {
		kind = append(kind, exact.kindest(at, int64(grace)))
	}
	return kind
}

// kindest returns the largest rate and burst in force in (at-grace, at].
func (t timeline) kindest(at, grace int64) era {
	best := era{at: at}
	for i, e := range t {
		gone := i+1 < len(t) && t[i+1].at <= at-grace
		if gone || e.at > at {
			continue
		}
		if e.rate >= best.rate {
			best.rate, best.limit.Rate = e.rate, e.limit.Rate
		}
		best.limit.Burst = max(best.limit.Burst, e.limit.Burst)
	}
	return best
}

// at returns the index of the era at a time. hint is where the caller was last.
func (t timeline) at(now int64, hint int) int {
	i := hint
	for i+1 < len(t) && t[i+1].at <= now {
		i++
	}
	for i > 0 && t[i].at > now {
		i--
	}
	return i
}

// flow is what the limit's rate lets through between two times, in tokens.
func (t timeline) flow(from, to int64) float64 {
	sum := 0.0
	for i, e := range t {
		begin, end := e.at, to
		if i == 0 {
			begin = from // the first limit has been in force before the run
		}
		if i+1 < len(t) {
			end = min(end, t[i+1].at)
		}
		if begin = max(begin, from); end > begin {
			sum += e.rate * seconds(end-begin)
		}
	}
	return sum
}

// budget is what one central bucket would let through in (from, to]: the burst at the
// beginning with what is added to it, and the flow.
func (t timeline) budget(from, to int64) (burst int64, flow float64) {
	if len(t) == 1 {
		return t[0].limit.Burst, t[0].rate * seconds(to-from)
	}
	i := t.at(from, 0)
	burst = t[i].limit.Burst
	for i++; i < len(t) && t[i].at <= to; i++ {
		burst += max(t[i].limit.Burst-t[i-1].limit.Burst, 0)
	}
	return burst, t.flow(from, to)
}
