package sim

import (
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/sim/internal/words"
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
	src, err := io.ReadAll(io.LimitReader(file, int64(words.Bounds.Bytes)+1))
	if err != nil {
		return nil, err
	}
	return ParseScenario(src, path)
}

// ParseScenario reads a scenario from the text of a file that is called name. The
// error is a rules.Errors with all faults, each with its place and a hint.
func ParseScenario(data []byte, name string) (*File, error) {
	p := &scenarioParser{
		Reader: words.Read(name, data),
		File:   File{Runs: 1, Systems: []string{ownName}, variants: map[string]Ours{}},
		spots:  map[string]fileSpot{},
	}
	p.scenario = &p.Scenario
	p.scenario.Name = strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
	switch {
	case p.Faults.Count() > 0:
	case p.Root == nil || p.Root.Kind == document.Null:
		p.Fault(nil, "see docs/reference/simulate.md", "the file is empty, want a scenario")
	default:
		p.root(p.Root)
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	return &p.File, nil
}

// scenarioParser turns nodes into a File.
type scenarioParser struct {
	words.Reader
	File

	scenario *Scenario
	burst    *document.Node // of the root
	spots    map[string]fileSpot
	limits   []limitSpot // all that are in force at some time
	named    int         // see maxNamed
}

// limitSpot is a limit, and where its rate stands in the file.
type limitSpot struct {
	node  *document.Node
	limit Limit
}

// fileSpot is where a part of the scenario stands in the file, and what it is called
// there.
type fileSpot struct {
	node *document.Node
	name string
}

func (p *scenarioParser) root(n *document.Node) {
	if n.Get("limits") != nil || n.Get("domain") != nil {
		p.Fault(nil, "a scenario describes one limit and its load, such as examples/scenarios/e1-step-10.yaml; stint replay plays a log against a limits file", "this is a limits file, not a scenario")
		return
	}
	if !p.Known(n, "a scenario", "name", "about", "limit", "burst", "instances", "duration", "seed",
		"network", "load", "events", "weights", "old", "starts", "clocks", "failover", "measure",
		"systems", "stint", "runs", "show") {
		return
	}
	s := p.scenario
	for _, key := range []string{"limit", "instances", "duration", "load"} {
		if n.Get(key) == nil {
			p.Fault(nil, map[string]string{
				"limit": "add limit: 1000/s", "instances": "add instances: 10", "duration": "add duration: 60s",
				"load": "add load: [{demand: 2000/s}]",
			}[key], "%s is missing", key)
		}
	}
	for _, f := range n.Fields {
		p.spots[f.Key.Text] = fileSpot{f.Value, f.Key.Text}
	}
	s.Name = p.Text(n.Get("name"), s.Name)
	s.About = p.Text(n.Get("about"), "")
	if i := n.Get("instances"); i != nil {
		s.Instances = int(p.Whole(i, 1, MaxInstances))
	}
	p.burst = n.Get("burst")
	s.Limit = p.limit(n.Get("limit"), p.burst)
	if d := n.Get("duration"); d != nil {
		if s.Duration = p.Span(d); s.Duration == 0 && words.Zero(d) {
			p.Wants(d, "a duration above 0", "")
		}
	}
	s.Seed = uint64(p.Whole(n.Get("seed"), 0, math.MaxInt64))
	s.Failover = p.Truth(n.Get("failover"))
	if v := n.Get("runs"); v != nil {
		p.Runs = int(p.Whole(v, 1, MaxRuns))
	}
	p.network(n.Get("network"))
	p.fleet(n)
	for i, item := range n.Get("load").Each() {
		p.load(fmt.Sprintf("load[%d]", i), item)
	}
	if l := n.Get("load"); l != nil && l.Kind == document.List && len(l.Items) == 0 {
		p.Wants(l, "at least one load", "add {demand: 2000/s}")
	}
	p.events(n.Get("events"))
	p.measure(n.Get("measure"))
	p.comparison(n)
	p.splits()
	if p.Faults.Count() == 0 {
		p.validate()
	}
}

// limit reads a rate with its burst, by default the count as it is written, as in a
// limits file.
func (p *scenarioParser) limit(rate, burst *document.Node) Limit {
	l := Limit{Rate: p.Rate(rate)}
	if l.Rate.Period == 0 {
		l.Rate.Period = time.Second
	}
	if rate != nil {
		l.Burst, _ = limit.DefaultBurst(rate.Text) // 0 after a fault
	}
	if burst != nil {
		l.Burst = p.Whole(burst, 0, limit.MaxCount)
	}
	p.limits = append(p.limits, limitSpot{rate, l})
	return l
}

func (p *scenarioParser) network(n *document.Node) {
	if n == nil || !p.Known(n, "network", "delay", "jitter", "in_order", "loss", "duplicate") {
		return
	}
	p.scenario.Network = Network{
		Delay: p.Span(n.Get("delay")), Jitter: p.Span(n.Get("jitter")), InOrder: p.Truth(n.Get("in_order")),
		Loss: p.Percent(n.Get("loss")), Duplicate: p.Percent(n.Get("duplicate")),
	}
	for _, f := range n.Fields {
		p.spots["network."+f.Key.Text] = fileSpot{f.Value, "network." + f.Key.Text}
	}
}

// fleet reads what differs from instance to instance.
func (p *scenarioParser) fleet(root *document.Node) {
	s, count := p.scenario, p.scenario.Instances
	if n := root.Get("weights"); n != nil {
		s.Weights = make([]uint32, count)
		for i := range s.Weights {
			s.Weights[i] = 1
		}
		p.perInstance(n, false, func(a Address, v *document.Node) {
			if w := uint32(p.Whole(v, 1, math.MaxUint32)); int(a) < count {
				s.Weights[a] = w
			}
		})
	}
	if n := root.Get("old"); n != nil {
		s.Old = make([]bool, count)
		for _, i := range p.instances(n) {
			s.Old[i] = true
		}
	}
	if n := root.Get("starts"); n != nil {
		s.Starts = make([]time.Duration, count)
		p.perInstance(n, false, func(a Address, v *document.Node) {
			if at := p.Span(v); int(a) < count {
				s.Starts[a] = at
			}
		})
	}
	if n := root.Get("clocks"); n != nil {
		s.Clocks = make([]time.Duration, count)
		p.perInstance(n, true, func(a Address, v *document.Node) {
			off := p.SpanFrom(v, -words.MaxDuration)
			if a == Coordinator {
				s.CoordinatorClock = off
			} else if int(a) < count {
				s.Clocks[a] = off
			}
		})
	}
}

func (p *scenarioParser) measure(n *document.Node) {
	if n == nil || !p.Known(n, "measure", "from", "step", "sample", "look", "grace") {
		return
	}
	p.scenario.Measure = Measure{
		From: p.Span(n.Get("from")), Step: p.Span(n.Get("step")), Sample: p.Span(n.Get("sample")),
		Look: p.Span(n.Get("look")), Grace: p.Span(n.Get("grace")),
	}
	for _, f := range n.Fields {
		p.spots["measure."+f.Key.Text] = fileSpot{f.Value, "measure." + f.Key.Text}
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
		for path := range p.spots {
			if rest, ok := strings.CutPrefix(text, path); ok && len(path) > len(best) && (rest == "" || strings.ContainsRune(".[ :", rune(rest[0]))) {
				best = path
			}
		}
		spot := p.spots[best]
		p.Fault(spot.node, "", "%s%s", spot.name, text[len(best):])
	}
}
