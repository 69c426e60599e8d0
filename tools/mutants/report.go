package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"
)

// entry is one mutant and what became of it.
type entry struct {
	Package string  `json:"package"`
	File    string  `json:"file"`
	Line    int     `json:"line"`
	What    string  `json:"what"`
	Code    string  `json:"code"`
	Verdict verdict `json:"verdict"`
	By      string  `json:"by,omitempty"`     // the test that failed
	Reason  string  `json:"reason,omitempty"` // why it is equivalent
}

func (e entry) String() string {
	s := fmt.Sprintf("%-10s %s:%d: %s", e.Verdict, e.File, e.Line, e.What)
	if e.By != "" {
		s += " (" + e.By + ")"
	}
	if e.Verdict == survived || e.Verdict == uncovered {
		s += "\n           | " + e.Code
	}
	return s
}

// report is about one package.
type report struct {
	pkg     string
	places  int
	own     int // mutants with a build of their own
	tests   int
	unused  []string
	entries []entry
	took    time.Duration
}

func (r report) count(verdicts ...verdict) int {
	n := 0
	for _, e := range r.entries {
		for _, v := range verdicts {
			if e.Verdict == v {
				n++
			}
		}
	}
	return n
}

// rate is the part of the mutants killed, of those that are not equivalent.
func rate(killed, drawn int) string {
	if drawn == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f %%", 100*float64(killed)/float64(drawn))
}

func (r report) drawn() int { return len(r.entries) - r.count(equivalent) }

func (r report) String() string {
	dead := r.count(killed, timedOut)
	return fmt.Sprintf("%s: %d of %d killed, %s, of %d places, in %s\n", r.pkg, dead, r.drawn(), rate(dead, r.drawn()), r.places, r.took.Round(time.Second))
}

func printTable(out io.Writer, reports []report, seed uint64) {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "package\tplaces\tmutants\tkilled\ttimed out\tnot covered\tsurvived\tequivalent\ttests left out\trate\town builds\ttests\ttime\t")
	killedAll, drawnAll := 0, 0
	for _, r := range reports {
		dead := r.count(killed, timedOut)
		killedAll, drawnAll = killedAll+dead, drawnAll+r.drawn()
		fmt.Fprintf(w, "%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%d\t%d\t%s\t\n", r.pkg, r.places, len(r.entries), r.count(killed), r.count(timedOut),
			r.count(uncovered), r.count(survived), r.count(equivalent), len(r.unused), rate(dead, r.drawn()), r.own, r.tests, r.took.Round(time.Second))
	}
	_ = w.Flush() // as with Fprintf below
	fmt.Fprintf(out, "seed %d: %d of %d killed, %s\n", seed, killedAll, drawnAll, rate(killedAll, drawnAll))
}

// writeList writes all mutants, one line of JSON each.
func writeList(name string, reports []report) error {
	var text bytes.Buffer
	lines := json.NewEncoder(&text)
	lines.SetEscapeHTML(false)
	for _, r := range reports {
		for _, e := range r.entries {
			if err := lines.Encode(e); err != nil {
				return err
			}
		}
	}
	return os.WriteFile(name, text.Bytes(), 0o644)
}

// readSurvivors returns the keys of the mutants that no test killed, from what writeList wrote.
func readSurvivors(name string) (map[string]bool, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	keys := map[string]bool{}
	for lines := json.NewDecoder(f); ; {
		var e entry
		if err := lines.Decode(&e); errors.Is(err, io.EOF) {
			return keys, nil
		} else if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		if e.Verdict == survived || e.Verdict == uncovered {
			keys[key(e.File, e.What, e.Code)] = true
		}
	}
}
