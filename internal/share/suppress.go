package share

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/stint-io/stint/limit"
)

// Suppress says how a limit is shared by suppression: each instance may use the whole
// limit on its own, and refuses the fraction of what it is asked that the coordinator
// tells it once all together ask for more. The zero value has the defaults.
type Suppress struct {
	// Report is how often an instance reports at most; 0 = [DefaultReport].
	Report time.Duration

	// Window is the time over which attempts are averaged, in Intervals equal parts;
	// 0 = no window: each instance averages since its own load has changed last,
	// which follows a step at once and a steady load closely.
	Window    time.Duration
	Intervals int

	// Ramp is how the fraction follows from attempts and limit.
	Ramp Ramp
	// Full is how many times the limit has to be attempted to be refused altogether by
	// [RampLinear]; 0 = [DefaultFull].
	Full float64
	// Admitted averages what was admitted in place of what was attempted. The fraction
	// then acts on what it is computed from: it is there to show why that swings.
	Admitted bool
	// Independent draws each request by itself. Otherwise a draw makes up for the ones
	// before, so that chance does not add up: what passes follows the permitted rate to
	// within a few requests.
	Independent bool
}

// Ramp is how the fraction to refuse follows from attempts and limit.
type Ramp uint8

// The ramps.
const (
	// RampExact refuses 1 - limit/attempted: what passes is the limit.
	RampExact Ramp = iota
	// RampLinear refuses nothing at the limit and everything at Full times the limit.
	RampLinear
)

// The defaults of Suppress.
const (
	// DefaultReport is the time between reports of an instance. Not longer: what goes
	// over before the first answer is what all admit for as long. Not shorter: it is
	// a message from each instance that is asked.
	DefaultReport = 100 * time.Millisecond
	// DefaultFull is the end of the linear ramp, as in the description of 2022.
	DefaultFull = 3.0
	// MaxIntervals bounds the memory of a window. Not fewer: a minute in seconds.
	MaxIntervals = 64
)

// The bounds of what can be asked for.
const (
	// shortestReport is as often as two reports about one resource can follow each
	// other.
	shortestReport = shortestGap
	longestReport  = time.Minute
	longestWindow  = time.Hour
	steepest       = 1.001
	flattest       = 1000.0
)

// Validate returns all that is wrong with the settings.
func (s *Suppress) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("share: "+format, args...)) }
	if s.Report != 0 && (s.Report < shortestReport || s.Report > longestReport) {
		bad("report is %v, want %v to %v, or nothing for %v", s.Report, shortestReport, longestReport, DefaultReport)
	}
	switch {
	case s.Window < 0 || s.Window > longestWindow:
		bad("window is %v, want up to %v, or nothing to average since the last change", s.Window, longestWindow)
	case s.Window == 0 && s.Intervals != 0:
		bad("%d intervals without a window: add the window that they divide", s.Intervals)
	case s.Window > 0 && (s.Intervals < 1 || s.Intervals > MaxIntervals):
		bad("the window has %d intervals, want 1 to %d", s.Intervals, MaxIntervals)
	case s.Window > 0 && s.Window/time.Duration(s.Intervals) < s.report():
		bad("the interval is %v, want at least report, %v: it has to be reported in", s.Window/time.Duration(s.Intervals), s.report())
	}
	if s.Admitted && s.Window == 0 {
		bad("to average what was admitted takes a window")
	}
	if s.Ramp > RampLinear {
		bad("unknown ramp %d", s.Ramp)
	}
	// Written so that NaN is refused.
	if f := s.full(); !(f >= steepest && f <= flattest) {
		bad("the ramp ends at %v times the limit, want %v to %v", f, steepest, flattest)
	}
	return errors.Join(errs...)
}

func (s *Suppress) report() time.Duration {
	if s.Report == 0 {
		return DefaultReport
	}
	return s.Report
}

func (s *Suppress) full() float64 {
	if s.Full == 0 {
		return DefaultFull
	}
	return s.Full
}

// Fraction is the part to refuse, 0 to 1, when rate per second is attempted of the
// limit.
func (s *Suppress) Fraction(limit, rate Amount) float64 {
	switch {
	case rate <= limit:
		return 0
	case limit <= 0:
		return 1
	case s.Ramp == RampLinear:
		return min(1, (rate.Float()/limit.Float()-1)/(s.full()-1))
	default:
		return 1 - limit.Float()/rate.Float()
	}
}

// Suppression is what an instance is told to do: to refuse the part Reject of what it
// is asked, 0 to 1, and to admit no more than Rate and Depth meanwhile, which is what it
// may use until it hears more, whatever it is asked. A Reject of 0 ends it.
type Suppression struct {
	Reject      float64
	Rate, Depth Amount
}

// MovingAverage is the rate of what was counted over a window of some intervals, by the
// modified rule of the description of 2022: the interval in progress counts only when
// it raises the mean. So a fall is seen when its interval has ended, not as a swing in
// each interval, and a sudden rise is seen at once. Its zero value is of no use; use
// NewMovingAverage.
type MovingAverage struct {
	interval time.Duration
	ended    []Amount // ring of the intervals that have ended
	next     int      // the oldest of them
	known    int      // how many of them there have been
	count    Amount   // in the interval in progress
	began    limit.Time
}

// NewMovingAverage returns the average over a window of n intervals, 1 to
// [MaxIntervals], which begins at now.
func NewMovingAverage(window time.Duration, n int, now limit.Time) *MovingAverage {
	n = min(max(n, 1), MaxIntervals)
	return &MovingAverage{interval: max(window/time.Duration(n), 1), ended: make([]Amount, n), began: now}
}

// Add counts n at now. A time before the latest counts as the latest.
func (m *MovingAverage) Add(now limit.Time, n Amount) {
	m.advance(now)
	m.count = saturate(m.count, max(n, 0))
}

// Spread counts n evenly from one time to another, which is not before it. What is before
// the interval in progress counts in that.
func (m *MovingAverage) Spread(from, to limit.Time, n Amount) {
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
		m.Add(from, n.scale(Amount(end-from), Amount(span)))
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
func (m *MovingAverage) Rate(now limit.Time) Amount {
	m.advance(now)
	since := max(time.Duration(now-m.began), 0)
	current := float64(m.count) / max(since, m.interval/youngest).Seconds()
	if m.known == 0 {
		return amountOf(current)
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
	return amountOf(mean)
}

// amountOf is a rate in millionths that is at least 0.
func amountOf(x float64) Amount { return Amount(min(max(math.Round(x), 0), float64(MaxAmount))) }
