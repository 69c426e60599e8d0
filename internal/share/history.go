package share

import (
	"errors"
	"fmt"
	"math/bits"
)

// HistorySize is how many values a History keeps. Not fewer: a trend through three
// noisy values points anywhere. Not more: what was eight values ago says little about
// the next one, and each costs 8 bytes per instance and limit.
const HistorySize = 8

// History is the latest demands of an instance for a limit, taken at equal distances
// in time: values taken only when something changed would make a short spike weigh as
// much as an hour. The zero value is empty. Nothing allocates, and it is not safe for
// concurrent use.
type History struct {
	values [HistorySize]Amount
	next   uint8 // where the next value goes
	n      uint8 // how many there are
}

// Push adds the newest value and forgets the oldest when there is no room. An amount
// below 0 counts as 0, one above [MaxAmount] as that.
func (h *History) Push(v Amount) {
	h.values[h.next] = Amount(clamp(v))
	h.next = (h.next + 1) % HistorySize
	h.n = min(h.n+1, HistorySize)
}

// at returns the value that came i values before the newest.
func (h *History) at(i int) Amount {
	return h.values[(int(h.next)+HistorySize-1-i)%HistorySize]
}

// Len is how many values there are.
func (h *History) Len() int { return int(h.n) }

// Newest is the latest value; 0 when there is none.
func (h *History) Newest() Amount { return h.at(0) }

// Max is the largest value; 0 when there is none.
func (h *History) Max() Amount {
	most := Amount(0)
	for i := range int(h.n) {
		most = max(most, h.at(i))
	}
	return most
}

// Mean is the mean of the values, rounded down; 0 when there is none.
func (h *History) Mean() Amount {
	if h.n == 0 {
		return 0
	}
	var s sum
	for i := range int(h.n) {
		s = s.plus(uint64(h.at(i)))
	}
	return Amount(s.over(uint64(h.n)))
}

// Trend is what comes next if all goes on as it did: the straight line through the
// values by least squares, one step on, rounded down. It is at least 0 and at most twice
// the largest value, because a line knows neither that nobody wants less than nothing
// nor that growth ends. With fewer than two values it is the newest.
func (h *History) Trend() Amount {
	n := int(h.n)
	if n < 2 {
		return h.Newest()
	}
	// The line at n+1 is the sum of (6i - 2n - 4)/(n(n-1)) of the i-th value.
	var up, down sum
	for i := 1; i <= n; i++ {
		v := uint64(h.at(n - i))
		if factor := 6*i - 2*n - 4; factor > 0 {
			up = up.plusProduct(v, uint64(factor))
		} else {
			down = down.plusProduct(v, uint64(-factor))
		}
	}
	lo, borrow := bits.Sub64(up.lo, down.lo, 0)
	hi, borrow := bits.Sub64(up.hi, down.hi, borrow)
	if borrow > 0 {
		return 0
	}
	next := sum{hi, lo}.over(uint64(n * (n - 1)))
	return min(Amount(next), 2*min(h.Max(), MaxAmount/2))
}

// ErrThreshold is wrapped by the errors of [CheckThresholds].
var ErrThreshold = errors.New("the instance could become busy and never be seen so")

// CheckThresholds returns an error unless changes of use are reported at a smaller
// threshold than the busy tolerance. Both are parts of a share. Otherwise one that
// reported a use just below the tolerance can come to use all it has without a change
// that is worth a report, and would wait for more for ever.
func CheckThresholds(report, tolerance float64) error {
	// Written so that NaN is refused.
	switch {
	case !(report >= 0):
		return fmt.Errorf("share: the report threshold is %v, want at least 0", report)
	case !(tolerance > 0 && tolerance < 1):
		return fmt.Errorf("share: the busy tolerance is %v, want above 0 and below 1", tolerance)
	case report >= tolerance:
		return fmt.Errorf("share: the report threshold %v is not below the busy tolerance %v: %w. Lower the one or raise the other",
			report, tolerance, ErrThreshold)
	}
	return nil
}

// WantedByUse estimates what an instance wants when only what it was admitted is known,
// per second, out of what it held. One that uses more than 1 - tolerance of it wants
// growth times as much, or what it was admitted if that is more; another wants as much
// as makes what it uses 1 - tolerance of it. Who is given what it wants is not busy after it
// unless it uses more, so it does not swing. One that holds nothing wants nothing,
// however long it waits: its caller has to know better.
//
// A tolerance that is not above 0 and at most 1 counts as 0.1; a growth that is not above
// 1 counts as 1.5, and is at most 1,000. The result is at most [MaxAmount].
func WantedByUse(held, admitted Amount, tolerance, growth float64) Amount {
	if !(growth > 1) {
		growth = 1.5
	}
	one := uint64(Token)
	used := one - min(fraction(tolerance, usualTolerance, 1), one-1)
	h, a := clamp(held), clamp(admitted)
	if !productAtMost(a, one, h, used) {
		grown := sum{}.plusProduct(h, uint64(min(growth, 1000)*float64(one)))
		return Amount(max(grown.over(one), a))
	}
	// Rounded up, so that a use that stays is not above the tolerance after it. It
	// is not above what is held.
	return Amount(scaleUp(a, one, used))
}
