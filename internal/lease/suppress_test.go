package lease

import (
	"math"
	"testing"
	"testing/quick"
	"time"

	"github.com/stint-io/stint/internal/demand"
	"github.com/stint-io/stint/internal/fixed"
)

// TestFraction has the figures of the description of 2022.
func TestFraction(t *testing.T) {
	linear := Suppress{Ramp: RampLinear}
	for _, c := range []struct {
		s    Suppress
		rate float64 // of a limit of 100
		want float64
	}{
		{Suppress{}, 0, 0},
		{Suppress{}, 100, 0},
		{Suppress{}, 200, 0.5},
		{Suppress{}, 10_000, 0.99},
		{linear, 100, 0},
		{linear, 200, 0.5},
		{linear, 300, 1},
		{linear, 1e9, 1},
		{Suppress{Ramp: RampLinear, Full: 2}, 150, 0.5},
	} {
		rate, err := fixed.AmountOf(c.rate)
		if err != nil {
			t.Fatal(err)
		}
		if got := c.s.Fraction(100*fixed.Token, rate); math.Abs(got-c.want) > 1e-12 {
			t.Errorf("%+v at %v: %v, want %v", c.s, c.rate, got, c.want)
		}
	}
	if got := (&Suppress{}).Fraction(0, 1); got != 1 {
		t.Errorf("of a limit of 0: %v", got)
	}
}

// TestExactFractionLeavesTheLimit: what passes of any rate above the limit is the limit.
func TestExactFractionLeavesTheLimit(t *testing.T) {
	s := Suppress{}
	err := quick.Check(func(l, r uint64) bool {
		limit, rate := fixed.Amount(l>>3)%fixed.MaxAmount, fixed.Amount(r>>2)%fixed.MaxAmount
		f := s.Fraction(limit, rate)
		if rate <= limit {
			return f == 0
		}
		return f >= 0 && f <= 1 && math.Abs((1-f)*float64(rate)-float64(limit)) <= 1e-9*float64(rate)
	}, &quick.Config{MaxCount: 10_000})
	if err != nil {
		t.Error(err)
	}
}

func TestBadSuppress(t *testing.T) {
	for name, s := range map[string]Suppress{
		"report of a nanosecond":       {Report: 1},
		"negative report":              {Report: -1},
		"report of an hour":            {Report: time.Hour},
		"negative window":              {Window: -1, Intervals: 1},
		"intervals without window":     {Intervals: 4},
		"window without intervals":     {Window: time.Second},
		"interval longer than window":  {Window: time.Second, Intervals: -1},
		"interval shorter than report": {Window: time.Second, Intervals: 20},
		"too many intervals":           {Window: time.Hour, Intervals: demand.MaxIntervals + 1},
		"admitted without a window":    {Admitted: true},
		"NaN":                          {Full: math.NaN()},
		"infinite":                     {Full: math.Inf(1)},
		"no ramp":                      {Full: 1},
		"unknown ramp":                 {Ramp: 9},
	} {
		if s.Validate() == nil {
			t.Errorf("%s is taken", name)
		}
	}
	for _, s := range []Suppress{{}, {Report: 2 * time.Second, Window: 24 * time.Second, Intervals: 4, Ramp: RampLinear, Admitted: true, Independent: true}} {
		if err := s.Validate(); err != nil {
			t.Errorf("%+v: %v", s, err)
		}
	}
}
