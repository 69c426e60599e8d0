// Package leasetest is a kit for tests of agents and coordinators: records of what they
// decide, which are compared with files below testdata.
package leasetest

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/limit"
)

var update = flag.Bool("update", false, "write the records of testdata anew, to be reviewed as a diff")

// Compare fails the test at the first line in which got differs from the file, with the
// lines before it. With -update it writes the file instead.
func Compare(t *testing.T, file, got string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	g, w := strings.Split(got, "\n"), strings.Split(string(want), "\n")
	for i := range max(len(g), len(w)) {
		if i < len(g) && i < len(w) && g[i] == w[i] {
			continue
		}
		from := max(0, i-3)
		t.Fatalf("line %d:\n%s\n\nwant\n\n%s", i+1, strings.Join(g[from:min(i+3, len(g))], "\n"), strings.Join(w[from:min(i+3, len(w))], "\n"))
	}
}

// Question is what is decided as one amount varies from Least to Most. The answer is a
// kind, by which changes are found, and what it is exactly.
type Question struct {
	Name        string
	Least, Most fixed.Amount
	Answer      func(fixed.Amount) (kind, exact string)
}

// Now is when questions are asked.
const Now = limit.Time(time.Hour)

// Thresholds compares the amounts at which answers change, to a millionth, with the file.
func Thresholds(t *testing.T, file, header string, questions []Question) {
	t.Helper()
	var b strings.Builder
	b.WriteString(header)
	for _, q := range questions {
		fmt.Fprintf(&b, "\n%s\n", q.Name)
		for _, e := range changes(q.Least, q.Most, q.Answer) {
			from := Exactly(e.from)
			if q.Most < 1000 || strings.Contains(q.Name, "nanoseconds") {
				from = fmt.Sprint(int64(e.from)) // not an amount
			}
			fmt.Fprintf(&b, "%14s  %s\n", from, e.says)
		}
	}
	Compare(t, file, b.String())
}

type edge struct {
	from fixed.Amount
	says string
}

// changes finds where the kind of an answer changes, between the points of a grid by bisection.
func changes(least, most fixed.Amount, answer func(fixed.Amount) (kind, exact string)) (edges []edge) {
	const grid = 96
	kind, says := answer(least)
	edges = append(edges, edge{least, says})
	at := least
	for i := fixed.Amount(1); i <= grid && len(edges) < 100; i++ {
		end := least + (most-least)*i/grid
		for k, _ := answer(end); k != kind && len(edges) < 100; k, _ = answer(end) {
			low, high := at, end
			for low+1 < high {
				middle := low + (high-low)/2
				if m, _ := answer(middle); m == kind {
					low = middle
				} else {
					high = middle
				}
			}
			kind, says = answer(high)
			edges, at = append(edges, edge{high, says}), high
		}
		at = end
	}
	return edges
}

// Exactly is an amount with all of its six decimals.
func Exactly(a fixed.Amount) string { return fmt.Sprintf("%d.%06d", a/fixed.Token, a%fixed.Token) }

// Brief is an amount to five digits: the last ones of a measured rate are the compiler's.
func Brief(a fixed.Amount) string {
	switch a {
	case fixed.MaxAmount:
		return "all"
	case lease.Unlimited:
		return "plenty"
	}
	return fmt.Sprintf("%.5g", a.Float())
}
