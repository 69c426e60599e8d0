package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strings"
	"time"
)

// row is one run of a table.
type row struct {
	what string
	edit func(*settings)
}

// tables are what evidence.yaml has of split limits.
var tables = map[string][]row{
	"limits": {
		{"10/s", func(s *settings) { s.Limit, s.Seconds = 10, 30 }},
		{"100/s", func(s *settings) { s.Limit, s.Seconds = 100, 20 }},
		{"1,000/s", func(s *settings) { s.Limit = 1000 }},
		{"100,000/s", func(s *settings) { s.Limit = 100_000 }},
		{"2,000,000/s", func(s *settings) { s.Limit = 2_000_000 }},
	},
	"clocks": {
		{"clocks agree", func(*settings) {}},
		{"off by up to 50 ms", func(s *settings) { s.Offset = 50 * time.Millisecond }},
		{"off by up to 100 ms", func(s *settings) { s.Offset = 100 * time.Millisecond }},
		{"off by up to 250 ms", func(s *settings) { s.Offset = 250 * time.Millisecond }},
		{"off by up to 100 ms, all step 10 s back", func(s *settings) { s.Offset, s.Step = 100*time.Millisecond, -10*time.Second }},
		{"off by up to 100 ms, bursts of 10 x across seconds", func(s *settings) { s.Offset, s.Bursts, s.Demand = 100*time.Millisecond, true, 10 }},
		{"windows, off by up to 50 ms", func(s *settings) { s.Mode, s.Offset = "window", 50*time.Millisecond }},
		{"windows, off by up to 100 ms", func(s *settings) { s.Mode, s.Offset = "window", 100*time.Millisecond }},
		{"windows, off by up to 250 ms", func(s *settings) { s.Mode, s.Offset = "window", 250*time.Millisecond }},
		{"windows, off by up to 100 ms, bursts of 10 x across seconds", func(s *settings) {
			s.Mode, s.Offset, s.Bursts, s.Demand = "window", 100*time.Millisecond, true, 10
		}},
	},
	"pacing": {
		{"windows, 3 x", func(s *settings) { s.Mode = "window" }},
		{"windows, PID, 3 x", func(s *settings) { s.Mode, s.Seconds = "pid", 20 }},
		{"windows, even, 3 x", func(s *settings) { s.Mode = "window-even" }},
		{"no windows, 3 x", func(*settings) {}},
		{"windows, 0.5 x", func(s *settings) { s.Mode, s.Demand = "window", 0.5 }},
		{"windows, PID, 0.5 x", func(s *settings) { s.Mode, s.Demand = "pid", 0.5 }},
		{"windows, even, 0.5 x", func(s *settings) { s.Mode, s.Demand = "window-even", 0.5 }},
		{"no windows, 0.5 x", func(s *settings) { s.Demand = 0.5 }},
		{"no windows, burst of a second, 0.5 x", func(s *settings) { s.Demand, s.Burst = 0.5, s.Limit }},
	},
	"changes": {
		{"half the limit, announced", func(s *settings) { s.NewLimit = s.Limit / 2 }},
		{"half the limit, at once", func(s *settings) { s.NewLimit, s.AtOnce = s.Limit/2, true }},
		{"half the processes, announced", func(s *settings) { s.NewProcesses = s.Processes / 2 }},
		{"half the processes, at once", func(s *settings) { s.NewProcesses, s.AtOnce = s.Processes/2, true }},
	},
}

func tableNames() []string { return slices.Sorted(maps.Keys(tables)) }

// printTable runs a table's rows one after the other and prints them as Markdown.
func printTable(ctx context.Context, out io.Writer, name string, usual settings) error {
	rows, ok := tables[name]
	if !ok {
		return fmt.Errorf("-table is %q, want one of %s", name, strings.Join(tableNames(), ", "))
	}
	fmt.Fprintf(out, "%d processes, %d/s unless a row says otherwise, demand %g x, %d s\n\n", usual.Processes, usual.Limit, usual.Demand, usual.Seconds)
	fmt.Fprintln(out, "| setting | of the limit | most in any second | most in a second of the clock | least and most in a tenth | delay, mean and p99 | consumers' processor time, of one core |")
	fmt.Fprintln(out, "|---|---|---|---|---|---|---|")
	for _, r := range rows {
		s := usual
		r.edit(&s)
		if err := s.validate(); err != nil {
			return err
		}
		res, err := s.measure(ctx, func(int, int64) {})
		if err != nil {
			return fmt.Errorf("%s: %w", r.what, err)
		}
		fmt.Fprintln(out, res.row(r.what))
	}
	return nil
}

// row is a result as a row of Markdown.
func (r result) row(what string) string {
	l := float64(r.Limit)
	wanted := l * float64(r.Seconds)
	if r.NewLimit > 0 {
		wanted = (l + float64(r.NewLimit)) / 2 * float64(r.Seconds)
	}
	sliding := fmt.Sprintf("%.4f (%d)", float64(r.WorstSliding)/l, r.WorstSliding)
	if r.NewLimit > 0 || r.NewProcesses > 0 {
		sliding += fmt.Sprintf("; before %d, after %d", r.WorstSecondOld, r.WorstSecondNew)
	}
	least, most := math.Inf(1), 0.0
	for _, share := range r.Tenths {
		least, most = min(least, share), max(most, share)
	}
	delay := "-"
	if r.DelayP99 > 0 || r.DelayMean > 0 {
		delay = fmt.Sprintf("%.1f ms, %.1f ms", r.DelayMean.Seconds()*1000, r.DelayP99.Seconds()*1000)
	}
	return fmt.Sprintf("| %s | %.4f | %s | %.4f (%d) | %.1f %%, %.1f %% | %s | %.2f |", what, float64(r.Count)/wanted, sliding,
		float64(r.WorstAligned)/l, r.WorstAligned, 100*least, 100*most, delay, r.CPU.Seconds()/r.Wall.Seconds())
}
