// Package leasetest is a kit for tests of agents and ledgers: at which amounts their decisions change.
package leasetest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// Question is what is decided as one amount varies from Least to Most.
type Question struct {
	Name        string
	Why         string // the reason for the amounts in Want
	Least, Most fixed.Amount
	Write       func(fixed.Amount) string // an amount of the question, such as Nanoseconds; nil = Exactly
	// Answer returns a kind, by which changes are found, and what it is exactly.
	Answer func(fixed.Amount) (kind, exact string)
	// Want has the amounts at which the answer changes, each with the answer from there on.
	Want []string
}

// Now is when questions are asked.
const Now = limit.Time(time.Hour)

// Thresholds compares the amounts at which answers change, to a millionth, with those wanted.
func Thresholds(t *testing.T, questions []Question) {
	t.Helper()
	for _, q := range questions {
		write := q.Write
		if write == nil {
			write = Exactly
		}
		var got []string
		for _, e := range changes(q.Least, q.Most, q.Answer) {
			got = append(got, write(e.from)+" "+e.says)
		}
		if !slices.Equal(got, q.Want) {
			t.Errorf("%s:\n\t%s\nwant\n\t%s\nsince %s", q.Name, strings.Join(got, "\n\t"), strings.Join(q.Want, "\n\t"), q.Why)
		}
	}
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

// Exactly is an amount with all of its decimals.
func Exactly(a fixed.Amount) string {
	s := fmt.Sprintf("%d.%06d", a/fixed.Token, a%fixed.Token)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}

// Nanoseconds writes a question's amount as a time.
func Nanoseconds(a fixed.Amount) string { return time.Duration(a).String() }

// Count writes a question's amount as a number.
func Count(a fixed.Amount) string { return fmt.Sprint(int64(a)) }
