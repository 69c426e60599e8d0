package limit

import (
	"fmt"
	"math"
	"math/bits"
	"strconv"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/fixed"
)

// Rate is Count per Period: 100 per second, 5 per minute, 1 per year. It is an
// exact fraction; nothing is ever converted to a floating-point number. The zero
// value admits nothing.
type Rate struct {
	Count  int64         // at least 0, at most 2^62
	Period time.Duration // positive; may be 0 only when Count is 0
}

// MaxCount is the largest count of a rate, a burst or a cost: 2^62.
const MaxCount = 1 << 62

// Inf is the rate of a [Limiter] that admits everything, whatever its burst is. [Limiter.SetRate] with another rate makes it
// a limit again. Elsewhere it is a rate like others, at which a bucket is full after a nanosecond: write Unlimited there.
var Inf = Rate{MaxCount, time.Nanosecond}

// PerSecond is n per second.
func PerSecond(n int64) Rate { return Rate{n, time.Second} }

// PerMinute is n per minute.
func PerMinute(n int64) Rate { return Rate{n, time.Minute} }

// PerHour is n per hour.
func PerHour(n int64) Rate { return Rate{n, time.Hour} }

// Every is one per d.
func Every(d time.Duration) Rate { return Rate{1, d} }

// Validate reports a negative count, a count above [MaxCount], or a period that
// is not positive.
func (r Rate) Validate() error {
	switch {
	case r.Count < 0:
		return fmt.Errorf("limit: rate %d/%v is negative, want at least 0", r.Count, r.Period)
	case r.Count > MaxCount:
		return fmt.Errorf("limit: rate count %d is above %d", r.Count, int64(MaxCount))
	case r.Period < 0, r.Period == 0 && r.Count != 0:
		return fmt.Errorf("limit: rate period is %v, want a positive duration", r.Period)
	}
	return nil
}

// periods are the words that [ParseRate] knows. A month is 30 days and a year
// 365, as in Envoy's rate limit service.
var periods = []struct {
	names string
	d     time.Duration
}{
	{"ns", time.Nanosecond},
	{"us µs", time.Microsecond},
	{"ms", time.Millisecond},
	{"s sec second", time.Second},
	{"m min minute", time.Minute},
	{"h hour", time.Hour},
	{"d day", 24 * time.Hour},
	{"w week", 7 * 24 * time.Hour},
	{"mo month", 30 * 24 * time.Hour},
	{"y year", 365 * 24 * time.Hour},
}

// ParseRate reads "N/period": 100/s, 20/10s, 5/minute, 0.5/s, 1M/month, 3/1h30m.
// N may have a decimal fraction, which is kept exactly, and a suffix k, M or G
// (powers of 1000). The period is one of the words second, minute, hour, day,
// week, month (30 days), year (365 days), their short forms s, m, h, d, w, mo, y,
// with or without a number before it, or a Go duration.
func ParseRate(s string) (Rate, error) {
	count, period, ok := strings.Cut(s, "/")
	if !ok {
		return Rate{}, fmt.Errorf("limit: rate %q has no period, write it as 100/s or 5/minute", s)
	}
	n, scale, err := parseCount(strings.TrimSpace(count))
	if err != nil {
		return Rate{}, fmt.Errorf("limit: rate %q: %w", s, err)
	}
	d, err := parsePeriod(strings.TrimSpace(period))
	if err != nil {
		return Rate{}, fmt.Errorf("limit: rate %q: %w", s, err)
	}
	// A fraction such as 0.5/s becomes 1 per 2 s: the count is whole, the
	// period takes the scale once both are in lowest terms.
	if g := int64(gcd(uint64(n), uint64(scale))); g > 0 {
		n, scale = n/g, scale/g
	}
	if n == 0 {
		scale = 1
	}
	hi, lo := bits.Mul64(uint64(d), uint64(scale))
	if hi != 0 || lo > math.MaxInt64 {
		return Rate{}, fmt.Errorf("limit: rate %q is below one per 292 years, or has more decimals than its period allows", s)
	}
	r := Rate{n, time.Duration(lo)}
	if err := r.Validate(); err != nil {
		return Rate{}, fmt.Errorf("limit: rate %q: %w", s, err)
	}
	return r, nil
}

// DefaultBurst returns the burst of a rate that is written without one: the count as it is written, rounded up. So 1/m and
// 0.0167/s have a burst of 1, 100/m one of 100, and 33.3/s one of 34. It has the errors of [ParseRate].
func DefaultBurst(rate string) (int64, error) {
	if _, err := ParseRate(rate); err != nil {
		return 0, err
	}
	count, _, _ := strings.Cut(rate, "/")
	n, scale, err := parseCount(strings.TrimSpace(count))
	if err != nil {
		return 0, err
	}
	if n%scale != 0 {
		return n/scale + 1, nil
	}
	return n / scale, nil
}

// WithCount returns r with the count n and a period that is as long in proportion, rounded up to a nanosecond: the rate of a
// window that holds n. n is from 1 to r.Count; otherwise WithCount returns r.
func (r Rate) WithCount(n int64) Rate {
	if n < 1 || n >= r.Count {
		return r
	}
	return Rate{n, time.Duration(fixed.MulDivUp(uint64(n), uint64(r.Period), uint64(r.Count)))}
}

// parseCount reads a decimal number with an optional suffix as n/scale.
func parseCount(s string) (n, scale int64, err error) {
	digits, factor := s, uint64(1)
	if s != "" {
		switch s[len(s)-1] {
		case 'k', 'K':
			digits, factor = s[:len(s)-1], 1e3
		case 'M':
			digits, factor = s[:len(s)-1], 1e6
		case 'G':
			digits, factor = s[:len(s)-1], 1e9
		}
	}
	whole, frac, hasFrac := strings.Cut(digits, ".")
	if strings.HasPrefix(s, "-") {
		return 0, 0, fmt.Errorf("count %q is negative", s)
	}
	if whole == "" || hasFrac && frac == "" || strings.Trim(whole+frac, "0123456789") != "" {
		return 0, 0, fmt.Errorf("count %q is not a number", s)
	}
	if len(frac) > 9 {
		return 0, 0, fmt.Errorf("count %q has more than 9 decimals", s)
	}
	v, err := strconv.ParseUint(whole+frac, 10, 64)
	if err != nil {
		return 0, 0, fmt.Errorf("count %q is above %d", s, int64(MaxCount))
	}
	scale = 1
	for range frac {
		scale *= 10
	}
	hi, lo := bits.Mul64(v, factor)
	if hi != 0 || lo > math.MaxInt64 || int64(lo)/scale > MaxCount {
		return 0, 0, fmt.Errorf("count %q is above %d", s, int64(MaxCount))
	}
	return int64(lo), scale, nil
}

func parsePeriod(s string) (time.Duration, error) {
	digits := s[:len(s)-len(strings.TrimLeft(s, "0123456789"))]
	word := strings.ToLower(strings.TrimSpace(s[len(digits):]))
	for _, p := range periods {
		for _, name := range strings.Fields(p.names) {
			if word != name && word != name+"s" {
				continue
			}
			n := int64(1)
			if digits != "" {
				var err error
				if n, err = strconv.ParseInt(digits, 10, 64); err != nil || n > math.MaxInt64/int64(p.d) {
					return 0, fmt.Errorf("period %q is above 292 years", s)
				}
			}
			if n == 0 {
				return 0, fmt.Errorf("period %q is zero", s)
			}
			return time.Duration(n) * p.d, nil
		}
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, fmt.Errorf("unknown period %q, want second, minute, hour, day, week, month, year or a duration such as 10s", s)
	}
	if d <= 0 {
		return 0, fmt.Errorf("period %q is not positive", s)
	}
	return d, nil
}

// String writes the rate as [ParseRate] reads it, such as "100/s" or "20/10s".
func (r Rate) String() string {
	for i := len(periods) - 1; i >= 0; i-- {
		unit := strings.Fields(periods[i].names)[0]
		if d := periods[i].d; r.Period == d {
			return fmt.Sprintf("%d/%s", r.Count, unit)
		} else if r.Period > d && r.Period%d == 0 {
			return fmt.Sprintf("%d/%d%s", r.Count, r.Period/d, unit)
		}
	}
	return fmt.Sprintf("%d/%v", r.Count, r.Period)
}

// ticks returns the rate in lowest terms as n tokens per p nanoseconds. A rate of
// zero is 0 per 1.
func (r Rate) ticks() (n, p uint64) {
	if r.Count <= 0 {
		return 0, 1
	}
	g := gcd(uint64(r.Count), uint64(r.Period))
	return uint64(r.Count) / g, uint64(r.Period) / g
}

// durationOf returns the time in which count tokens are refilled, rounded up, at most Never.
func (r Rate) durationOf(count int64) time.Duration {
	n, p := r.ticks()
	if n == 0 {
		return Never
	}
	return ceilDiv(fixed.Product(uint64(count), p), n)
}

// ceilDiv returns w/n rounded up, at most Never. If n is 0 it returns Never unless w is 0.
func ceilDiv(w fixed.Wide, n uint64) time.Duration {
	switch {
	case w == fixed.Wide{}:
		return 0
	case n == 0:
		return Never
	}
	return time.Duration(min(w.DivUp(n), uint64(Never)))
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
