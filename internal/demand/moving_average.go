package demand

import (
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// MaxIntervals bounds the memory of a window. Not fewer: a minute in seconds.
const MaxIntervals = 64

// MovingAverage is the rate of what was counted over a window of some intervals, by the
// modified rule of the description of 2022: the interval in progress counts only when
// it raises the mean. So a fall is seen when its interval has ended, not as a swing in
// each interval, and a sudden rise is seen at once. Its zero value is of no use; use
// NewMovingAverage.
type MovingAverage struct {
	interval time.Duration
	ended    []fixed.Amount // ring of the intervals that have ended
	next     int            // the oldest of them
	known    int            // how many of them there have been
	count    fixed.Amount   // in the interval in progress
	began    limit.Time
}

// NewMovingAverage returns the average over a window of n intervals, 1 to
// [MaxIntervals], which begins at now.
func NewMovingAverage(window time.Duration, n int, now limit.Time) *MovingAverage {
	n = min(max(n, 1), MaxIntervals)
	return &MovingAverage{interval: max(window/time.Duration(n), 1), ended: make([]fixed.Amount, n), began: now}
}

// SameWindow reports whether both average over as long a window, in as many intervals.
func (m *MovingAverage) SameWindow(o *MovingAverage) bool {
	return m.interval == o.interval && len(m.ended) == len(o.ended)
}

// Add counts n at now. A time before the latest counts as the latest.
func (m *MovingAverage) Add(now limit.Time, n fixed.Amount) {
	m.advance(now)
	m.count = fixed.SaturatingAdd(m.count, max(n, 0))
}

// Spread counts n evenly from one time to another, which is not before it. What is before
// the interval in progress counts in that.
func (m *MovingAverage) Spread(from, to limit.Time, n fixed.Amount) {
	span := to - from
	if span <= 0 {
		m.Add(to, n)
		return
	}
	// Further back is out of the window.
	if oldest := to - limit.Time(m.interval)*limit.Time(len(m.ended)+1); from < oldest {
		from = oldest
	}
	for from < to {
		m.advance(from)
		end := min(to, m.began+limit.Time(m.interval))
		m.Add(from, n.Scale(fixed.Amount(end-from), fixed.Amount(span)))
		from = end
	}
	m.advance(to)
}

// advance ends the intervals that are over.
func (m *MovingAverage) advance(now limit.Time) {
	over := time.Duration(now-m.began) / m.interval
	if now < m.began || over == 0 {
		return
	}
	for range min(int(min(over, MaxIntervals+1)), len(m.ended)+1) {
		m.ended[m.next] = m.count
		m.next = (m.next + 1) % len(m.ended)
		m.known = min(m.known+1, len(m.ended))
		m.count = 0
	}
	m.began += limit.Time(over * m.interval)
}

// youngest is the part of an interval that has to have passed before it says anything:
// one request in a microsecond is no rate of a million.
const youngest = 8

// Rate is the mean at now, per second.
func (m *MovingAverage) Rate(now limit.Time) fixed.Amount {
	m.advance(now)
	since := max(time.Duration(now-m.began), 0)
	current := float64(m.count) / max(since, m.interval/youngest).Seconds()
	if m.known == 0 {
		return fixed.Round(current)
	}
	sum := 0.0
	for _, n := range m.ended[:m.known] {
		sum += float64(n)
	}
	mean := sum / float64(m.known) / m.interval.Seconds()
	if current > mean {
		// It takes the place of the oldest.
		n := float64(m.known)
		if m.known == len(m.ended) {
			n--
			sum -= float64(m.ended[m.next])
		}
		mean = max(mean, (sum/m.interval.Seconds()+current)/(n+1))
	}
	return fixed.Round(mean)
}
