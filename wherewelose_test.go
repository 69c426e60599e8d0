package stint_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestWhereWeLoseIsComplete: docs/where-we-lose.md and the pages of protected servers and of budgets link to every section that has a miss or
// a rival that is better, have the worst figure of each missed goal of the benchmarks, and
// name each such rival.
func TestWhereWeLoseIsComplete(t *testing.T) {
	text, err := os.ReadFile(filepath.Join("docs", "where-we-lose.md"))
	if err != nil {
		t.Fatal(err)
	}
	page := string(text)
	for _, name := range []string{"where-we-lose-protecting.md", "where-we-lose-budgets.md"} {
		more, err := os.ReadFile(filepath.Join("docs", name))
		if err != nil {
			t.Fatal(err)
		}
		page += string(more)
	}
	needs := func(what, why string) {
		if !strings.Contains(page, what) {
			t.Errorf("docs/where-we-lose.md lacks %q: %s", what, why)
		}
	}
	book, runs := readBenchBook(t)
	losses := 0
	for _, p := range book.Pages {
		for _, report := range p.Runs {
			run := runs[report.Run]
			link := fmt.Sprintf("(benchmarks/%s.md#%s)", p.Page, anchor(run.title))
			for _, goal := range report.Goals {
				if worst, missed := goal.worst(t, run); missed {
					losses++
					needs(link, goal.What)
					needs(worst, "the worst figure of "+goal.What)
				}
			}
			for _, race := range report.Races {
				_, better, err := race.better(run)
				if err != nil {
					t.Fatal(err)
				}
				for _, rival := range better {
					losses++
					needs(link, race.What)
					name, _, _ := strings.Cut(strings.TrimSuffix(strings.Fields(rival)[0], ","), "-v")
					needs(name, "better in "+race.What)
				}
			}
		}
	}
	for name, text := range evidencePages(t) {
		section := strings.TrimPrefix(name, "docs/")
		link := section
		for line := range strings.SplitSeq(text, "\n") {
			if heading, ok := strings.CutPrefix(line, "## "); ok {
				link = section + "#" + anchor(heading)
			}
			if strings.HasPrefix(line, "|") && (strings.Contains(line, "| **missed** |") || strings.Contains(line, "| **open** |")) {
				losses++
				needs("("+link+")", benchCells(line)[0])
			}
		}
	}
	if losses < 30 {
		t.Errorf("found %d losses only: the search is wrong", losses)
	}
}

// worst returns the figure that is furthest on the wrong side of its bound.
func (g benchGoal) worst(t *testing.T, run storedRun) (text string, missed bool) {
	t.Helper()
	furthest := 0.0
	for i, ref := range g.Cells {
		f, err := run.benchCell(ref)
		if err != nil {
			t.Fatal(err)
		}
		if !g.misses(f.value, i) {
			continue
		}
		if off := g.off(f.value, i); !missed || off > furthest {
			text, furthest = f.text, off
		}
		missed = true
	}
	for _, value := range g.AlsoSeen {
		if off := g.off(value, 0); g.misses(value, 0) && (!missed || off > furthest) {
			text, furthest, missed = fmt.Sprint(value), off, true
		}
	}
	return text, missed
}
