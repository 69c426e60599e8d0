package sim

import (
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stint-io/stint/limit"
)

// MaxRuns is how many runs of each system a file may ask for. More would not make the
// interval narrower by anything that can be seen.
const MaxRuns = 1000

// File is a scenario as it is written in a file: what happens, what to compare in it,
// and how often.
type File struct {
	Scenario Scenario
	Systems  []string // names, at least one; see [File.Choose]
	Runs     int      // of each system, at least 1
	Show     []string // names of figures; nil = those of [DefaultFigures]

	own      Ours // what the file says under stint
	variants map[string]Ours
}

// ParseFile reads a scenario. It returns the error of reading the file, or a
// rules.Errors with all that is wrong in it.
func ParseFile(path string) (*File, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	src, err := io.ReadAll(io.LimitReader(file, maxFileBytes+1))
	if err != nil {
		return nil, err
	}
	return ParseScenario(src, path)
}

// ParseScenario reads a scenario from the text of a file that is called name. The
// error is a rules.Errors with all faults, each with its place and a hint.
func ParseScenario(data []byte, name string) (*File, error) {
	p := &scenarioParser{
		fileReader: fileReader{name: name},
		File:       File{Runs: 1, Systems: []string{ownName}, variants: map[string]Ours{}},
		places:     map[string]fileSpot{},
	}
	p.scenario = &p.Scenario
	p.scenario.Name = strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
	root := p.read(data)
	switch {
	case root == nil && len(p.faults) == 0:
		p.fault(nil, "see docs/reference/simulate.md", "the file is empty, want a scenario")
	case root != nil:
		p.root(root)
	}
	if err := p.err(); err != nil {
		return nil, err
	}
	return &p.File, nil
}

// scenarioParser turns nodes into a File.
type scenarioParser struct {
	fileReader
	File

	scenario *Scenario
	burst    *fileNode // of the root
	places   map[string]fileSpot
}

// fileSpot is where a part of the scenario stands in the file, and what it is called
// there.
type fileSpot struct {
	node *fileNode
	name string
}

func (p *scenarioParser) root(n *fileNode) {
	if !p.known(n, "a scenario", "name", "about", "limit", "burst", "instances", "duration", "seed",
		"network", "load", "events", "weights", "old", "starts", "clocks", "failover", "measure",
		"systems", "stint", "runs", "show") {
		return
	}
	s := p.scenario
	for _, key := range []string{"limit", "instances", "duration", "load"} {
		if n.get(key) == nil {
			p.fault(nil, map[string]string{
				"limit": "add limit: 1000/s", "instances": "add instances: 10", "duration": "add duration: 60s",
				"load": "add load: [{demand: 2000/s}]",
			}[key], "%s is missing", key)
		}
	}
	for _, f := range n.fields {
		p.places[f.key.text] = fileSpot{f.value, f.key.text}
	}
	s.Name = p.text(n.get("name"), s.Name)
	s.About = p.text(n.get("about"), "")
	if i := n.get("instances"); i != nil {
		s.Instances = int(p.whole(i, 1, MaxInstances))
	}
	p.burst = n.get("burst")
	s.Limit = p.limit(n.get("limit"), p.burst)
	if d := n.get("duration"); d != nil {
		if s.Duration = p.span(d); s.Duration == 0 && parsedZero(d) {
			p.wants(d, "a duration above 0", "")
		}
	}
	s.Seed = uint64(p.whole(n.get("seed"), 0, math.MaxInt64))
	s.Failover = p.truth(n.get("failover"))
	if v := n.get("runs"); v != nil {
		p.Runs = int(p.whole(v, 1, MaxRuns))
	}
	p.network(n.get("network"))
	p.fleet(n)
	for i, item := range n.get("load").list() {
		p.load(fmt.Sprintf("load[%d]", i), item)
	}
	if l := n.get("load"); l != nil && l.kind == fileList && len(l.items) == 0 {
		p.wants(l, "at least one load", "add {demand: 2000/s}")
	}
	p.events(n.get("events"))
	p.measure(n.get("measure"))
	p.comparison(n)
	if len(p.faults) == 0 {
		p.validate()
	}
}

// parsedZero reports whether n was read, and is zero.
func parsedZero(n *fileNode) bool {
	d, err := parseSpan(n)
	return err == nil && d == 0
}

// limit reads a rate with its burst, by default what comes in one period, as in a
// limit file.
func (p *scenarioParser) limit(rate, burst *fileNode) Limit {
	l := Limit{Rate: p.rate(rate)}
	if l.Rate.Period == 0 {
		l.Rate.Period = time.Second
	}
	l.Burst = l.Rate.Count
	if burst != nil {
		l.Burst = p.whole(burst, 0, limit.MaxCount)
	}
	return l
}

func (p *scenarioParser) network(n *fileNode) {
	if n == nil || !p.known(n, "network", "delay", "jitter", "in_order", "loss", "duplicate") {
		return
	}
	p.scenario.Network = Network{
		Delay: p.span(n.get("delay")), Jitter: p.span(n.get("jitter")), InOrder: p.truth(n.get("in_order")),
		Loss: p.percent(n.get("loss")), Duplicate: p.percent(n.get("duplicate")),
	}
	for _, f := range n.fields {
		p.places["network."+f.key.text] = fileSpot{f.value, "network." + f.key.text}
	}
}

// fleet reads what differs from instance to instance.
func (p *scenarioParser) fleet(root *fileNode) {
	s, count := p.scenario, p.scenario.Instances
	if n := root.get("weights"); n != nil {
		s.Weights = make([]uint32, count)
		for i := range s.Weights {
			s.Weights[i] = 1
		}
		p.perInstance(n, false, func(a Address, v *fileNode) {
			if w := uint32(p.whole(v, 1, math.MaxUint32)); int(a) < count {
				s.Weights[a] = w
			}
		})
	}
	if n := root.get("old"); n != nil {
		s.Old = make([]bool, count)
		for _, i := range p.instances(n) {
			s.Old[i] = true
		}
	}
	if n := root.get("starts"); n != nil {
		s.Starts = make([]time.Duration, count)
		p.perInstance(n, false, func(a Address, v *fileNode) {
			if at := p.span(v); int(a) < count {
				s.Starts[a] = at
			}
		})
	}
	if n := root.get("clocks"); n != nil {
		s.Clocks = make([]time.Duration, count)
		p.perInstance(n, true, func(a Address, v *fileNode) {
			off := p.spanFrom(v, -maxDuration)
			if a == Coordinator {
				s.CoordinatorClock = off
			} else if int(a) < count {
				s.Clocks[a] = off
			}
		})
	}
}

func (p *scenarioParser) measure(n *fileNode) {
	if n == nil || !p.known(n, "measure", "from", "step", "sample", "look", "grace") {
		return
	}
	p.scenario.Measure = Measure{
		From: p.span(n.get("from")), Step: p.span(n.get("step")), Sample: p.span(n.get("sample")),
		Look: p.span(n.get("look")), Grace: p.span(n.get("grace")),
	}
	for _, f := range n.fields {
		p.places["measure."+f.key.text] = fileSpot{f.value, "measure." + f.key.text}
	}
}

// validate gives the faults of the scenario as a whole the place of the part that
// they speak of.
func (p *scenarioParser) validate() {
	err := p.scenario.Validate()
	if err == nil {
		return
	}
	list := []error{err}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		list = joined.Unwrap()
	}
	for _, err := range list {
		text := strings.TrimPrefix(err.Error(), "sim: ")
		best := ""
		for path := range p.places {
			if rest, ok := strings.CutPrefix(text, path); ok && len(path) > len(best) && (rest == "" || strings.ContainsRune(".[ :", rune(rest[0]))) {
				best = path
			}
		}
		spot := p.places[best]
		p.fault(spot.node, "", "%s%s", spot.name, text[len(best):])
	}
}
