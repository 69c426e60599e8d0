package sim

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/stint-io/stint/sim/internal/report"
)

// panel is what the chart of one system draws, in points over time.
type panel struct {
	title    string
	at       []time.Duration
	limit    []float64
	demand   []float64
	admitted []float64
	refused  []float64
	areas    [][]float64 // by area, others last
}

// newPanel makes the points of a run: means of samples where there are many.
func (h *chart) newPanel(row Row) panel {
	p := panel{title: row.System}
	r := row.First
	p.title = fmt.Sprintf("%s: use %s, over by %s tokens, sum of shares at most %s of the limit",
		row.System, report.Digits(r.Use), report.Digits(r.Over), report.Digits(r.SharePeak))
	areas := len(h.ids)
	if h.others > 0 {
		areas++
	}
	p.areas = make([][]float64, areas)
	own := make(map[int]int, len(h.ids)) // instance to area
	for k, id := range h.ids {
		own[id] = k
	}
	per := (len(r.Samples) + maxPoints - 1) / maxPoints
	for from := 0; from < len(r.Samples); from += per {
		group := r.Samples[from:min(from+per, len(r.Samples))]
		sum := make([]float64, areas)
		var mean Sample
		var rates float64 // samples with rates: the first has none before it
		for g, s := range group {
			mean.At += s.At / time.Duration(len(group))
			mean.Limit += s.Limit / float64(len(group))
			if from+g > 0 {
				mean.Demand += s.Demand
				mean.Admitted += s.Admitted
				mean.Refused += s.Refused
				rates++
			}
			for i, share := range s.Shares {
				k, ok := own[i]
				if !ok {
					k = areas - 1
				}
				// A share that is no number cannot be drawn.
				if x := float64(share); x > 0 && !math.IsInf(x, 0) {
					sum[k] += x / float64(len(group))
				}
			}
		}
		p.at = append(p.at, mean.At)
		p.limit = append(p.limit, mean.Limit)
		p.demand = append(p.demand, mean.Demand/max(rates, 1))
		p.admitted = append(p.admitted, mean.Admitted/max(rates, 1))
		p.refused = append(p.refused, mean.Refused/max(rates, 1))
		for k := range sum {
			p.areas[k] = append(p.areas[k], sum[k])
		}
	}
	return p
}

// mark is an event of the scenario.
type mark struct {
	at   time.Duration
	name string // for the picture
	text string // with its time
}

// marks returns the events of a scenario in order of time, the first of many.
func (s *Scenario) marks() []mark {
	var marks []mark
	add := func(at time.Duration, format string, args ...any) {
		name := fmt.Sprintf(format, args...)
		marks = append(marks, mark{at, name, fmt.Sprintf("%v: %s", at, name)})
	}
	for _, c := range s.Changes {
		add(c.At, "the limit becomes %v", c.Limit.Rate)
	}
	for _, p := range s.Partitions {
		who := "the coordinator"
		if len(p.Nodes) != 1 || p.Nodes[0] != Coordinator {
			who = fmt.Sprintf("%d nodes", len(p.Nodes))
		}
		add(p.At, "%s cut off%s", who, lasting(p.For))
	}
	for _, p := range s.Pauses {
		add(p.At, "%s paused%s", nodeName(p.Node), lasting(p.For))
	}
	for _, x := range slices.Concat(s.Stops, s.rolled()) {
		how := "crashes"
		if x.Orderly {
			how = "stops"
		}
		add(x.At, "%s %s, down%s", nodeName(x.Node), how, lasting(x.For))
	}
	marks = slices.DeleteFunc(marks, func(m mark) bool { return m.at > s.Duration })
	slices.SortStableFunc(marks, func(a, b mark) int { return int(min(max(a.at-b.at, -1), 1)) })
	return marks[:min(len(marks), maxMarks)]
}

func lasting(d time.Duration) string {
	if d == 0 {
		return " until the end"
	}
	return fmt.Sprintf(" for %v", d)
}
