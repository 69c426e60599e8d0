package overload

import (
	"context"
	"fmt"
	"io"
	"slices"

	"github.com/stint-io/stint/sim/internal/report"
)

// Row is how one system did.
type Row struct {
	System  string
	Figures []report.Estimate // in the order of [Scenario.Figures]
	Goodput []float64         // of each run
	First   *Result           // the run with the scenario's own seed
}

// Comparison is several systems in one scenario.
type Comparison struct {
	Scenario Scenario
	Runs     int
	Rows     []Row // in the order of the systems
}

// Compare plays a scenario with each system, runs times with the seeds that follow the scenario's.
// Arrivals and work are the same for all systems at a seed. Runs go in parallel; the outcome does
// not depend on it.
func Compare(ctx context.Context, s Scenario, systems []System, runs int) (*Comparison, error) {
	if runs < 1 {
		return nil, fmt.Errorf("overload: %d runs, want at least 1", runs)
	}
	if err := s.Validate(); err != nil {
		return nil, err
	}
	figures := s.Figures()
	values := make([][]float64, len(systems)*runs) // by system, run, figure
	c := &Comparison{Scenario: s, Runs: runs}
	for _, system := range systems {
		c.Rows = append(c.Rows, Row{System: system.Name(), Goodput: make([]float64, runs)})
	}
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
		c.Rows[system].Goodput[run] = result.Goodput
		if run == 0 {
			c.Rows[system].First = result
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	for i := range c.Rows {
		for k := range figures {
			column := make([]float64, runs)
			for run := range column {
				column[run] = values[i*runs+run][k]
			}
			c.Rows[i].Figures = append(c.Rows[i].Figures, report.EstimateOf(column))
		}
	}
	return c, nil
}

// heading says what was run.
func (c *Comparison) heading() string {
	s := &c.Scenario
	text := fmt.Sprintf("%s: %d servers, %v", s.Name, len(s.Servers), s.Duration)
	if s.Random != nil {
		text = fmt.Sprintf("%s: servers drawn for each seed, %v", s.Name, s.Duration)
	}
	if c.Runs > 1 {
		return text + fmt.Sprintf(", %d runs with seeds %d to %d, means and 95 %% intervals", c.Runs, s.Seed, s.Seed+uint64(c.Runs)-1)
	}
	return text + fmt.Sprintf(", seed %d", s.Seed)
}

// WriteTable writes how the systems did, a row for each and a column for each figure named.
// Without names it writes those of [DefaultFigures], or all of them in JSON and CSV. With several
// runs each figure is a mean with its 95 % interval, and the goodput of each run over that of the
// other systems follows, since what was drawn differs more than the systems do.
func (c *Comparison) WriteTable(w io.Writer, format report.Format, figures []string) error {
	all := c.Scenario.Figures()
	if len(figures) == 0 && (format == report.Text || format == report.Markdown) {
		figures = DefaultFigures()
	}
	var chosen []int
	for i := range all {
		if len(figures) == 0 {
			chosen = append(chosen, i)
		}
	}
	for _, name := range figures {
		name, err := c.Scenario.FigureNamed(name)
		if err != nil {
			return err
		}
		chosen = append(chosen, slices.IndexFunc(all, func(f Figure) bool { return f.Name == name }))
	}
	t := report.Table{Heading: c.heading(), Runs: c.Runs}
	for _, i := range chosen {
		t.Columns = append(t.Columns, report.Column{Name: all[i].Name, Unit: all[i].Unit, About: all[i].About})
	}
	for _, row := range c.Rows {
		r := report.Row{System: row.System}
		for _, i := range chosen {
			r.Figures = append(r.Figures, row.Figures[i])
		}
		t.Rows = append(t.Rows, r)
	}
	if c.Runs > 1 && len(c.Rows) > 1 {
		c.ratios(&t)
	}
	if format == report.JSONText {
		return report.WriteJSON(w, struct {
			Scenario string  `json:"scenario"`
			About    string  `json:"about,omitempty"`
			Servers  int     `json:"servers"`
			Seconds  float64 `json:"seconds"`
			Seed     uint64  `json:"seed"`
			Runs     int     `json:"runs"`
			report.JSON
		}{c.Scenario.Name, c.Scenario.About, len(c.Scenario.Servers), c.Scenario.Duration.Seconds(), c.Scenario.Seed, c.Runs, t.JSON()})
	}
	return t.Write(w, format)
}

// ratios adds the first system's goodput over that of each, by run: least, median and most.
func (c *Comparison) ratios(t *report.Table) {
	first := c.Rows[0]
	for i, name := range []string{"least", "median", "most"} {
		about := []string{
			"the goodput of " + first.System + " over this one's, in the run where that is least",
			"the same, median of all runs", "the same, in the run where it is most",
		}
		t.Columns = append(t.Columns, report.Column{Name: name, About: about[i]})
	}
	for k, row := range c.Rows {
		var all []float64
		for run, goodput := range row.Goodput {
			all = append(all, first.Goodput[run]/max(goodput, 1e-9))
		}
		slices.Sort(all)
		for _, x := range []float64{all[0], all[len(all)/2], all[len(all)-1]} {
			t.Rows[k].Figures = append(t.Rows[k].Figures, report.EstimateOf([]float64{x}))
		}
	}
}
