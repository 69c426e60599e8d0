package main

import (
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// A figure in the documents is a link to its row, as [0.97](evidence.md#name): the numbers of its text are
// those of the row's figure, rounded as they are written. "10.1 million" is 10,100,000, "tens of nanoseconds"
// are 10 to 100, and "some 100 bytes" is 100 but for the noise of the row.
var reference = regexp.MustCompile(`\[([^\[\]]+)\]\([^()\s]*evidence\.md#([a-z0-9-]+)\)`)

// measured finds what only a measurement can say: times below a millisecond, percentiles, rates of machines,
// ratios, bytes for one of many, parts of machines, and parts with two decimals.
var measured = regexp.MustCompile(`\d[\d.,]*\s?(?:ns|µs)\b` +
	`|\d[\d.,]* (?:micro|nano)seconds?` +
	`|\b(?:tens|hundreds|some hundred) (?:of )?(?:micro|nano)seconds` +
	`|\d[\d,.]*\s(?:decisions|lines|calls|publishes)(?:/s|\s(?:a|per)\s(?:second|core))` +
	`|\bp(?:50|90|99|999|99\.9)\b[^|]{0,20}\d` +
	`|\d[\d.]*\s(?:times|×)\s(?:as\s|faster|slower|more|less|of|the\s)` +
	`|\d[\d,]*\sbytes\s(?:for\s(?:a|each)|per|each)` +
	`|\b0\.\d{2,}\b` +
	`|[\d.]+ % of (?:its capacity|(?:the )?throughput|a processor|one processor)` +
	`|\bmedian\b(?: of| is|,)?\s\d[\d.]*\s(?:ns|µs|ms|s)\b` +
	`|\d[\d.,]*\s(?:million|thousand)\s(?:states|lines|keys|customers|schedules)`)

var (
	codeSpan = regexp.MustCompile("`[^`]*`")
	anyLink  = regexp.MustCompile(`\]\([^()\s]*\)`)
)

// checkFigures returns the references whose numbers are not those of their row, and the measured figures
// that are no references, in README.md and docs. Decisions are of their day.
func (l *ledger) checkFigures() (faults []string, _ error) {
	used := map[string]bool{}
	references := 0
	check := func(name string) error {
		text, err := os.ReadFile(filepath.Join(l.root, name))
		if err != nil {
			return err
		}
		fenced := false
		for i, line := range strings.Split(string(text), "\n") {
			bad := func(format string, args ...any) {
				faults = append(faults, fmt.Sprintf("%s:%d: ", name, i+1)+fmt.Sprintf(format, args...))
			}
			if strings.HasPrefix(strings.TrimSpace(line), "```") {
				fenced = !fenced
				continue
			}
			if fenced {
				continue
			}
			for _, m := range reference.FindAllStringSubmatch(line, -1) {
				references++
				if err := l.lookUp(m[1], m[2]); err != nil {
					bad("%v", err)
				}
			}
			line = reference.ReplaceAllString(line, "")
			line = anyLink.ReplaceAllString(codeSpan.ReplaceAllString(line, ""), "]")
			for _, figure := range measured.FindAllString(line, -1) {
				if part := l.statedIn(line); part != "" {
					used[part] = true
					continue
				}
				bad("%q is measured, and is not looked up: write [%s](evidence.md#NAME), and the row that says so, or leave it out", figure, figure)
			}
		}
		return nil
	}
	err := filepath.WalkDir(filepath.Join(l.root, "docs"), func(name string, entry fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err = filepath.Rel(l.root, name)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if entry.IsDir() && name == "docs/decisions" {
			return fs.SkipDir
		}
		if filepath.Ext(name) != ".md" || name == pageFile {
			return nil
		}
		return check(name)
	})
	if err == nil {
		err = check("README.md")
	}
	for part := range l.stated {
		if !used[part] {
			faults = append(faults, fmt.Sprintf("evidence.yaml: no page says %q any more: remove it from stated", part))
		}
	}
	if references < 10 {
		faults = append(faults, fmt.Sprintf("found %d references only: the search is wrong", references))
	}
	return faults, err
}

// statedIn returns a part of the line of which the ledger says that its figures are no measurements.
func (l *ledger) statedIn(line string) string {
	for part := range l.stated {
		if strings.Contains(line, part) {
			return part
		}
	}
	return ""
}

var written = regexp.MustCompile(`(\d[\d,]*(?:\.\d+)?)( million| thousand)?`)

// lookUp returns an error if a number of text is not among those of the figure of the row, rounded as in text.
func (l *ledger) lookUp(text, name string) error {
	i := slices.IndexFunc(l.rows, func(r *row) bool { return r.Name == name })
	if i < 0 {
		for _, r := range l.rows {
			if anchor(r.Area) == name {
				return nil
			}
		}
		return fmt.Errorf("evidence.yaml has no row that is called %s", name)
	}
	figures := numbers(l.rows[i].Figure)
	for word, least := range map[string]float64{"tens of ": 10, "hundreds of ": 100} {
		if strings.Contains(text, word) && slices.ContainsFunc(figures, func(f float64) bool { return f < least || f >= 10*least }) {
			return fmt.Errorf("%q is not the figure of %s, %q", text, name, l.rows[i].Figure)
		}
	}
	for _, m := range written.FindAllStringSubmatch(text, -1) {
		digits := strings.ReplaceAll(m[1], ",", "")
		value, err := strconv.ParseFloat(digits, 64)
		if err != nil {
			return err
		}
		scale := map[string]float64{"": 1, " million": 1e6, " thousand": 1e3}[m[2]]
		_, decimals, _ := strings.Cut(digits, ".")
		off := scale * math.Pow(10, -float64(len(decimals))) / 2
		if strings.HasPrefix(text, "some ") {
			off = max(off, l.rows[i].Noise*scale*value)
		}
		if !slices.ContainsFunc(figures, func(f float64) bool { return math.Abs(f-scale*value) <= off*1.000001 }) {
			return fmt.Errorf("%s%s is not in the figure of %s, %q", m[1], m[2], name, l.rows[i].Figure)
		}
	}
	return nil
}
