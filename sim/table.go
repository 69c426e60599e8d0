package sim

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/stint-io/stint/internal/document"
)

// Format is how a table is written. The zero value is Text.
type Format uint8

// The formats.
const (
	Text     Format = iota // aligned columns, with a legend
	JSON                   // one object
	CSV                    // a line of names, a line for each system
	Markdown               // a table and a list
)

var formatNames = []string{Text: "text", JSON: "json", CSV: "csv", Markdown: "markdown"}

// FormatNames returns the names that [ParseFormat] reads.
func FormatNames() []string { return slices.Clone(formatNames) }

// ParseFormat reads the name of a format.
func ParseFormat(name string) (Format, error) {
	if i := slices.Index(formatNames, name); i >= 0 {
		return Format(i), nil
	}
	return Text, unknownName("format", name, "one", formatNames)
}

// unknownName is the error for a name that is not among known: want says how many of
// these there may be.
func unknownName(what, name, want string, known []string) error {
	text := fmt.Sprintf("sim: there is no %s %q, want %s of %s", what, name, want, strings.Join(known, ", "))
	if hint := document.Meant(name, known); hint != "" {
		text += ": " + hint
	}
	return errors.New(text)
}

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
	return "", unknownName("figure", name, "some", known)
}

// column is a figure in a table.
type column struct {
	Figure
	index int // in Row.Figures
}

func (c column) title() string {
	if c.Unit == "" {
		return c.Name
	}
	return fmt.Sprintf("%s (%s)", c.Name, c.Unit)
}

// WriteTable writes how the systems did, a row for each and a column for each figure
// named. Without names it writes those of [DefaultFigures], or all of them in JSON
// and CSV. With several runs each figure is a mean with its 95 % interval.
func (c *Comparison) WriteTable(w io.Writer, format Format, figures []string) error {
	if len(figures) == 0 && (format == Text || format == Markdown) {
		figures = DefaultFigures()
	}
	var columns []column
	for i, f := range Figures() {
		if len(figures) == 0 {
			columns = append(columns, column{f, i})
		}
	}
	for _, name := range figures {
		name, err := FigureNamed(name)
		if err != nil {
			return err
		}
		i := slices.IndexFunc(Figures(), func(f Figure) bool { return f.Name == name })
		columns = append(columns, column{Figures()[i], i})
	}
	switch format {
	case JSON:
		return c.writeJSON(w, columns)
	case CSV:
		return c.writeCSV(w, columns)
	case Markdown:
		return c.writeMarkdown(w, columns)
	default:
		return c.writeText(w, columns)
	}
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

// cells returns the table with its first line.
func (c *Comparison) cells(columns []column) [][]string {
	lines := [][]string{{"system"}}
	for _, col := range columns {
		lines[0] = append(lines[0], col.title())
	}
	for _, row := range c.Rows {
		line := []string{row.System}
		for _, col := range columns {
			line = append(line, cell(row.Figures[col.index]))
		}
		lines = append(lines, line)
	}
	return lines
}

func cell(e Estimate) string {
	switch {
	case math.IsInf(e.Mean, 0):
		return "never"
	case e.Runs < 2 || e.Half == 0:
		return digits(e.Mean)
	}
	return digits(e.Mean) + " ± " + strconv.FormatFloat(e.Half, 'g', 2, 64)
}

// digits writes a number with four digits at least, and never as a power of ten.
func digits(x float64) string {
	size := math.Abs(x)
	decimals := 4
	for bound := 1.0; bound <= size && decimals > 0; bound *= 10 {
		decimals--
	}
	if size > 0 && size < 0.001 {
		return strconv.FormatFloat(x, 'g', 3, 64)
	}
	text := strconv.FormatFloat(x, 'f', decimals, 64)
	if strings.Contains(text, ".") {
		text = strings.TrimRight(strings.TrimRight(text, "0"), ".")
	}
	return text
}

func (c *Comparison) writeText(w io.Writer, columns []column) error {
	var b strings.Builder
	b.WriteString(c.heading() + "\n\n")
	lines := c.cells(columns)
	widths := make([]int, len(columns)+1)
	for _, line := range lines {
		for i, text := range line {
			widths[i] = max(widths[i], utf8.RuneCountInString(text))
		}
	}
	for _, line := range lines {
		for i, text := range line {
			pad := strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text))
			if i == 0 {
				b.WriteString(text + pad)
				continue
			}
			b.WriteString("  " + pad + text)
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	width := 0
	for _, col := range columns {
		width = max(width, len(col.Name))
	}
	for _, col := range columns {
		fmt.Fprintf(&b, "%-*s  %s\n", width, col.Name, legend[col.Name])
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (c *Comparison) writeMarkdown(w io.Writer, columns []column) error {
	escape := strings.NewReplacer("|", `\|`, "*", `\*`, "_", `\_`, "`", "\\`", "<", "&lt;", "[", `\[`)
	var b strings.Builder
	b.WriteString(escape.Replace(c.heading()) + "\n\n")
	for i, line := range c.cells(columns) {
		for k, text := range line {
			line[k] = escape.Replace(text)
		}
		b.WriteString("| " + strings.Join(line, " | ") + " |\n")
		if i == 0 {
			b.WriteString("|---" + strings.Repeat("|--:", len(columns)) + "|\n")
		}
	}
	b.WriteString("\n")
	for _, col := range columns {
		fmt.Fprintf(&b, "* %s: %s\n", col.Name, legend[col.Name])
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeCSV writes plain numbers; a time that was not reached is inf.
func (c *Comparison) writeCSV(w io.Writer, columns []column) error {
	out := csv.NewWriter(w)
	line := []string{"system"}
	for _, col := range columns {
		line = append(line, col.title())
		if c.Runs > 1 {
			line = append(line, col.Name+" ±")
		}
	}
	lines := [][]string{line}
	number := func(x float64) string {
		if math.IsInf(x, 0) {
			return "inf"
		}
		return strconv.FormatFloat(x, 'g', -1, 64)
	}
	for _, row := range c.Rows {
		line := []string{row.System}
		for _, col := range columns {
			e := row.Figures[col.index]
			line = append(line, number(e.Mean))
			if c.Runs > 1 {
				line = append(line, number(e.Half))
			}
		}
		lines = append(lines, line)
	}
	return out.WriteAll(lines)
}

// The object that JSON writes. A time that was not reached is null.
type (
	tableJSON struct {
		Scenario  string       `json:"scenario"`
		About     string       `json:"about,omitempty"`
		Limit     string       `json:"limit"`
		Burst     int64        `json:"burst"`
		Instances int          `json:"instances"`
		Seconds   float64      `json:"seconds"`
		Seed      uint64       `json:"seed"`
		Runs      int          `json:"runs"`
		Figures   []figureJSON `json:"figures"`
		Systems   []systemJSON `json:"systems"`
	}
	figureJSON struct {
		Name  string `json:"name"`
		Unit  string `json:"unit,omitempty"`
		About string `json:"about"`
	}
	systemJSON struct {
		System  string                  `json:"system"`
		Figures map[string]estimateJSON `json:"figures"`
	}
	estimateJSON struct {
		Mean *float64 `json:"mean"`
		Half *float64 `json:"half"` // of the 95 % interval
		Min  *float64 `json:"min"`
		Max  *float64 `json:"max"`
	}
)

func (c *Comparison) writeJSON(w io.Writer, columns []column) error {
	s := &c.Scenario
	t := tableJSON{
		Scenario: s.Name, About: s.About, Limit: s.Limit.Rate.String(), Burst: s.Limit.Burst,
		Instances: s.Instances, Seconds: s.Duration.Seconds(), Seed: s.Seed, Runs: c.Runs,
	}
	for _, col := range columns {
		t.Figures = append(t.Figures, figureJSON{col.Name, col.Unit, legend[col.Name]})
	}
	finite := func(x float64) *float64 {
		if math.IsInf(x, 0) || math.IsNaN(x) {
			return nil
		}
		return &x
	}
	for _, row := range c.Rows {
		x := systemJSON{System: row.System, Figures: map[string]estimateJSON{}}
		for _, col := range columns {
			e := row.Figures[col.index]
			x.Figures[col.Name] = estimateJSON{finite(e.Mean), finite(e.Half), finite(e.Min), finite(e.Max)}
		}
		t.Systems = append(t.Systems, x)
	}
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(t)
}
