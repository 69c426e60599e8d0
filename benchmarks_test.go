package stint_test

import (
	"bytes"
	"flag"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
)

var updatePages = flag.Bool("update", false, "write docs/benchmarks.md and docs/benchmarks/*.md anew from the stored outputs")

// benchBook is docs/benchmarks/goals.yaml: what the pages of benchmarks say beside the figures.
type benchBook struct {
	Intro string      `yaml:"intro"`
	Pages []benchPage `yaml:"pages"`
}

// benchPage is docs/benchmarks/PAGE.md.
type benchPage struct {
	Page  string        `yaml:"page"`
	Title string        `yaml:"title"`
	Runs  []benchReport `yaml:"runs"`
}

// benchReport says what the stored output of one run must show.
type benchReport struct {
	Run   string      `yaml:"run"`   // docs/benchmarks/output/RUN.md
	About string      `yaml:"about"` // one sentence: what is compared
	Note  string      `yaml:"note"`  // what a reader has to know, after the table
	Goals []benchGoal `yaml:"goals"`
	Races []benchRace `yaml:"races"`
}

// benchGoal is a promise with a bound for each of its cells, or with none if it only states.
type benchGoal struct {
	What    string    `yaml:"what"`
	AtMost  *float64  `yaml:"at_most"`
	AtLeast *float64  `yaml:"at_least"`
	Bounds  []float64 `yaml:"bounds"` // with each: one for each cell, of the kind that kind says
	Kind    string    `yaml:"kind"`   // "at most" or "at least", for bounds
	Unit    string    `yaml:"unit"`
	Cells   []string  `yaml:"cells"` // table | row | column
	// AlsoSeen are worse figures of other runs of the same code, which count as well.
	AlsoSeen []float64 `yaml:"also_seen"`
	// Cause is one sentence that a missed goal must have, and no other may.
	Cause string `yaml:"cause"`
}

// benchRace compares one column of all rows of a table: a rival that is better is named.
type benchRace struct {
	What   string   `yaml:"what"`
	Table  string   `yaml:"table"`
	Column string   `yaml:"column"`
	Better string   `yaml:"better"` // "lower" or "higher"
	Ours   string   `yaml:"ours"`   // stint's row
	Skip   []string `yaml:"skip"`   // rows that are no rivals: floors, other modes of stint
	Price  string   `yaml:"price"`  // a column that is shown beside a rival's figure
	Unit   string   `yaml:"unit"`   // of the price
	Trim   string   `yaml:"trim"`   // what the names of all rivals begin with
}

// TestBenchmarksPages: the pages are what the stored outputs and the goals make of them.
// -update writes them, as ./scripts/benchmarks does.
func TestBenchmarksPages(t *testing.T) {
	book, runs := readBenchBook(t)
	pages, err := book.write(runs)
	if err != nil {
		t.Fatal(err)
	}
	for file, text := range pages {
		if *updatePages {
			if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		switch written, err := os.ReadFile(file); {
		case err != nil:
			t.Error(err)
		case string(written) != text:
			t.Errorf("%s is not what docs/benchmarks/ makes of it; ./scripts/benchmarks writes it anew", file)
		}
	}
	files, err := filepath.Glob(filepath.Join("docs", "benchmarks", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		if _, ok := pages[file]; !ok && filepath.Base(file) != "README.md" {
			t.Errorf("%s is a page of no run: remove it, or name it in goals.yaml", file)
		}
	}
}

// TestStoredRunsAreReported: each stored output is part of a page, and the goals that a
// benchmark prints itself are those of that page, and all that are missed.
func TestStoredRunsAreReported(t *testing.T) {
	book, runs := readBenchBook(t)
	files, err := filepath.Glob(filepath.Join("docs", "benchmarks", "output", "*.md"))
	if err != nil || len(files) < 10 {
		t.Fatalf("found %d stored outputs, %v: the search is wrong", len(files), err)
	}
	for _, file := range files {
		if _, ok := runs[strings.TrimSuffix(filepath.Base(file), ".md")]; !ok {
			t.Errorf("%s is not in docs/benchmarks/goals.yaml", file)
		}
	}
	checked := 0
	for _, report := range book.reports() {
		stated, err := runs[report.Run].table("Goals")
		if err != nil {
			continue
		}
		for _, row := range stated.rows {
			checked++
			for _, fault := range report.disagreements(row) {
				t.Errorf("docs/benchmarks/output/%s.md, %q: %s", report.Run, row[0], fault)
			}
		}
	}
	if checked < 30 {
		t.Errorf("found %d goals only that benchmarks print: the search is wrong", checked)
	}
}

// disagreements compares goals.yaml with a row of the goals that a benchmark prints itself: its
// name, the goal, the figure and whether it is met. A met goal may be left out of goals.yaml,
// where one goal can have the cells of many.
func (r benchReport) disagreements(row []string) []string {
	ref := "Goals | " + row[0] + " | seen"
	at := slices.IndexFunc(r.Goals, func(g benchGoal) bool { return slices.Contains(g.Cells, ref) })
	if at < 0 {
		if strings.Contains(row[3], "missed") {
			return []string{"it is missed, and goals.yaml leaves it out"}
		}
		return nil
	}
	g := r.Goals[at]
	i := slices.Index(g.Cells, ref)
	if promise := g.kind() + " " + g.bound(i); !strings.HasPrefix(row[1]+" ", promise+" ") {
		return []string{fmt.Sprintf("the benchmark wants %s, goals.yaml %s", row[1], promise)}
	}
	return nil
}

func readBenchBook(t *testing.T) (benchBook, map[string]storedRun) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("docs", "benchmarks", "goals.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	var book benchBook
	if err := yaml.NewDecoder(bytes.NewReader(text), yaml.Strict()).Decode(&book); err != nil {
		t.Fatal(err)
	}
	runs := map[string]storedRun{}
	for _, report := range book.reports() {
		runs[report.Run] = readStoredRun(t, report.Run)
	}
	return book, runs
}

func (b benchBook) reports() []benchReport {
	var all []benchReport
	for _, page := range b.Pages {
		all = append(all, page.Runs...)
	}
	return all
}

const writtenByCommand = "<!-- Written by ./scripts/benchmarks from docs/benchmarks/: do not edit. -->"

// write makes docs/benchmarks.md and the pages that it links to.
func (b benchBook) write(runs map[string]storedRun) (map[string]string, error) {
	pages := map[string]string{}
	var rows, missed, lost strings.Builder
	goals, misses := 0, 0
	for _, page := range b.Pages {
		var body strings.Builder
		fmt.Fprintf(&body, "# %s\n\n%s\n", page.Title, writtenByCommand)
		for _, report := range page.Runs {
			run := runs[report.Run]
			outcome, err := report.outcome(run)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", report.Run, err)
			}
			body.WriteString(outcome.section(report, run))
			goals, misses = goals+outcome.goals, misses+len(outcome.missed)
			link := fmt.Sprintf("[%s](benchmarks/%s.md#%s)", run.title, page.Page, anchor(run.title))
			met := fmt.Sprintf("%d of %d", outcome.goals-len(outcome.missed), outcome.goals)
			if outcome.goals == 0 {
				met = "–"
			}
			fmt.Fprintf(&rows, "| %s | `%s` | %s | %s |\n", link, run.name, run.facts["date"], met)
			writeList(&missed, link, outcome.missed)
			writeList(&lost, strings.Replace(link, "(benchmarks/", "(", 1), outcome.lost)
		}
		pages[filepath.Join("docs", "benchmarks", page.Page+".md")] = body.String()
	}
	pages[filepath.Join("docs", "benchmarks", "rivals.md")] = fmt.Sprintf("# Better than stint\n\n%s\n\nRivals with a better figure; in brackets what they pay for it.\n\n%s", writtenByCommand, &lost)
	pages[filepath.Join("docs", "benchmarks.md")] = fmt.Sprintf("# Benchmarks\n\n%s\n\n%s\n\n**%d of %d goals are met, %d are missed.** Rivals that are better are in [a list](benchmarks/rivals.md).\n\n"+
		"| | NAME | date | goals met |\n|---|---|---|---|\n%s\n## Missed\n\nSeen, and the goal in brackets; causes are on the pages.\n\n%s",
		writtenByCommand, strings.TrimSpace(b.Intro), goals-misses, goals, misses, &rows, &missed)
	return pages, nil
}

// writeList writes lines below a title, if there are any.
func writeList(to *strings.Builder, title string, lines []string) {
	if len(lines) > 0 {
		fmt.Fprintf(to, "* %s\n  * %s\n", title, strings.Join(lines, "\n  * "))
	}
}

// benchOutcome is what one run has shown.
type benchOutcome struct {
	rows   []string // of the table of goals
	goals  int      // rows that have a bound
	missed []string // the goals that are missed, with what was seen
	causes []string // and why
	lost   []string // races in which a rival is better
}

func (r benchReport) outcome(run storedRun) (benchOutcome, error) {
	var o benchOutcome
	for _, goal := range r.Goals {
		seen, missed, err := goal.seen(run)
		if err != nil {
			return o, fmt.Errorf("goal %q: %w", goal.What, err)
		}
		word := "met"
		switch {
		case missed && goal.Cause == "":
			return o, fmt.Errorf("goal %q is missed (%s): say the cause", goal.What, seen)
		case !missed && goal.Cause != "":
			return o, fmt.Errorf("goal %q is met (%s), and has a cause why not", goal.What, seen)
		case missed:
			word = "**missed**"
			o.missed = append(o.missed, fmt.Sprintf("%s: %s (%s)", goal.What, seen, goal.promise()))
			o.causes = append(o.causes, fmt.Sprintf("Missed, %s: %s", goal.What, strings.TrimSpace(goal.Cause)))
		case goal.bound(0) == "":
			word = "stated"
		}
		if word != "stated" {
			o.goals++
		}
		o.rows = append(o.rows, fmt.Sprintf("| %s | %s | %s | %s |", goal.What, goal.promise(), seen, word))
	}
	for _, race := range r.Races {
		ours, better, err := race.better(run)
		if err != nil {
			return o, fmt.Errorf("race %q: %w", race.What, err)
		}
		if len(better) > 0 {
			o.lost = append(o.lost, fmt.Sprintf("%s: %s; stint %s", race.What, strings.Join(better, ", "), ours))
		}
	}
	return o, nil
}

// section writes the part of a page that is about one run.
func (o benchOutcome) section(report benchReport, run storedRun) string {
	var text strings.Builder
	fmt.Fprintf(&text, "\n## %s\n\n%s\n\n%s, %s, %s, commit %s; other work: %s; [whole output](output/%s.md).\n", run.title, strings.TrimSpace(report.About),
		run.facts["command"], run.facts["machine"], run.facts["date"], run.facts["commit"], run.facts["other work"], run.name)
	if len(o.rows) > 0 {
		fmt.Fprintf(&text, "\n| what | goal | seen | |\n|---|---|---|---|\n%s\n", strings.Join(o.rows, "\n"))
	}
	for i, line := range slices.Concat(o.causes, o.lost) {
		if i == 0 {
			text.WriteString("\n")
		}
		if i >= len(o.causes) {
			line = "Better than stint, " + line
		}
		fmt.Fprintf(&text, "* %s\n", line)
	}
	if report.Note != "" {
		fmt.Fprintf(&text, "\n%s\n", strings.TrimSpace(report.Note))
	}
	return text.String()
}

// seen returns the figures of a goal as text, those that miss it in bold.
func (g benchGoal) seen(run storedRun) (text string, missed bool, _ error) {
	if len(g.Cells) == 0 || len(g.Bounds) > 0 && len(g.Bounds) != len(g.Cells) {
		return "", false, fmt.Errorf("%d cells and %d bounds", len(g.Cells), len(g.Bounds))
	}
	var figures []string
	show := func(f benchFigure, i int) {
		if g.misses(f.value, i) {
			missed, f.text = true, "**"+f.text+"**"
		}
		figures = append(figures, f.text)
	}
	for i, ref := range g.Cells {
		f, err := run.benchCell(ref)
		if err != nil {
			return "", false, err
		}
		show(f, i)
	}
	for _, value := range g.AlsoSeen {
		show(benchFigure{strconv.FormatFloat(value, 'g', -1, 64) + " in another run", value}, 0)
	}
	return listFigures(figures) + g.Unit, missed, nil
}

// off returns how far a value is on the wrong side of the bound of cell i; what is on the
// right side is below zero, and without a bound so is everything.
func (g benchGoal) off(value float64, i int) float64 {
	switch {
	case g.AtMost != nil:
		return value - *g.AtMost
	case g.AtLeast != nil:
		return *g.AtLeast - value
	case len(g.Bounds) > 0 && g.Kind == "at most":
		return value - g.Bounds[i]
	case len(g.Bounds) > 0:
		return g.Bounds[i] - value
	}
	return -1
}

func (g benchGoal) misses(value float64, i int) bool { return !(g.off(value, i) <= 0) }

// bound returns the bound of a cell as text; empty = the goal only states.
func (g benchGoal) bound(i int) string {
	number := func(x float64) string { return strconv.FormatFloat(x, 'f', -1, 64) }
	switch {
	case g.AtMost != nil:
		return number(*g.AtMost)
	case g.AtLeast != nil:
		return number(*g.AtLeast)
	case len(g.Bounds) > 0:
		return number(g.Bounds[i])
	}
	return ""
}

func (g benchGoal) promise() string {
	var bounds []string
	for i := range g.Cells {
		bounds = append(bounds, g.bound(i))
	}
	if bounds[0] == "" {
		return "–"
	}
	return g.kind() + " " + listFigures(bounds) + g.Unit
}

func (g benchGoal) kind() string {
	switch {
	case g.AtMost != nil:
		return "at most"
	case g.AtLeast != nil:
		return "at least"
	}
	return g.Kind
}

// listFigures writes several figures, or one of them if all are the same.
func listFigures(figures []string) string {
	if len(slices.Compact(slices.Clone(figures))) == 1 {
		return figures[0]
	}
	return strings.Join(figures, ", ")
}

// better returns stint's figure, and the rivals whose figures are better.
func (c benchRace) better(run storedRun) (ours string, better []string, _ error) {
	table, err := run.table(c.Table)
	if err != nil {
		return "", nil, err
	}
	column, err := table.column(c.Column)
	if err != nil {
		return "", nil, err
	}
	sign := map[string]float64{"lower": 1, "higher": -1}[c.Better]
	own, err := run.benchCell(c.Table + " | " + c.Ours + " | " + c.Column)
	if err != nil || sign == 0 {
		return "", nil, fmt.Errorf("better is %q, want lower or higher; %w", c.Better, err)
	}
	for _, row := range table.rows {
		if row[0] == c.Ours || !strings.HasPrefix(row[0], c.Trim) || slices.Contains(c.Skip, row[0]) || row[column] == "–" {
			continue
		}
		f, err := parseBenchFigure(row[column])
		if err != nil {
			return "", nil, err
		}
		if math.IsInf(f.value, 0) || sign*f.value >= sign*own.value {
			continue
		}
		text := strings.TrimPrefix(row[0], c.Trim) + " " + f.text
		if c.Price != "" {
			price, err := run.benchCell(c.Table + " | " + row[0] + " | " + c.Price)
			if err != nil {
				return "", nil, err
			}
			if price.value != 0 {
				text += " (" + price.text + c.Unit + ")"
			}
		}
		better = append(better, text)
	}
	return own.text, better, nil
}
