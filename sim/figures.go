package sim

import (
	"math"
	"slices"
	"time"

	"github.com/stint-io/stint/limit"
)

// Figure is a number that a table shows of a result.
type Figure struct {
	Name string
	Unit string // "" = a ratio or a count
	Of   func(*Result) float64
}

// Figures returns all figures, in the order of tables. A time that was not reached in
// the run is infinite.
func Figures() []Figure {
	return []Figure{
		{"use", "", func(r *Result) float64 { return r.Use }},
		{"use in windows", "", func(r *Result) float64 { return r.UseWindows }},
		{"mean", "", func(r *Result) float64 { return r.Mean }},
		{"lent", "", func(r *Result) float64 { return r.Lent }},
		{"over", "tokens", func(r *Result) float64 { return r.Over }},
		{"peak 1 s", "", func(r *Result) float64 { return r.Peak1 }},
		{"peak rate", "", func(r *Result) float64 { return r.Rate1 }},
		{"aligned second", "", func(r *Result) float64 { return r.Aligned1 }},
		{"peak 10 s", "", func(r *Result) float64 { return r.Peak10 }},
		{"sum of shares", "", func(r *Result) float64 { return r.SharePeak }},
		{"t95", "s", func(r *Result) float64 { return timeOf(r.T95) }},
		{"t95 fine", "s", func(r *Result) float64 { return timeOf(r.T95Fine) }},
		{"t110", "s", func(r *Result) float64 { return timeOf(r.T110) }},
		{"excess", "s", func(r *Result) float64 { return r.Excess60 }},
		{"steady", "", func(r *Result) float64 { return r.Steady }},
		{"swing", "", func(r *Result) float64 { return r.Swing }},
		{"first tenth", "", func(r *Result) float64 { return r.Tenths[0] }},
		{"least tenth", "", func(r *Result) float64 { return slices.Min(r.Tenths[:]) }},
		{"most tenth", "", func(r *Result) float64 { return slices.Max(r.Tenths[:]) }},
		{"early", "requests", func(r *Result) float64 { return float64(r.Early.Requests) }},
		{"refused below", "tokens", func(r *Result) float64 { return float64(r.Below) }},
		{"refused part", "", func(r *Result) float64 { return r.RefusedPart }},
		{"beyond one bucket", "", func(r *Result) float64 { return r.BeyondOne }},
		{"Jain", "", func(r *Result) float64 { return r.Jain }},
		{"traffic", "Kbps", func(r *Result) float64 { return r.Kbps }},
		{"traffic most", "Kbps", func(r *Result) float64 { return r.KbpsMost }},
		{"messages", "1/s", func(r *Result) float64 { return float64(r.Messages) / r.Duration.Seconds() }},
		{"admitted", "tokens", func(r *Result) float64 { return float64(r.Admitted.Tokens) }},
		{"refused", "tokens", func(r *Result) float64 { return float64(r.Refused.Tokens) }},
		{"wait mean", "s", func(r *Result) float64 { return r.WaitMean.Seconds() }},
	}
}

func timeOf(d time.Duration) float64 {
	if d == limit.Never {
		return math.Inf(1)
	}
	return d.Seconds()
}
