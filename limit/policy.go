package limit

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"time"
)

// Algorithm names the arithmetic of a limit. The zero value is TokenBucket.
type Algorithm uint8

// The algorithms.
const (
	TokenBucket          Algorithm = iota // GCRA: a burst at once, then the rate
	LeakyBucket                           // paces: admits into a queue of Burst requests and answers the delay
	FixedWindow                           // Rate.Count in each window of Rate.Period
	SlidingWindowLog                      // Rate.Count in any window of Rate.Period, exactly
	SlidingWindowCounter                  // the same, estimated from two windows
	Concurrency                           // MaxInFlight at a time
	RisingWindow                          // Rate.Count in a window, and at most Rise more than in the one before
)

var algorithmNames = [...]string{
	TokenBucket: "token_bucket", LeakyBucket: "leaky_bucket", FixedWindow: "fixed_window",
	SlidingWindowLog: "sliding_window_log", SlidingWindowCounter: "sliding_window_counter",
	Concurrency: "concurrency", RisingWindow: "rising_window",
}

// AlgorithmNames returns the names that [ParseAlgorithm] knows, in the order of
// the constants.
func AlgorithmNames() []string { return append([]string(nil), algorithmNames[:]...) }

// String returns the name used in configuration files, such as "token_bucket".
func (a Algorithm) String() string {
	if int(a) < len(algorithmNames) {
		return algorithmNames[a]
	}
	return fmt.Sprintf("algorithm(%d)", uint8(a))
}

// ParseAlgorithm returns the algorithm of that name.
func ParseAlgorithm(name string) (Algorithm, error) {
	for i, n := range algorithmNames {
		if n == name {
			return Algorithm(i), nil
		}
	}
	return 0, fmt.Errorf("limit: unknown algorithm %q, want one of %s", name, strings.Join(algorithmNames[:], ", "))
}

// Alignment says where fixed windows begin. The zero value is AlignEpoch.
type Alignment uint8

// The alignments.
const (
	AlignEpoch    Alignment = iota // at multiples of the period since the Unix epoch, UTC
	AlignFirstHit                  // at the key's first request after its last window ended
	AlignCalendar                  // with the hour, day, week (from Monday), month or year of Policy.Zone
)

// Rounding says how a sliding window counter's estimate becomes whole. The zero
// value is RoundUp: an estimate that errs refuses.
type Rounding uint8

// The roundings.
const (
	RoundUp      Rounding = iota // 6.5 counts as 7
	RoundDown                    // 6.5 counts as 6
	RoundNearest                 // 6.5 counts as 7, 6.4 as 6
)

// Policy is the algorithm of a limit and its amounts, without name and key. The zero value is a
// token bucket with rate 0 and burst 0, which refuses everything.
//
// A Policy is a value; it is compared with ==.
type Policy struct {
	Algorithm Algorithm

	// Rate is the count per period. Ignored by Concurrency.
	Rate Rate

	// Burst is the most tokens that a token bucket holds, or the most requests that wait in the
	// queue of a leaky bucket; at most MaxCount. It has no default: a token bucket with burst 0
	// admits nothing. Ignored by the other algorithms.
	Burst int64

	// MaxInFlight is how many may be in flight under Concurrency.
	MaxInFlight int64

	// Timeout is how long a permit in flight is held if its holder never finishes. Must be
	// positive for Concurrency, ignored by the others.
	Timeout time.Duration

	// Unlimited admits everything and counts nothing.
	Unlimited bool

	// CountRefused charges refused requests as well, whichever limit refused them: a client
	// that does not slow down stays refused, and a cost that is known only once it was spent
	// counts in full. A window counts above its limit until it ends; a bucket goes into debt,
	// and admits again when refill has paid it. Not for Concurrency: refused requests are not
	// in flight.
	CountRefused bool

	// Align says where fixed windows begin. For [AlignCalendar] the period of Rate is an hour, or 1,
	// 7, 30 or 365 days, which stand for the day, week, month and year, however long they are. A
	// window begins when the clock of Zone first shows its first date, so that every moment is in
	// exactly one, whatever the clock does.
	Align Alignment

	// Zone is the IANA name of the time zone of AlignCalendar, such as Europe/Berlin; "" = UTC. See
	// [LoadZone]. Empty for the others.
	Zone string

	// Rounding applies to SlidingWindowCounter.
	Rounding Rounding

	// Rise and Start are of a RisingWindow: how much more a window admits than the one before, at
	// least 1, and what it admits at least, whatever came before; both at most MaxCount. A Start
	// above Rate.Count counts as Rate.Count. Ignored by the others.
	Rise, Start int64

	// Ban, for a FixedWindow, is how long a key that went over stays refused
	// after the end of its window; 0 = no ban.
	Ban time.Duration

	// BanFromNow makes a ban end Ban after the request that went over, whenever the window
	// would have ended.
	BanFromNow bool
}

// Quota is the most that the policy admits at once: the burst of a token bucket, the queue of a
// leaky bucket plus the request that is served, the count of a window, the permits of a
// concurrency limit. It is MaxInt64 for unlimited policies.
func (p Policy) Quota() int64 {
	switch {
	case p.Unlimited:
		return math.MaxInt64
	case p.Algorithm == TokenBucket:
		return p.Burst
	case p.Algorithm == LeakyBucket:
		if p.Rate.Count == 0 {
			return 0
		}
		return p.Burst + 1
	case p.Algorithm == Concurrency:
		return p.MaxInFlight
	default:
		return p.Rate.Count
	}
}

// Window is the time in which Quota is granted again: the period of a window, or the time in
// which an empty bucket refills (rounded up to a nanosecond, at most the largest Duration); 0
// where there is none.
func (p Policy) Window() time.Duration {
	switch p.Algorithm {
	case TokenBucket, LeakyBucket:
		if p.Rate.Count == 0 || p.Unlimited {
			return 0
		}
		return p.Rate.durationOf(p.Quota())
	case Concurrency:
		return 0
	default:
		return p.Rate.Period
	}
}

// Validate returns all that is wrong with p, joined, or nil. Arithmetic is
// defined for valid policies only.
func (p Policy) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("limit: "+format, args...)) }
	if int(p.Algorithm) >= len(algorithmNames) {
		bad("unknown %v", p.Algorithm)
	}
	if p.Algorithm == Concurrency {
		if p.MaxInFlight < 0 {
			bad("max_in_flight is %d, want at least 0", p.MaxInFlight)
		}
		if p.Timeout <= 0 && !p.Unlimited {
			bad("timeout is %v, want a positive duration: without one a caller that dies keeps its permit for ever", p.Timeout)
		}
	} else if err := p.Rate.Validate(); err != nil && !p.Unlimited {
		errs = append(errs, err)
	}
	if p.Burst < 0 {
		bad("burst is %d, want at least 0", p.Burst)
	}
	if p.Burst > MaxCount {
		bad("burst is %d, above %d", p.Burst, int64(MaxCount))
	}
	if p.CountRefused && p.Algorithm == Concurrency {
		bad("count_refused has no meaning with %v: what was refused is not in flight", p.Algorithm)
	}
	if p.Algorithm == SlidingWindowLog && p.Rate.Count > MaxLogCount {
		bad("a sliding_window_log remembers each request: %d is above its bound of %d, use sliding_window_counter", p.Rate.Count, MaxLogCount)
	}
	if p.Algorithm == Concurrency && p.MaxInFlight > MaxLogCount {
		bad("max_in_flight is %d, above its bound of %d", p.MaxInFlight, MaxLogCount)
	}
	if p.Algorithm == RisingWindow {
		if p.Rise < 1 || p.Rise > MaxCount {
			bad("rise is %d, want 1 to %d: a window that may not rise stays at its start", p.Rise, int64(MaxCount))
		}
		if p.Start < 0 || p.Start > MaxCount {
			bad("start is %d, want 0 to %d", p.Start, int64(MaxCount))
		}
		if p.CountRefused {
			bad("count_refused has no meaning with %v: what was refused would let the next window rise", p.Algorithm)
		}
	}
	if p.Ban != 0 && (p.Algorithm != FixedWindow || p.Ban < 0) {
		bad("a ban wants a fixed window and a positive duration")
	}
	if p.BanFromNow && (p.Ban <= 0 || p.Rate.Period > maxBanPeriod) {
		bad("a ban from now on wants a duration, and a period of at most %v", maxBanPeriod)
	}
	if p.Align > AlignCalendar || p.Rounding > RoundNearest {
		bad("unknown alignment or rounding")
	}
	errs = append(errs, p.validateCalendar())
	return errors.Join(errs...)
}

func (p Policy) validateCalendar() error {
	if p.Align != AlignCalendar {
		if p.Zone != "" {
			return fmt.Errorf("limit: time zone %q has no meaning without windows of the calendar", p.Zone)
		}
		return nil
	}
	_, err := LoadZone(p.Zone)
	switch _, known := spanOf(p.Rate.Period); {
	case err != nil:
		return err
	case p.Algorithm != FixedWindow:
		return fmt.Errorf("limit: windows of the calendar have no meaning with %v, use fixed_window", p.Algorithm)
	case !known && !p.Unlimited && p.Rate.Period != 0:
		return fmt.Errorf("limit: a period of %v has no windows of the calendar: want an hour, day, week, month (30 days) or year (365 days)", p.Rate.Period)
	case p.Ban != 0:
		return errors.New("limit: a ban wants windows of one length, not those of the calendar")
	}
	return nil
}

// maxBanPeriod bounds the period before a ban that begins at once. Its state has the time at which
// such a window would have begun, which must not be before the epoch.
const maxBanPeriod = 20 * 365 * 24 * time.Hour

// MaxLogCount bounds what is remembered entry by entry, so that one key holds at most two
// megabytes. Not larger: a flood of such keys fills any budget. Not smaller: logs of some ten
// thousand are in use.
const MaxLogCount = 1 << 16
