package fleet

import (
	"cmp"
	"math"
	"slices"
	"time"
)

// Run is what all processes together admitted of one limit. Where a figure needs one
// time for a request that was answered later than it was asked, it takes that of the
// answer if the request could wait, and that of the question if not, since Allow reads
// the clock at once.
type Run struct {
	Rate     float64 // tokens per second
	Burst    float64
	admitted []Admission // by the time they count at
	at       []int64     // those times
	refused  []int64     // when; to a bin
	Late     time.Duration
}

// Gather puts the logs of a fleet together.
func Gather(logs []*Log, limit string, rate, burst float64, waits bool) *Run {
	r := &Run{Rate: rate, Burst: burst}
	for _, l := range logs {
		rec := l.Limits[limit]
		if rec == nil {
			continue
		}
		r.admitted = append(r.admitted, rec.Admitted...)
		for bin, n := range rec.Refused {
			for range n {
				r.refused = append(r.refused, bin*int64(Bin))
			}
		}
		r.Late = max(r.Late, rec.Late)
	}
	counts := func(a Admission) int64 {
		if waits {
			return a.Answered
		}
		return a.Asked
	}
	slices.SortFunc(r.admitted, func(a, b Admission) int { return cmp.Compare(counts(a), counts(b)) })
	for _, a := range r.admitted {
		r.at = append(r.at, counts(a))
	}
	slices.Sort(r.refused)
	return r
}

// count is how many of the times are in [from, to).
func count(times []int64, from, to int64) int {
	i, _ := slices.BinarySearch(times, from)
	j, _ := slices.BinarySearch(times, to)
	return max(0, j-i)
}

// Admitted is how many requests were admitted in [from, to).
func (r *Run) Admitted(from, to int64) int { return count(r.at, from, to) }

// Offered is how many requests were made in [from, to), to a bin.
func (r *Run) Offered(from, to int64) int { return r.Admitted(from, to) + count(r.refused, from, to) }

// Use is what was admitted in [from, to), over what the rate allows or what was asked
// for, whichever is less; 0 if nothing could be.
func (r *Run) Use(from, to int64) float64 {
	possible := r.possible(from, to)
	if possible <= 0 {
		return 0
	}
	return float64(r.Admitted(from, to)) / possible
}

func (r *Run) possible(from, to int64) float64 {
	return min(r.Rate*time.Duration(to-from).Seconds(), float64(r.Offered(from, to)))
}

// Pace is how fast requests were admitted in [from, to), between the first and the last
// of them, over the rate: for limits of few tokens, of which one more or less at the ends
// of the stretch would be too much. It is 0 below two admissions.
func (r *Run) Pace(from, to int64) float64 {
	i, _ := slices.BinarySearch(r.at, from)
	j, _ := slices.BinarySearch(r.at, to)
	if j-i < 2 || r.Rate <= 0 {
		return 0
	}
	took := time.Duration(r.at[j-1] - r.at[i]).Seconds()
	return float64(j-i-1) / took / r.Rate
}

// Pause is the longest time in [from, to) without an admission.
func (r *Run) Pause(from, to int64) time.Duration {
	longest, last := int64(0), from
	i, _ := slices.BinarySearch(r.at, from)
	for ; i < len(r.at) && r.at[i] < to; i++ {
		longest, last = max(longest, r.at[i]-last), r.at[i]
	}
	return time.Duration(max(longest, to-last))
}

// T95 is how long after step every window of that length until end has a use of at
// least 0.95, to a request. It reports false when the last window has not.
func (r *Run) T95(step, end int64, length time.Duration) (time.Duration, bool) {
	for from := end - int64(length); from >= step; from -= int64(Bin) {
		if float64(r.Admitted(from, from+int64(length))+1) <= 0.95*r.possible(from, from+int64(length)) {
			return time.Duration(from + int64(Bin) - step), from+int64(Bin)+int64(length) <= end
		}
	}
	return 0, true
}

// Peak is the most that was admitted in any time of that length, over burst + rate x
// length.
func (r *Run) Peak(length time.Duration) float64 {
	most, oldest := 0, 0
	for i, t := range r.at {
		for r.at[oldest] <= t-int64(length) {
			oldest++
		}
		most = max(most, i-oldest+1)
	}
	if most == 0 {
		return 0
	}
	return float64(most) / (r.Burst + r.Rate*length.Seconds())
}

// Over is how many tokens were admitted beyond burst + rate x T, in the interval T in
// which they were most; 0 = never over. It goes by recorded times, which are apart from
// those of the decisions by what a process waited for a processor in between, so that a
// part of a token proves nothing. See SurelyOver.
func (r *Run) Over() float64 {
	// The deepest debt of one bucket that they would all have come from.
	level, worst := r.Burst, 0.0
	for i, t := range r.at {
		if i > 0 {
			level = min(r.Burst, level+r.Rate*time.Duration(t-r.at[i-1]).Seconds())
		}
		level--
		worst = max(worst, -level)
	}
	if worst < 1e-6 {
		return 0 // rounding
	}
	return worst
}

// SurelyOver is Over where a request counts only for intervals that it was asked and
// answered in: whenever between the two each was decided, so many were too many.
func (r *Run) SurelyOver() float64 {
	if r.Over() == 0 {
		return 0 // the recorded times are a choice of such times
	}
	byEnd := slices.Clone(r.admitted)
	slices.SortFunc(byEnd, func(a, b Admission) int { return cmp.Compare(a.Answered, b.Answered) })
	worst := 0.0
	for i := range byEnd {
		from, sum := byEnd[i].Asked, 0
		for _, a := range byEnd {
			if a.Asked < from {
				continue
			}
			sum++
			worst = max(worst, float64(sum)-r.Burst-r.Rate*time.Duration(a.Answered-from).Seconds())
		}
	}
	if worst < 1e-6 {
		return 0
	}
	return worst
}

// Requests is how many requests were made in all, and how many admitted.
func (r *Run) Requests() (made, admitted int) {
	return len(r.at) + len(r.refused), len(r.at)
}

// Worst returns the interval in which Over was reached and the admissions within, to be
// shown when a limit was broken.
func (r *Run) Worst() (from, to int64, within []Admission) {
	level, worst, first, start := r.Burst, math.Inf(-1), 0, 0
	last := -1
	for i, t := range r.at {
		if i > 0 {
			level += r.Rate * time.Duration(t-r.at[i-1]).Seconds()
		}
		if level >= r.Burst {
			level, start = r.Burst, i
		}
		level--
		if -level > worst {
			worst, first, last = -level, start, i
		}
	}
	if last < 0 {
		return 0, 0, nil
	}
	return r.at[first], r.at[last], r.admitted[first : last+1]
}

// Range is the least and the most that was admitted in a time of that length which lies
// in [from, to), to a bin; both 0 if none does.
func (r *Run) Range(from, to int64, length time.Duration) (least, most int) {
	for at, first := from, true; at+int64(length) <= to; at, first = at+int64(Bin), false {
		n := r.Admitted(at, at+int64(length))
		if most = max(most, n); first || n < least {
			least = n
		}
	}
	return least, most
}
