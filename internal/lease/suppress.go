package lease

import (
	"errors"
	"fmt"
	"time"

	"github.com/stint-io/stint/internal/demand"
	"github.com/stint-io/stint/internal/fixed"
)

// Suppress is how a limit is shared by suppression: each instance may use the whole limit, and
// once the demand of all is above it refuses the fraction of its requests that the coordinator
// sends. The zero value has the defaults.
type Suppress struct {
	// Report is the shortest time between reports of an instance; 0 = [DefaultReport].
	Report time.Duration

	// Window is the time over which attempts are averaged, in Intervals equal parts;
	// 0 = no window: each instance averages since the last change of its own load, which
	// follows a step at once and a steady load closely.
	Window    time.Duration
	Intervals int

	// Ramp is how the fraction follows from attempts and limit.
	Ramp Ramp
	// Full is the ratio of attempts to the limit at which [RampLinear] refuses everything;
	// 0 = [DefaultFull].
	Full float64
	// Admitted averages what was admitted instead of what was attempted. The fraction then
	// acts on its own input, and oscillates: this is for comparison.
	Admitted bool
	// Independent draws each request by itself, so the error grows with the square root of
	// their number. Otherwise the probability depends on the level of the bucket, and what
	// passes follows the permitted rate to within a few requests.
	Independent bool
}

// Ramp is the function from attempts and limit to the fraction to refuse.
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
	// DefaultReport is the time between reports of an instance. Not longer: until the first
	// answer all instances admit the whole limit. Not shorter: it is a message from each
	// instance that has traffic.
	DefaultReport = 100 * time.Millisecond
	// DefaultFull is the end of the linear ramp, as in the description of 2022.
	DefaultFull = 3.0
)

// The bounds of the settings.
const (
	shortestReport = MinReportGap
	longestReport  = time.Minute
	longestWindow  = time.Hour
	steepest       = 1.001
	flattest       = 1000.0
)

// Validate returns all that is wrong with the settings.
func (s *Suppress) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("lease: "+format, args...)) }
	if s.Report != 0 && (s.Report < shortestReport || s.Report > longestReport) {
		bad("report is %v, want %v to %v, or nothing for %v", s.Report, shortestReport, longestReport, DefaultReport)
	}
	switch {
	case s.Window < 0 || s.Window > longestWindow:
		bad("window is %v, want up to %v, or nothing to average since the last change", s.Window, longestWindow)
	case s.Window == 0 && s.Intervals != 0:
		bad("%d intervals without a window: add the window that they divide", s.Intervals)
	case s.Window > 0 && (s.Intervals < 1 || s.Intervals > demand.MaxIntervals):
		bad("the window has %d intervals, want 1 to %d", s.Intervals, demand.MaxIntervals)
	case s.Window > 0 && s.Window/time.Duration(s.Intervals) < s.ReportInterval():
		bad("the interval is %v, want at least report, %v: it has to be reported in", s.Window/time.Duration(s.Intervals), s.ReportInterval())
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

// ReportInterval is Report or its default.
func (s *Suppress) ReportInterval() time.Duration {
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

// Fraction is the fraction of requests to refuse, 0 to 1, when rate tokens per second are
// attempted.
func (s *Suppress) Fraction(limit, rate fixed.Amount) float64 {
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
