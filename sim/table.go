package sim

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/stint-io/stint/sim/internal/report"
	"github.com/stint-io/stint/sim/internal/words"
)

// Format is how a table is written. The zero value is Text.
type Format = report.Format

// The formats.
const (
	Text     = report.Text     // aligned columns, with a legend
	JSON     = report.JSONText // one object
	CSV      = report.CSV      // a line of names, a line for each system
	Markdown = report.Markdown // a table and a list
)

// FormatNames returns the names that [ParseFormat] reads.
func FormatNames() []string { return report.FormatNames() }

// ParseFormat reads the name of a format.
func ParseFormat(name string) (Format, error) { return report.ParseFormat(name) }

// legend says in plain words what a figure is, by its name.
var legend = map[string]string{
	"use":               "what was admitted, over what the limit allows or what was asked for, whichever is less",
	"use in windows":    "the same, with the lesser of both taken in each second",
	"mean":              "what was admitted, over what the limit's rate lets through",
	"lent":              "shares that instances hold, over what the limit allows or what was asked for, at most 1",
	"over":              "the most that was admitted beyond burst + rate x time, in any interval; 0 = never over",
	"peak 1 s":          "the most that was admitted in any second, over burst + rate",
	"peak rate":         "the most that was admitted in any second, over the rate alone",
	"aligned second":    "the most that was admitted in any whole second of the clock, over the rate alone",
	"peak 10 s":         "the most that was admitted in any 10 seconds, over burst + rate x 10",
	"sum of shares":     "the largest sum of all instances' shares at any moment, over the limit",
	"t95":               "time from the step until every second uses at least 95 %",
	"t95 fine":          "the same for every 0.1 s",
	"t110":              "time from the step until no second admits more than 110 % of the limit",
	"excess":            "what was admitted above the limit in the minute after the step, in seconds of the limit",
	"steady":            "what the last minute admitted, over what the limit's rate lets through",
	"swing":             "difference of the best and the worst second of the last minute, over the limit",
	"first tenth":       "the part of what was admitted that came in the first tenth of a second of the clock",
	"least tenth":       "the same of the tenth with the least; 0.1 = as much in each",
	"most tenth":        "the same of the tenth with the most",
	"early":             "requests refused that one central limiter would have admitted",
	"refused below":     "tokens refused while the whole demand was within the limit",
	"refused part":      "tokens refused, over those asked for",
	"beyond one bucket": "the same, less what one central limiter refuses that lets requests wait as long",
	"Jain":              "fairness among instances, by what each is entitled to; 1 = fair",
	"traffic":           "control messages of one instance, on average",
	"traffic most":      "control messages of the busiest instance",
	"messages":          "control messages of the whole fleet",
	"admitted":          "what was admitted in all",
	"refused":           "what was refused in all",
	"wait mean":         "how long requests waited that were held back",
}

// DefaultFigures returns the names of the figures that a table shows unless others
// are named.
func DefaultFigures() []string {
	return []string{"use", "over", "peak 1 s", "sum of shares", "t95", "early", "Jain", "traffic"}
}

// FigureNamed returns the name of a figure as tables have it, for one that is written
// without regard to case, with _ or - for spaces.
func FigureNamed(name string) (string, error) {
	plain := strings.NewReplacer("_", " ", "-", " ")
	written := strings.ToLower(plain.Replace(strings.TrimSpace(name)))
	var known []string
	for _, f := range Figures() {
		if strings.ToLower(f.Name) == written {
			return f.Name, nil
		}
		known = append(known, f.Name)
	}
	return "", words.Unknown("figure", name, "some", known)
}

// WriteTable writes how the systems did, a row for each and a column for each figure
// named. Without names it writes those of [DefaultFigures], or all of them in JSON
// and CSV. With several runs each figure is a mean with its 95 % interval.
func (c *Comparison) WriteTable(w io.Writer, format Format, figures []string) error {
	if len(figures) == 0 && (format == Text || format == Markdown) {
		figures = DefaultFigures()
	}
	var chosen []int // of Figures
	for i := range Figures() {
		if len(figures) == 0 {
			chosen = append(chosen, i)
		}
	}
	for _, name := range figures {
		name, err := FigureNamed(name)
		if err != nil {
			return err
		}
		chosen = append(chosen, slices.IndexFunc(Figures(), func(f Figure) bool { return f.Name == name }))
	}
	t := report.Table{Heading: c.heading(), Runs: c.Runs}
	for _, i := range chosen {
		f := Figures()[i]
		t.Columns = append(t.Columns, report.Column{Name: f.Name, Unit: f.Unit, About: legend[f.Name]})
	}
	for _, row := range c.Rows {
		r := report.Row{System: row.System}
		for _, i := range chosen {
			r.Figures = append(r.Figures, row.Figures[i])
		}
		t.Rows = append(t.Rows, r)
	}
	if format == JSON {
		return c.writeJSON(w, &t)
	}
	return t.Write(w, format)
}

// heading says what was run.
func (c *Comparison) heading() string {
	s := &c.Scenario
	text := fmt.Sprintf("%s: %d instances, limit %v, burst %d, %v", s.Name, s.Instances, s.Limit.Rate, s.Limit.Burst, s.Duration)
	if c.Runs > 1 {
		return text + fmt.Sprintf(", %d runs with seeds %d to %d, means and 95 %% intervals", c.Runs, s.Seed, s.Seed+uint64(c.Runs)-1)
	}
	return text + fmt.Sprintf(", seed %d", s.Seed)
}

// writeJSON writes the table with what was run.
func (c *Comparison) writeJSON(w io.Writer, t *report.Table) error {
	s := &c.Scenario
	return report.WriteJSON(w, struct {
		Scenario  string  `json:"scenario"`
		About     string  `json:"about,omitempty"`
		Limit     string  `json:"limit"`
		Burst     int64   `json:"burst"`
		Instances int     `json:"instances"`
		Seconds   float64 `json:"seconds"`
		Seed      uint64  `json:"seed"`
		Runs      int     `json:"runs"`
		report.JSON
	}{s.Name, s.About, s.Limit.Rate.String(), s.Limit.Burst, s.Instances, s.Duration.Seconds(), s.Seed, c.Runs, t.JSON()})
}
