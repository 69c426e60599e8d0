package sim

import (
	"fmt"
	"time"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/sim/internal/words"
)

// load reads one load. where is what the file calls it.
func (p *scenarioParser) load(where string, n *document.Node) {
	if !p.Known(n, "a load", "demand", "from", "until", "on", "split", "move", "shuffle",
		"arrivals", "aligned", "cost", "wait", "mishaps") {
		return
	}
	path := fmt.Sprintf("loads[%d]", len(p.scenario.Loads))
	p.spots[path] = fileSpot{n, where}
	l := Load{
		Aligned: p.Truth(n.Get("aligned")),
		Cost:    p.Whole(n.Get("cost"), 1, maxRequests),
		Wait:    p.Span(n.Get("wait")),
		Demand:  p.demand(n),
	}
	p.spread(n, &l)
	if l.Instances == nil && !p.name(n, p.scenario.Instances) {
		return
	}
	p.arrivals(n.Get("arrivals"), &l)
	if m := n.Get("mishaps"); m != nil {
		p.spots[path+".mishaps"] = fileSpot{m, where + ".mishaps"}
		l.Mishaps = p.mishaps(m)
	}
	for _, key := range []string{"demand", "split", "wait", "cost"} {
		if v := n.Get(key); v != nil {
			p.spots[path+"."+key] = fileSpot{v, where + "." + key}
		}
	}
	p.scenario.Loads = append(p.scenario.Loads, l)
}

// demand reads a rate, from and until some time, or rates from times on.
func (p *scenarioParser) demand(n *document.Node) []Step {
	demand, from, until := n.Get("demand"), n.Get("from"), n.Get("until")
	if demand == nil {
		p.Fault(n, "add demand: 2000/s", "the load has no demand")
		return nil
	}
	if demand.Kind != document.Map {
		steps := []Step{{At: p.Span(from), Rate: p.tokens(demand)}}
		if until != nil {
			end := p.Span(until)
			if end <= steps[0].At {
				p.Wants(until, fmt.Sprintf("a time after the load begins at %v", steps[0].At), "")
			}
			steps = append(steps, Step{At: end})
		}
		return steps
	}
	for _, extra := range []*document.Node{from, until} {
		if extra != nil {
			p.Fault(extra, "write the times into demand, such as {10s: 2000/s, 20s: 0/s}", "from and until go with one rate")
		}
	}
	var steps []Step
	for _, f := range demand.Fields {
		step := Step{At: p.Span(f.Key), Rate: p.tokens(f.Value)}
		if k := len(steps); k > 0 && step.At < steps[k-1].At {
			p.Fault(f.Key, "put them in order of time", "%v is before %v", step.At, steps[k-1].At)
		}
		steps = append(steps, step)
	}
	if len(steps) == 0 {
		p.Wants(demand, "a rate, or rates from times on", "write it as 2000/s or {0s: 500/s, 20s: 2000/s}")
	}
	return steps
}

// spread reads who gets which part of a load.
func (p *scenarioParser) spread(n *document.Node, l *Load) {
	on, split := n.Get("on"), n.Get("split")
	count := p.scenario.Instances
	switch {
	case on == nil, on.Kind == document.Text && on.Text == "all":
	case on.Kind == document.Text && on.Text == "one":
		// One of all, so that it can move.
		l.Split.Kind = OnOne
		if split != nil {
			p.Fault(split, "leave it out, or say on: all", "with on: one there is nothing to split")
			split = nil
		}
	case on.Kind == document.Text && document.Meant(on.Text, []string{"one"}) != "":
		p.Wants(on, "all, one, or a list of instances such as [0, 3, 5-9]", "did you mean one?")
	default:
		l.Instances = p.instances(on)
		count = len(l.Instances)
	}
	if split != nil {
		p.split(split, &l.Split, count)
	}
	if move := n.Get("move"); move != nil {
		l.Split.Move = p.Span(move)
		if l.Split.Move > 0 && l.Split.Move < minMove || words.Zero(move) {
			p.Wants(move, fmt.Sprintf("a duration of at least %v", minMove), "")
		}
		if count == 1 && l.Instances != nil {
			p.Fault(move, "say on: one, for one of all", "the load is on one instance, it has nowhere to move")
		}
	}
	if l.Split.Shuffle = p.Truth(n.Get("shuffle")); l.Split.Shuffle && n.Get("move") == nil {
		p.Fault(n.Get("shuffle"), "add move: 20s", "shuffle needs move: how long until the parts are dealt out again")
	}
}

// split reads one of the words, a map such as {zipf: 1.2}, or a list of parts.
func (p *scenarioParser) split(n *document.Node, s *Split, count int) {
	const forms = "equal, zipf, {zipf: 1.2}, one, {one: 3}, or a part for each instance such as [7, 3]"
	hint := ""
	switch {
	case n.Kind == document.List:
		s.Kind = Shares
		sum := 0.0
		for _, item := range n.Items {
			s.Shares = append(s.Shares, p.Number(item))
			sum += s.Shares[len(s.Shares)-1]
		}
		if count > 0 && len(n.Items) != count {
			p.Fault(n, "", "want a part for each of the load's %d instances, this has %d", count, len(n.Items))
		} else if sum <= 0 {
			p.Fault(n, "", "the parts add up to nothing")
		}
		return
	case n.Kind == document.Map && len(n.Fields) == 1:
		switch f := n.Fields[0]; f.Key.Text {
		case "zipf":
			s.Kind, s.Exponent = Zipf, p.Number(f.Value)
			if s.Exponent == 0 {
				s.Kind = Equal // every k to the power of 0 is 1
			}
			return
		case "one":
			s.Kind, s.Hot = OnOne, int(p.Whole(f.Value, 0, int64(max(count-1, 0))))
			return
		}
	case n.Kind == document.Text:
		words := []string{"equal", "one", "zipf"}
		for i, kind := range []SplitKind{Equal, OnOne, Zipf} {
			if n.Text == words[i] {
				s.Kind = kind
				return
			}
		}
		hint = document.Meant(n.Text, words)
	}
	p.Wants(n, forms, hint)
}

// arrivals reads even, poisson, loop, or {bursts: 10}.
func (p *scenarioParser) arrivals(n *document.Node, l *Load) {
	switch {
	case n != nil && n.Kind == document.Map && len(n.Fields) == 1 && n.Fields[0].Key.Text == "bursts":
		l.Arrivals, l.Size = Bursts, int(p.Whole(n.Fields[0].Value, 1, 1_000_000))
	case n != nil && n.Kind == document.Text && n.Text == "bursts":
		p.Fault(n, "write it as {bursts: 10}", "bursts need their size")
	case n != nil && n.Kind == document.Map:
		p.Wants(n, "even, poisson, loop or {bursts: 10}", "")
	default:
		l.Arrivals = []Arrivals{Even, Poisson, Loop}[p.OneOf(n, "even", "poisson", "loop")]
	}
}

func (p *scenarioParser) mishaps(n *document.Node) Mishaps {
	if !p.Known(n, "mishaps", "every", "length", "spike", "trough", "troughs") {
		return Mishaps{}
	}
	for _, key := range []string{"every", "length"} {
		if v := n.Get(key); v == nil {
			p.Fault(n, "write it as {every: 10s, length: 5s, spike: 3}", "mishaps need %s", key)
		}
	}
	return Mishaps{
		Every: p.Span(n.Get("every")), Length: p.Span(n.Get("length")), Spike: p.Number(n.Get("spike")),
		Trough: p.Percent(n.Get("trough")), Troughs: p.Percent(n.Get("troughs")),
	}
}

// when is when an event happens: once, or again and again.
type when struct {
	at, length time.Duration
	every      time.Duration
	times      int
}

// each calls f with the time of each.
func (w when) each(f func(at time.Duration)) {
	for k := range w.times {
		f(w.at + time.Duration(k)*w.every)
	}
}
