package fixed

import (
	"errors"
	"fmt"
	"math"
	"time"
)

// Amount is a number of tokens, or of tokens per second, in millionths: fixed point,
// so that sums are exact and nothing drifts. It is never negative in a message.
type Amount int64

// Token is one token, or one token per second.
const Token Amount = 1_000_000

// MaxAmount is the largest amount: 4.6 million million tokens. Sums of two fit.
const MaxAmount Amount = 1 << 62

// ErrAmount is wrapped by the errors of [AmountOf].
var ErrAmount = errors.New("not an amount")

// AmountOf returns x tokens, rounded down to a millionth. NaN, negative and infinite
// numbers and those above [MaxAmount] are refused, so that no sum can be poisoned.
func AmountOf(x float64) (Amount, error) {
	switch {
	case math.IsNaN(x):
		return 0, fmt.Errorf("fixed: NaN is %w: send a finite number of at least 0", ErrAmount)
	case x < 0:
		return 0, fmt.Errorf("fixed: %v is %w: it is negative, send at least 0", x, ErrAmount)
	case x*float64(Token) > float64(MaxAmount):
		return 0, fmt.Errorf("fixed: %v is %w: it is above %v", x, ErrAmount, MaxAmount.Float())
	}
	return Amount(x * float64(Token)), nil
}

// Whole returns n tokens, saturating at [MaxAmount].
func Whole(n int64) Amount {
	if n > int64(MaxAmount/Token) {
		return MaxAmount
	}
	return Amount(n) * Token
}

// Floor is the whole tokens in a.
func (a Amount) Floor() int64 { return int64(a / Token) }

// Float returns a in tokens, for people and for graphs.
func (a Amount) Float() float64 { return float64(a) / float64(Token) }

// String writes a in tokens, such as "0.5".
func (a Amount) String() string { return fmt.Sprintf("%g", a.Float()) }

// Scale returns a*n/d rounded down, at most [MaxAmount]; 0 where a or n is not positive. d
// is positive.
func (a Amount) Scale(n, d Amount) Amount {
	if a <= 0 || n <= 0 {
		return 0
	}
	return Amount(min(Product(uint64(a), uint64(n)).Div(uint64(d)), uint64(MaxAmount)))
}

// In returns what a rate of a per second brings in d, rounded down, at most [MaxAmount]; 0 if a or d is not positive.
func (a Amount) In(d time.Duration) Amount { return a.Scale(Amount(d), Amount(time.Second)) }

// Per returns the rate, per second, that brings a in d, rounded down, at most [MaxAmount]. d is positive.
func (a Amount) Per(d time.Duration) Amount { return a.Scale(Amount(time.Second), Amount(d)) }

// TimeFor returns how long a rate takes to bring an amount, rounded up; MaxInt64 if that is longer than a Duration, as at
// a rate of 0.
func TimeFor(amount, rate Amount) time.Duration {
	switch {
	case amount <= 0:
		return 0
	case rate <= 0:
		return math.MaxInt64
	}
	return time.Duration(min(Product(uint64(amount), uint64(time.Second)).DivUp(uint64(rate)), math.MaxInt64))
}

// SaturatingAdd returns a + b, at most [MaxAmount]. Neither is negative.
func SaturatingAdd(a, b Amount) Amount { return Amount(min(uint64(a)+uint64(b), uint64(MaxAmount))) }

// Near reports whether a and b differ by at most one part of the larger: near(a, b, 64)
// allows 1/64.
func Near(a, b Amount, part Amount) bool {
	return max(a, b)-min(a, b) <= max(a, b)/part
}

// Clamp returns a as an unsigned number from 0 to [MaxAmount].
func Clamp(a Amount) uint64 { return uint64(min(max(a, 0), MaxAmount)) }

// Round returns x millionths as an amount from 0 to [MaxAmount].
func Round(x float64) Amount { return Amount(min(max(math.Round(x), 0), float64(MaxAmount))) }

// Fraction returns f in millionths, at least one; usual where f is not above 0 and at
// most most, as where it was not validated.
func Fraction(f, usual, most float64) uint64 {
	if !(f > 0 && f <= most) {
		f = usual
	}
	return max(1, uint64(math.Round(f*float64(Token))))
}
