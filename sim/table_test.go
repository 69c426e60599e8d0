package sim

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stint-io/stint/sim/internal/report"
)

// sampleComparison has figures that are set by hand: the first is the mean of runs, the
// second was never reached.
func sampleComparison(runs int) *Comparison {
	c := &Comparison{Scenario: Scenario{
		Name: "a|b <c>", Limit: limitOf(1000, 100), Instances: 2, Duration: time.Minute, Seed: 5,
	}, Runs: runs}
	for _, name := range []string{"stint", "other"} {
		row := Row{System: name, First: &Result{Instances: make([]InstanceResult, 2)}}
		for range Figures() {
			row.Figures = append(row.Figures, Estimate{Mean: 0.98765, Half: 0.0123, Min: 0.9, Max: 1, Runs: runs})
		}
		t95 := slices.IndexFunc(Figures(), func(f Figure) bool { return f.Name == "t95" })
		row.Figures[t95] = Estimate{Mean: math.Inf(1), Max: math.Inf(1), Min: 2, Runs: runs}
		c.Rows = append(c.Rows, row)
	}
	return c
}

func table(t *testing.T, c *Comparison, f Format, figures ...string) string {
	t.Helper()
	var b bytes.Buffer
	if err := c.WriteTable(&b, f, figures); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

func TestTableText(t *testing.T) {
	const want = `a|b <c>: 2 instances, limit 1000/s, burst 100, 1m0s, 3 runs with seeds 5 to 7, means and 95 % intervals

system             use  t95 (s)
stint   0.9877 ± 0.012    never
other   0.9877 ± 0.012    never

use  what was admitted, over what the limit allows or what was asked for, whichever is less
t95  time from the step until every second uses at least 95 %
`
	if got := table(t, sampleComparison(3), Text, "USE", "t95"); got != want {
		t.Errorf("got\n%s\nwant\n%s", got, want)
	}
	if got := table(t, sampleComparison(1), Text); strings.Contains(got, "±") || !strings.Contains(got, "seed 5\n") {
		t.Errorf("a single run has no interval:\n%s", got)
	}
}

func TestTableMarkdown(t *testing.T) {
	got := table(t, sampleComparison(3), Markdown, "use", "t95")
	for _, want := range []string{`a\|b &lt;c>: 2`, "| system | use | t95 (s) |\n|---|--:|--:|\n| stint | 0.9877 ± 0.012 | never |", "* use: what was"} {
		if !strings.Contains(got, want) {
			t.Errorf("no %q in\n%s", want, got)
		}
	}
}

func TestTableCSV(t *testing.T) {
	lines, err := csv.NewReader(strings.NewReader(table(t, sampleComparison(3), CSV))).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) != 3 || len(lines[0]) != 1+2*len(Figures()) || lines[1][1] != "0.98765" || lines[1][2] != "0.0123" || lines[1][slices.Index(lines[0], "t95 (s)")] != "inf" {
		t.Errorf("got %q", lines)
	}
}

func TestTableJSON(t *testing.T) {
	var got struct {
		report.JSON
		Limit string
		Runs  int
	}
	if err := json.Unmarshal([]byte(table(t, sampleComparison(3), JSON)), &got); err != nil {
		t.Fatal(err)
	}
	if len(got.Figures) != len(Figures()) || len(got.Systems) != 2 || got.Runs != 3 || got.Limit != "1000/second" && got.Limit != "1000/s" {
		t.Errorf("got %+v", got)
	}
	if e := got.Systems[0].Figures["use"]; *e.Mean != 0.98765 || *e.Max != 1 {
		t.Errorf("use: %+v", e)
	}
	if e := got.Systems[0].Figures["t95"]; e.Mean != nil || e.Max != nil || *e.Min != 2 {
		t.Errorf("t95: %+v", e)
	}
}

// Each figure has a legend, and each legend a figure; the default ones exist.
func TestLegend(t *testing.T) {
	for _, f := range Figures() {
		if legend[f.Name] == "" {
			t.Errorf("the figure %q has no legend", f.Name)
		}
	}
	if len(legend) != len(Figures()) {
		t.Errorf("%d legends for %d figures", len(legend), len(Figures()))
	}
	for _, name := range DefaultFigures() {
		if full, err := FigureNamed(name); err != nil || full != name {
			t.Errorf("%q: %q, %v", name, full, err)
		}
	}
	if _, err := FigureNamed("us"); err == nil || !strings.Contains(err.Error(), "did you mean use?") {
		t.Errorf("got %v", err)
	}
	if _, err := ParseFormat("jsno"); err == nil || !strings.Contains(err.Error(), "did you mean json?") {
		t.Errorf("got %v", err)
	}
	if err := sampleComparison(1).WriteTable(&bytes.Buffer{}, Text, []string{"none"}); err == nil {
		t.Error("a figure that there is not: no error")
	}
}

func TestDigits(t *testing.T) {
	for x, want := range map[float64]string{
		0: "0", 1: "1", 0.98765: "0.9877", 12.3456: "12.35", 1234567: "1234567", 0.00012345: "0.000123", -2.5: "-2.5", 0.99999: "1",
	} {
		if got := report.Digits(x); got != want || !utf8.ValidString(got) {
			t.Errorf("%v: %q, want %q", x, got, want)
		}
	}
}
