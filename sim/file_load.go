package sim

import (
	"fmt"
	"time"
)

// load reads one load. where is what the file calls it.
func (p *scenarioParser) load(where string, n *fileNode) {
	if !p.known(n, "a load", "demand", "from", "until", "on", "split", "move", "shuffle",
		"arrivals", "aligned", "cost", "wait", "mishaps") {
		return
	}
	path := fmt.Sprintf("loads[%d]", len(p.scenario.Loads))
	p.places[path] = fileSpot{n, where}
	l := Load{
		Aligned: p.truth(n.get("aligned")),
		Cost:    p.whole(n.get("cost"), 1, maxRequests),
		Wait:    p.span(n.get("wait")),
		Demand:  p.demand(n),
	}
	p.spread(n, &l)
	p.arrivals(n.get("arrivals"), &l)
	if m := n.get("mishaps"); m != nil {
		p.places[path+".mishaps"] = fileSpot{m, where + ".mishaps"}
		l.Mishaps = p.mishaps(m)
	}
	for _, key := range []string{"demand", "split", "wait", "cost"} {
		if v := n.get(key); v != nil {
			p.places[path+"."+key] = fileSpot{v, where + "." + key}
		}
	}
	p.scenario.Loads = append(p.scenario.Loads, l)
}

// demand reads a rate, from and until some time, or rates from times on.
func (p *scenarioParser) demand(n *fileNode) []Step {
	demand, from, until := n.get("demand"), n.get("from"), n.get("until")
	if demand == nil {
		p.fault(n, "add demand: 2000/s", "the load has no demand")
		return nil
	}
	if demand.kind != fileMap {
		steps := []Step{{At: p.span(from), Rate: p.tokens(demand)}}
		if until != nil {
			end := p.span(until)
			if end <= steps[0].At {
				p.wants(until, fmt.Sprintf("a time after the load begins at %v", steps[0].At), "")
			}
			steps = append(steps, Step{At: end})
		}
		return steps
	}
	for _, extra := range []*fileNode{from, until} {
		if extra != nil {
			p.fault(extra, "write the times into demand, such as {10s: 2000/s, 20s: 0/s}", "from and until go with one rate")
		}
	}
	var steps []Step
	for _, f := range demand.fields {
		step := Step{At: p.span(f.key), Rate: p.tokens(f.value)}
		if k := len(steps); k > 0 && step.At < steps[k-1].At {
			p.fault(f.key, "put them in order of time", "%v is before %v", step.At, steps[k-1].At)
		}
		steps = append(steps, step)
	}
	if len(steps) == 0 {
		p.wants(demand, "a rate, or rates from times on", "write it as 2000/s or {0s: 500/s, 20s: 2000/s}")
	}
	return steps
}

// spread reads who gets which part of a load.
func (p *scenarioParser) spread(n *fileNode, l *Load) {
	on, split := n.get("on"), n.get("split")
	count := p.scenario.Instances
	switch {
	case on == nil, on.kind == fileText && on.text == "all":
	case on.kind == fileText && on.text == "one":
		// One of all, so that it can move.
		l.Split.Kind = OnOne
		if split != nil {
			p.fault(split, "leave it out, or say on: all", "with on: one there is nothing to split")
			split = nil
		}
	case on.kind == fileText && nearest(on.text, []string{"one"}) != "":
		p.wants(on, "all, one, or a list of instances such as [0, 3, 5-9]", "did you mean one?")
	default:
		l.Instances = p.instances(on)
		count = len(l.Instances)
	}
	if split != nil {
		p.split(split, &l.Split, count)
	}
	if move := n.get("move"); move != nil {
		l.Split.Move = p.span(move)
		if l.Split.Move > 0 && l.Split.Move < minMove || parsedZero(move) {
			p.wants(move, fmt.Sprintf("a duration of at least %v", minMove), "")
		}
		if count == 1 && l.Instances != nil {
			p.fault(move, "say on: one, for one of all", "the load is on one instance, it has nowhere to move")
		}
	}
	if l.Split.Shuffle = p.truth(n.get("shuffle")); l.Split.Shuffle && n.get("move") == nil {
		p.fault(n.get("shuffle"), "add move: 20s", "shuffle needs move: how long until the parts are dealt out again")
	}
}

// split reads one of the words, a map such as {zipf: 1.2}, or a list of parts.
func (p *scenarioParser) split(n *fileNode, s *Split, count int) {
	const forms = "equal, zipf, {zipf: 1.2}, one, {one: 3}, or a part for each instance such as [7, 3]"
	hint := ""
	switch {
	case n.kind == fileList:
		s.Kind = Shares
		sum := 0.0
		for _, item := range n.items {
			s.Shares = append(s.Shares, p.number(item))
			sum += s.Shares[len(s.Shares)-1]
		}
		if count > 0 && len(n.items) != count {
			p.fault(n, "", "want a part for each of the load's %d instances, this has %d", count, len(n.items))
		} else if sum <= 0 {
			p.fault(n, "", "the parts add up to nothing")
		}
		return
	case n.kind == fileMap && len(n.fields) == 1:
		switch f := n.fields[0]; f.key.text {
		case "zipf":
			s.Kind, s.Exponent = Zipf, p.number(f.value)
			if s.Exponent == 0 {
				s.Kind = Equal // every k to the power of 0 is 1
			}
			return
		case "one":
			s.Kind, s.Hot = OnOne, int(p.whole(f.value, 0, int64(max(count-1, 0))))
			return
		}
	case n.kind == fileText:
		words := []string{"equal", "one", "zipf"}
		for i, kind := range []SplitKind{Equal, OnOne, Zipf} {
			if n.text == words[i] {
				s.Kind = kind
				return
			}
		}
		if w := nearest(n.text, words); w != "" {
			hint = fmt.Sprintf("did you mean %s?", w)
		}
	}
	p.wants(n, forms, hint)
}

// arrivals reads even, poisson, or {bursts: 10}.
func (p *scenarioParser) arrivals(n *fileNode, l *Load) {
	switch {
	case n != nil && n.kind == fileMap && len(n.fields) == 1 && n.fields[0].key.text == "bursts":
		l.Arrivals, l.Size = Bursts, int(p.whole(n.fields[0].value, 1, 1_000_000))
	case n != nil && n.kind == fileText && n.text == "bursts":
		p.fault(n, "write it as {bursts: 10}", "bursts need their size")
	case n != nil && n.kind == fileMap:
		p.wants(n, "even, poisson or {bursts: 10}", "")
	default:
		l.Arrivals = Arrivals(p.word(n, "even", "poisson"))
	}
}

func (p *scenarioParser) mishaps(n *fileNode) Mishaps {
	if !p.known(n, "mishaps", "every", "length", "spike", "trough", "troughs") {
		return Mishaps{}
	}
	for _, key := range []string{"every", "length"} {
		if v := n.get(key); v == nil {
			p.fault(n, "write it as {every: 10s, length: 5s, spike: 3}", "mishaps need %s", key)
		}
	}
	return Mishaps{
		Every: p.span(n.get("every")), Length: p.span(n.get("length")), Spike: p.number(n.get("spike")),
		Trough: p.percent(n.get("trough")), Troughs: p.percent(n.get("troughs")),
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
