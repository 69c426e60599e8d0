package sim

import (
	"context"
	"fmt"

	"github.com/stint-io/stint/sim/internal/report"
)

// Run plays a scenario with a system. It returns the faults of a scenario that is not
// valid, an error that says when it was when ctx ended first, and a fault of the system
// that breaks the contract of its nodes.
//
// Nodes that a scenario names and a system does not have, such as the coordinator of a
// system without, are left out.
func Run(ctx context.Context, s Scenario, system System) (*Result, error) {
	if err := s.Validate(); err != nil {
		return nil, err
	}
	g := newEngine(s, system)
	if err := g.run(ctx); err != nil {
		return nil, err
	}
	return g.recorder.finish(g), nil
}

// Estimate is the mean of some runs and the half width of its 95 % interval, by
// Student's t. Half is 0 for a single run.
type Estimate = report.Estimate

// Row is how one system did.
type Row struct {
	System  string
	Figures []Estimate // in the order of [Figures]
	// First is the run with the scenario's own seed, with its samples.
	First *Result
}

// Comparison is several systems in one scenario.
type Comparison struct {
	Scenario Scenario
	Runs     int
	Rows     []Row // in the order of the systems
}

// Compare plays a scenario with each system, runs times with the seeds that follow the
// scenario's. Arrivals and mishaps are the same for all systems at a seed. Runs go
// in parallel, so that systems must be safe for concurrent use; the outcome does not
// depend on it.
func Compare(ctx context.Context, s Scenario, systems []System, runs int) (*Comparison, error) {
	if runs < 1 {
		return nil, fmt.Errorf("sim: %d runs, want at least 1", runs)
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	figures := Figures()
	values := make([][]float64, len(systems)*runs) // by system, run, figure
	firsts := make([]*Result, len(systems))
	err := report.Each(ctx, len(values), func(ctx context.Context, job int) error {
		system, run := job/runs, job%runs
		one := s
		one.Seed += uint64(run)
		result, err := Run(ctx, one, systems[system])
		if err != nil {
			return err
		}
		for _, f := range figures {
			values[job] = append(values[job], f.Of(result))
		}
		if run == 0 {
			firsts[system] = result
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	c := &Comparison{Scenario: s, Runs: runs}
	for i, system := range systems {
		row := Row{System: system.Name(), First: firsts[i]}
		for k := range figures {
			column := make([]float64, runs)
			for run := range column {
				column[run] = values[i*runs+run][k]
			}
			row.Figures = append(row.Figures, report.EstimateOf(column))
		}
		c.Rows = append(c.Rows, row)
	}
	return c, nil
}
