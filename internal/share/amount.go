package share

import (
	"errors"
	"fmt"
	"math"
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
		return 0, fmt.Errorf("share: NaN is %w: send a finite number of at least 0", ErrAmount)
	case x < 0:
		return 0, fmt.Errorf("share: %v is %w: it is negative, send at least 0", x, ErrAmount)
	case x*float64(Token) > float64(MaxAmount):
		return 0, fmt.Errorf("share: %v is %w: it is above %v", x, ErrAmount, MaxAmount.Float())
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
