package report

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/stint-io/stint/sim/internal/words"
)

// Format is how a table is written. The zero value is Text.
type Format uint8

// The formats.
const (
	Text     Format = iota // aligned columns, with a legend
	JSONText               // one object
	CSV                    // a line of names, a line for each system
	Markdown               // a table and a list
)

var formatNames = []string{Text: "text", JSONText: "json", CSV: "csv", Markdown: "markdown"}

// FormatNames returns the names that [ParseFormat] reads.
func FormatNames() []string { return slices.Clone(formatNames) }

// ParseFormat reads the name of a format.
func ParseFormat(name string) (Format, error) {
	if i := slices.Index(formatNames, name); i >= 0 {
		return Format(i), nil
	}
	return Text, words.Unknown("format", name, "one", formatNames)
}

// Column is a figure of a table.
type Column struct {
	Name  string
	Unit  string // "" = a ratio or a count
	About string // in plain words
}

func (c Column) title() string {
	if c.Unit == "" {
		return c.Name
	}
	return fmt.Sprintf("%s (%s)", c.Name, c.Unit)
}

// Row has the figures of one system, one for each column.
type Row struct {
	System  string
	Figures []Estimate
}

// Table is what several systems did.
type Table struct {
	Heading string
	Runs    int
	Columns []Column
	Rows    []Row
}

// Write writes the table in a format other than JSON, for which see [Table.JSON].
func (t *Table) Write(w io.Writer, format Format) error {
	switch format {
	case CSV:
		return t.writeCSV(w)
	case Markdown:
		return t.writeMarkdown(w)
	default:
		return t.writeText(w)
	}
}

// cells returns the table with its first line.
func (t *Table) cells() [][]string {
	lines := [][]string{{"system"}}
	for _, col := range t.Columns {
		lines[0] = append(lines[0], col.title())
	}
	for _, row := range t.Rows {
		line := []string{row.System}
		for _, e := range row.Figures {
			line = append(line, cell(e))
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
		return Digits(e.Mean)
	}
	return Digits(e.Mean) + " ± " + strconv.FormatFloat(e.Half, 'g', 2, 64)
}

// Digits writes a number with four digits at least, and never as a power of ten.
func Digits(x float64) string {
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

func (t *Table) writeText(w io.Writer) error {
	var b strings.Builder
	b.WriteString(t.Heading + "\n\n")
	lines := t.cells()
	widths := make([]int, len(t.Columns)+1)
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
	for _, col := range t.Columns {
		width = max(width, len(col.Name))
	}
	for _, col := range t.Columns {
		fmt.Fprintf(&b, "%-*s  %s\n", width, col.Name, col.About)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (t *Table) writeMarkdown(w io.Writer) error {
	escape := strings.NewReplacer("|", `\|`, "*", `\*`, "_", `\_`, "`", "\\`", "<", "&lt;", "[", `\[`)
	var b strings.Builder
	b.WriteString(escape.Replace(t.Heading) + "\n\n")
	for i, line := range t.cells() {
		for k, text := range line {
			line[k] = escape.Replace(text)
		}
		b.WriteString("| " + strings.Join(line, " | ") + " |\n")
		if i == 0 {
			b.WriteString("|---" + strings.Repeat("|--:", len(t.Columns)) + "|\n")
		}
	}
	b.WriteString("\n")
	for _, col := range t.Columns {
		fmt.Fprintf(&b, "* %s: %s\n", col.Name, col.About)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// writeCSV writes plain numbers; a time that was not reached is inf.
func (t *Table) writeCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	line := []string{"system"}
	for _, col := range t.Columns {
		line = append(line, col.title())
		if t.Runs > 1 {
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
	for _, row := range t.Rows {
		line := []string{row.System}
		for _, e := range row.Figures {
			line = append(line, number(e.Mean))
			if t.Runs > 1 {
				line = append(line, number(e.Half))
			}
		}
		lines = append(lines, line)
	}
	return out.WriteAll(lines)
}

// JSON is the part of a JSON object that a table is. A time that was not reached is null.
type (
	JSON struct {
		Figures []figureJSON `json:"figures"`
		Systems []systemJSON `json:"systems"`
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

// JSON returns the table for an object that embeds it.
func (t *Table) JSON() JSON {
	var j JSON
	for _, col := range t.Columns {
		j.Figures = append(j.Figures, figureJSON(col))
	}
	finite := func(x float64) *float64 {
		if math.IsInf(x, 0) || math.IsNaN(x) {
			return nil
		}
		return &x
	}
	for _, row := range t.Rows {
		x := systemJSON{System: row.System, Figures: map[string]estimateJSON{}}
		for i, e := range row.Figures {
			x.Figures[t.Columns[i].Name] = estimateJSON{finite(e.Mean), finite(e.Half), finite(e.Min), finite(e.Max)}
		}
		j.Systems = append(j.Systems, x)
	}
	return j
}

// WriteJSON writes an object as all tables are written.
func WriteJSON(w io.Writer, object any) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	enc.SetEscapeHTML(false)
	return enc.Encode(object)
}
