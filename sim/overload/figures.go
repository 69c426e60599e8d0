package overload

import (
	"fmt"
	"math"
	"strings"

	"github.com/stint-io/stint/sim/internal/words"
)

// Figure is a number that a table shows of a result.
type Figure struct {
	Name  string
	Unit  string // "" = a ratio or a count
	About string // in plain words
	Of    func(*Result) float64
}

// general are the figures that every scenario has, in the order of tables.
var general = []Figure{
	{"goodput", "1/s", "requests answered well and within their SLO, per second", func(r *Result) float64 { return r.Goodput }},
	{"good", "", "the part of requests that were", func(r *Result) float64 { return r.All.Part(r.All.Good) }},
	{"useful", "", "CPU time spent for these over all CPU time of a server, of the server where that is most", func(r *Result) float64 { return r.Useful }},
	{"wasted", "", "the part of CPU time that was spent for other requests", func(r *Result) float64 { return r.Wasted }},
	{"p50", "ms", "response time of requests answered, median", func(r *Result) float64 { return 1e3 * r.All.Latency.Quantile(0.5) }},
	{"p99", "ms", "response time of requests answered, 99th percentile", func(r *Result) float64 { return 1e3 * r.All.Latency.Quantile(0.99) }},
	{"delay", "ms", "time that calls wait at a server, mean", func(r *Result) float64 { return 1e3 * r.Delay.Mean() }},
	{"delay p99", "ms", "the same, 99th percentile", func(r *Result) float64 { return 1e3 * r.Delay.Quantile(0.99) }},
	{"settled", "s", "time from the step until the mean delay of each window stays within the band", func(r *Result) float64 { return r.Settled }},
	{"steady", "s", "time from the step until it stays about what it is in the end", func(r *Result) float64 { return r.Steady }},
	{"refused", "", "the part of requests refused by a server before they waited", ended(Refused)},
	{"evicted", "", "the part evicted for more important ones", ended(Evicted)},
	{"expired", "", "the part that waited too long, or would have been late", ended(Expired)},
	{"dropped", "", "the part that was not sent", ended(Dropped)},
	{"timed out", "", "the part whose clients gave up", ended(TimedOut)},
	{"late", "", "the part answered after their SLO", func(r *Result) float64 { return r.All.Part(r.All.Ended[Answered] - r.All.Good) }},
	{"attempts", "", "attempts of a request, on average", func(r *Result) float64 { return float64(r.Attempts) / math.Max(float64(r.Requests), 1) }},
	{"inversions", "", "calls turned away for want of room while a less important one waited there", func(r *Result) float64 { return float64(r.Inversions) }},
}

func ended(o Outcome) func(*Result) float64 {
	return func(r *Result) float64 { return r.All.Part(r.All.Ended[o]) }
}

// Figures returns the figures of a scenario: those of all, then those of each class that it has
// and of each load.
func (s *Scenario) Figures() []Figure {
	figures := append([]Figure(nil), general...)
	if s.Random != nil {
		return figures // what there is, is not known before
	}
	of := func(name, what string, group func(*Result) *Group) {
		for _, g := range []Figure{
			{"good", "", "the part of requests " + what + " that were answered well and in time", func(r *Result) float64 { return group(r).Part(group(r).Good) }},
			{"refused", "", "the part refused before they waited", func(r *Result) float64 { return group(r).Part(group(r).Ended[Refused]) }},
			{"evicted", "", "the part evicted", func(r *Result) float64 { return group(r).Part(group(r).Ended[Evicted]) }},
			{"expired", "", "the part that waited too long", func(r *Result) float64 { return group(r).Part(group(r).Ended[Expired]) }},
			{"timed out", "", "the part whose clients gave up", func(r *Result) float64 { return group(r).Part(group(r).Ended[TimedOut]) }},
			{"p99", "ms", "their response time, 99th percentile", func(r *Result) float64 { return 1e3 * group(r).Latency.Quantile(0.99) }},
		} {
			g.Name += " " + name
			if !strings.HasPrefix(g.Name, "good") {
				g.About += ", " + name
			}
			figures = append(figures, g)
		}
	}
	for class := range maxClass + 1 {
		has := false
		for _, l := range s.Loads {
			has = has || l.Class == class
		}
		if has {
			of(fmt.Sprintf("class %d", class), fmt.Sprintf("of class %d", class), func(r *Result) *Group { return &r.Classes[class] })
		}
	}
	for i, l := range s.Loads {
		if l.Name != "" {
			of(l.Name, "of "+l.Name, func(r *Result) *Group { return &r.Loads[i] })
		}
	}
	return figures
}

// DefaultFigures returns the names of the figures that a table shows unless others are named.
func DefaultFigures() []string {
	return []string{"goodput", "useful", "wasted", "p50", "p99", "delay", "settled", "refused", "evicted", "expired", "dropped", "timed out", "inversions"}
}

// FigureNamed returns the name of a figure of the scenario as tables have it, for one that is
// written without regard to case, with _ or - for spaces.
func (s *Scenario) FigureNamed(name string) (string, error) {
	plain := strings.NewReplacer("_", " ", "-", " ")
	written := strings.ToLower(plain.Replace(strings.TrimSpace(name)))
	var known []string
	for _, f := range s.Figures() {
		if strings.ToLower(plain.Replace(f.Name)) == written {
			return f.Name, nil
		}
		known = append(known, f.Name)
	}
	return "", words.Unknown("figure", name, "some", known)
}
