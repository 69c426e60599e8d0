package sim

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
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
type Estimate struct {
	Mean, Half float64
	Min, Max   float64
	Runs       int
}

// String writes the mean, and the interval where there is one.
func (e Estimate) String() string {
	if e.Runs < 2 || e.Half == 0 {
		return fmt.Sprintf("%.4g", e.Mean)
	}
	return fmt.Sprintf("%.4g ± %.2g", e.Mean, e.Half)
}

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
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	figures := Figures()
	values := make([][]float64, len(systems)*runs) // by system, run, figure
	firsts := make([]*Result, len(systems))
	failed := make([]error, len(values))
	jobs := make(chan int)
	var workers sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(values)) {
		workers.Go(func() {
			for job := range jobs {
				system, run := job/runs, job%runs
				one := s
				one.Seed += uint64(run)
				result, err := Run(ctx, one, systems[system])
				if err != nil {
					failed[job] = err
					cancel(err)
					continue
				}
				for _, f := range figures {
					values[job] = append(values[job], f.Of(result))
				}
				if run == 0 {
					firsts[system] = result
				}
			}
		})
	}
	for job := range values {
		jobs <- job
	}
	close(jobs)
	workers.Wait()
	if err := errors.Join(failed...); err != nil {
		return nil, context.Cause(ctx)
	}
	c := &Comparison{Scenario: s, Runs: runs}
	for i, system := range systems {
		row := Row{System: system.Name(), First: firsts[i]}
		for k := range figures {
			column := make([]float64, runs)
			for run := range column {
				column[run] = values[i*runs+run][k]
			}
			row.Figures = append(row.Figures, estimate(column))
		}
		c.Rows = append(c.Rows, row)
	}
	return c, nil
}

// quantiles are the 97.5 % quantiles of Student's t for 1 to 30 degrees of freedom.
var quantiles = [...]float64{
	12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228,
	2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086,
	2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
}

// estimate returns the mean of values and its interval.
func estimate(values []float64) Estimate {
	n := len(values)
	e := Estimate{Min: math.Inf(1), Max: math.Inf(-1), Runs: n}
	for _, x := range values {
		e.Mean += x / float64(n)
		e.Min, e.Max = min(e.Min, x), max(e.Max, x)
	}
	if n < 2 || e.Min == e.Max || math.IsInf(e.Mean, 0) {
		if e.Min == e.Max {
			e.Mean = e.Min
		}
		return e
	}
	squares := 0.0
	for _, x := range values {
		squares += (x - e.Mean) * (x - e.Mean)
	}
	t := 1.96
	if n-2 < len(quantiles) {
		t = quantiles[n-2]
	}
	e.Half = t * math.Sqrt(squares/float64(n-1)/float64(n))
	return e
}
