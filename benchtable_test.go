package stint_test

import (
	"cmp"
	"crypto/sha256"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// storedFacts are the lines at the head of a stored output, in their order.
var storedFacts = []string{"command", "machine", "date", "commit", "other work", "sha256"}

// storedRun is what one benchmark command printed, as docs/benchmarks/output/NAME.md keeps it:
// a title, a list of storedFacts, a line of three dashes, and the output.
type storedRun struct {
	name, title string
	facts       map[string]string
	tables      []benchTable
}

// benchTable is one Markdown table of a stored output, under the heading that it has there.
// A second table under the same heading is called "heading#2".
type benchTable struct {
	title string
	head  []string
	rows  [][]string
}

// readStoredRun reads docs/benchmarks/output/NAME.md. It fails if a fact is missing, or if the
// output is not the one that the checksum was made of: figures are measured, not edited.
func readStoredRun(t *testing.T, name string) storedRun {
	t.Helper()
	file := filepath.Join("docs", "benchmarks", "output", name+".md")
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	run, output, err := parseStoredRun(name, string(text))
	if err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if sum := fmt.Sprintf("%x", sha256.Sum256([]byte(output)))[:16]; sum != run.facts["sha256"] {
		t.Errorf("%s: the output has the checksum %s, the head says %s: it was edited; ./scripts/benchmarks %s measures again",
			file, sum, run.facts["sha256"], name)
	}
	return run
}

func parseStoredRun(name, text string) (storedRun, string, error) {
	head, output, ok := strings.Cut(text, "\n---\n")
	if !ok {
		return storedRun{}, "", fmt.Errorf("no line of three dashes before the output")
	}
	title, list, _ := strings.Cut(head, "\n")
	run := storedRun{name: name, title: strings.TrimPrefix(title, "# "), facts: map[string]string{}, tables: benchTables(output)}
	for line := range strings.SplitSeq(strings.TrimSpace(list), "\n") {
		fact, value, ok := strings.Cut(strings.TrimPrefix(line, "* "), ": ")
		if !ok || !slices.Contains(storedFacts, fact) {
			return storedRun{}, "", fmt.Errorf("%q is no fact of a run, want one of %q", line, storedFacts)
		}
		run.facts[fact] = value
	}
	for _, fact := range storedFacts {
		if run.facts[fact] == "" {
			return storedRun{}, "", fmt.Errorf("the head does not name the %s", fact)
		}
	}
	if len(run.tables) == 0 {
		return storedRun{}, "", fmt.Errorf("the output has no table")
	}
	return run, output, nil
}

// benchTables returns the tables of a Markdown text.
func benchTables(text string) []benchTable {
	var tables []benchTable
	heading, under, inTable := "", 0, false
	for line := range strings.SplitSeq(text, "\n") {
		switch {
		case strings.HasPrefix(line, "### "):
			heading, under, inTable = strings.TrimPrefix(line, "### "), 0, false
		case !strings.HasPrefix(line, "|"):
			inTable = false
		case !inTable:
			under++
			title := heading
			if under > 1 {
				title = fmt.Sprintf("%s#%d", heading, under)
			}
			tables = append(tables, benchTable{title: title, head: benchCells(line)})
			inTable = true
		case !strings.HasPrefix(line, "|--"):
			last := &tables[len(tables)-1]
			last.rows = append(last.rows, benchCells(line))
		}
	}
	return tables
}

// benchCells returns the cells of a row. A bar within a cell is written as \|.
func benchCells(line string) []string {
	cells := strings.Split(strings.ReplaceAll(strings.Trim(line, "|"), `\|`, "\x00"), "|")
	for i := range cells {
		cells[i] = strings.ReplaceAll(strings.TrimSpace(cells[i]), "\x00", "|")
	}
	return cells
}

func (r storedRun) table(title string) (benchTable, error) {
	for _, table := range r.tables {
		if table.title == title {
			return table, nil
		}
	}
	return benchTable{}, fmt.Errorf("docs/benchmarks/output/%s.md has no table %q", r.name, title)
}

// column finds a column by its name; "name#2" is the second one that is called so.
func (b benchTable) column(name string) (int, error) {
	name, count, _ := strings.Cut(name, "#")
	nth, _ := strconv.Atoi(cmp.Or(count, "1"))
	for i, head := range b.head {
		if head == name {
			if nth--; nth == 0 {
				return i, nil
			}
		}
	}
	return 0, fmt.Errorf("table %q has no column %q", b.title, name)
}

// row finds a row by its first cell, or by its first cells with commas between them.
func (b benchTable) row(name string) ([]string, error) {
	for _, row := range b.rows {
		for n := 1; n <= len(row); n++ {
			if strings.Join(row[:n], ", ") == name {
				return row, nil
			}
		}
	}
	return nil, fmt.Errorf("table %q has no row %q", b.title, name)
}

// benchCell returns the figure in the cell that ref names as "table | row | column".
func (r storedRun) benchCell(ref string) (benchFigure, error) {
	parts := benchCells(ref)
	if len(parts) != 3 {
		return benchFigure{}, fmt.Errorf("%q is no cell, want table | row | column", ref)
	}
	table, err := r.table(parts[0])
	if err != nil {
		return benchFigure{}, err
	}
	column, err := table.column(parts[2])
	if err != nil {
		return benchFigure{}, err
	}
	row, err := table.row(parts[1])
	if err != nil {
		return benchFigure{}, err
	}
	return parseBenchFigure(row[column])
}

// benchFigure is a number as it was printed, and its value. "never" is endless.
type benchFigure struct {
	text  string
	value float64
}

var printedNumber = regexp.MustCompile(`^-?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?`)

// parseBenchFigure takes the number that a cell begins with; what follows, as a range or an
// interval, is left to the stored page.
func parseBenchFigure(cell string) (benchFigure, error) {
	if cell == "never" {
		return benchFigure{cell, math.Inf(1)}, nil
	}
	text := printedNumber.FindString(cell)
	if text == "" {
		return benchFigure{}, fmt.Errorf("the cell %q does not begin with a number", cell)
	}
	value, err := strconv.ParseFloat(text, 64)
	return benchFigure{text, value}, err
}
