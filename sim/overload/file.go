package overload

import (
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/sim/internal/words"
)

// MaxRuns is how many runs of each system a file may ask for.
const MaxRuns = 1000

// File is a scenario as it is written in a file: what happens, what to compare in it, and how
// often.
type File struct {
	Scenario Scenario
	Systems  []string // names, at least one; see [File.Choose]
	Runs     int      // of each system, at least 1
	Show     []string // names of figures; nil = those of [DefaultFigures]

	own      Ours // what the file says under stint
	variants map[string]System
}

// Speaks reports whether a file describes servers, and not a fleet of limiters: whether its root
// has one of the keys servers and random. It reports false for a file that cannot be read.
func Speaks(path string) bool {
	data, err := read(path)
	if err != nil {
		return false
	}
	r := words.Read(path, data)
	return r.Faults.Count() == 0 && r.Root != nil && (r.Root.Get("servers") != nil || r.Root.Get("random") != nil)
}

func read(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, int64(words.Bounds.Bytes)+1))
}

// ParseFile reads a scenario. It returns the error of reading the file, or a rules.Errors with all
// that is wrong in it.
func ParseFile(path string) (*File, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	return ParseScenario(data, path)
}

// ParseScenario reads a scenario from the text of a file that is called name. The error is a
// rules.Errors with all faults, each with its place and a hint.
func ParseScenario(data []byte, name string) (*File, error) {
	p := &parser{
		Reader:  words.Read(name, data),
		File:    File{Runs: 1, Systems: []string{ownName}, variants: map[string]System{}},
		servers: map[string]int{}, routes: map[string]int{},
	}
	p.Scenario.Name = strings.TrimSuffix(filepath.Base(name), filepath.Ext(name))
	switch {
	case p.Faults.Count() > 0:
	case p.Root == nil || p.Root.Kind == document.Null:
		p.Fault(nil, "see docs/reference/simulate-servers.md", "the file is empty, want a scenario")
	default:
		p.root(p.Root)
	}
	if err := p.Err(); err != nil {
		return nil, err
	}
	return &p.File, nil
}

// parser turns nodes into a File.
type parser struct {
	words.Reader
	File

	servers, routes map[string]int
	steps           int // calls so far, those below each counted again
}

// size is how many calls a step is, with those below it.
func (p *Step) size() int {
	n := 1
	for i := range p.Calls {
		n += p.Calls[i].size()
	}
	return n
}

func (p *parser) root(n *document.Node) {
	if !p.Known(n, "a scenario", "name", "about", "duration", "seed", "network", "servers", "routes", "load",
		"random", "measure", "systems", "stint", "runs", "show") {
		return
	}
	s := &p.Scenario
	needed := []string{"duration", "servers", "routes", "load"}
	if n.Get("random") != nil {
		needed = needed[:1]
	}
	for _, key := range needed {
		if n.Get(key) == nil {
			p.Fault(nil, map[string]string{
				"duration": "add duration: 30s", "servers": "add servers: {a: {cores: 4}}", "routes": "add routes: {get: {at: a, work: 1ms}}",
				"load": "add load: [{route: get, demand: 5000/s}]",
			}[key], "%s is missing", key)
		}
	}
	s.Name = p.Text(n.Get("name"), s.Name)
	s.About = p.Text(n.Get("about"), "")
	s.Duration = p.Span(n.Get("duration"))
	s.Seed = uint64(p.Whole(n.Get("seed"), 0, math.MaxInt64))
	if v := n.Get("runs"); v != nil {
		p.Runs = int(p.Whole(v, 1, MaxRuns))
	}
	if v := n.Get("network"); v != nil && p.Known(v, "network", "delay") {
		s.Delay = p.Span(v.Get("delay"))
	}
	if v := n.Get("random"); v != nil && p.Known(v, "random", "overload") {
		s.Random = &Random{Overload: p.Number(v.Get("overload"))}
	}
	p.fleet(n)
	if v := n.Get("measure"); v != nil && p.Known(v, "measure", "from", "to", "step", "band", "window") {
		s.Measure.From, s.Measure.To = p.Span(v.Get("from")), p.Span(v.Get("to"))
		s.Measure.Step, s.Measure.Band, s.Measure.Window = p.Span(v.Get("step")), p.Span(v.Get("band")), p.Span(v.Get("window"))
	}
	p.comparison(n)
	if p.Faults.Count() > 0 {
		return
	}
	if err := s.Validate(); err != nil {
		for _, line := range strings.Split(err.Error(), "\n") {
			p.Fault(nil, "", "%s", strings.TrimPrefix(line, "overload: "))
		}
	}
}

// fleet reads servers, routes and loads.
func (p *parser) fleet(n *document.Node) {
	s := &p.Scenario
	if v := n.Get("servers"); v != nil && p.isMap(v, "servers by name, such as {a: {cores: 4}}") {
		for _, f := range v.Fields {
			p.servers[f.Key.Text] = len(s.Servers)
			server := Server{Name: f.Key.Text}
			if p.Known(f.Value, "a server", "cores", "discipline") {
				server.Cores = int(p.Whole(f.Value.Get("cores"), 1, maxCores))
				server.Discipline = Discipline(p.OneOf(f.Value.Get("discipline"), "fifo", "sharing"))
				if f.Value.Get("cores") == nil {
					p.Fault(f.Key, "add cores: 4", "the server %s has no cores", f.Key.Text)
				}
			}
			s.Servers = append(s.Servers, server)
		}
	}
	if v := n.Get("routes"); v != nil && p.isMap(v, "routes by name, such as {get: {at: a, work: 1ms}}") {
		for _, f := range v.Fields {
			p.routes[f.Key.Text] = len(s.Routes)
			r := Route{Name: f.Key.Text}
			if p.Known(f.Value, "a route", "at", "work", "calls", "parallel", "slo", "timeout") {
				r.Step = p.step(f.Value)
				r.SLO, r.Timeout = p.Span(f.Value.Get("slo")), p.Span(f.Value.Get("timeout"))
			}
			s.Routes = append(s.Routes, r)
		}
	}
	for _, item := range n.Get("load").Each() {
		p.load(item)
	}
}

func (p *parser) isMap(n *document.Node, what string) bool {
	if n.Kind != document.Map {
		p.Wants(n, what, "")
	}
	return n.Kind == document.Map
}

// named returns the index of a name, or 0 and a fault.
func (p *parser) named(n *document.Node, owner *document.Node, what string, all map[string]int) int {
	if n == nil {
		p.Fault(owner, "", "it names no %s", what)
		return 0
	}
	i, ok := all[n.Text]
	if !ok {
		names := make([]string, 0, len(all))
		for name := range all {
			names = append(names, name)
		}
		slices.Sort(names)
		p.Fault(n, document.Meant(n.Text, names), "there is no %s %q", what, n.Text)
	}
	return i
}

// step reads a call, or the keys of a route that are one.
func (p *parser) step(n *document.Node) Step {
	s := Step{Server: p.named(n.Get("at"), n, "server", p.servers), Parallel: p.Truth(n.Get("parallel"))}
	if v := n.Get("work"); v != nil {
		s.Work = p.work(v)
	}
	for _, item := range n.Get("calls").Each() {
		if p.Known(item, "a call", "at", "work", "calls", "parallel", "times") {
			call := p.step(item)
			times := int64(1)
			if v := item.Get("times"); v != nil {
				times = p.Whole(v, 1, maxSteps)
			}
			for size := call.size(); times > 0; times-- {
				if p.steps += size; p.steps > maxSteps {
					p.Fault(item, "make fewer calls", "with this, all routes make more than %d calls", maxSteps)
					return s
				}
				s.Calls = append(s.Calls, call)
			}
		}
	}
	return s
}

// work reads a service time: a duration, or a distribution with its mean.
func (p *parser) work(n *document.Node) Work {
	if n.Kind != document.Map {
		return Work{Mean: p.Span(n)}
	}
	if !p.Known(n, "work", "exponential", "lognormal", "sigma", "bimodal", "slow", "times") {
		return Work{}
	}
	kinds := 0
	w := Work{Sigma: 1, SlowPart: 0.1, SlowFactor: 10}
	for i, word := range []string{"exponential", "lognormal", "bimodal"} {
		if v := n.Get(word); v != nil {
			kinds++
			w.Kind, w.Mean = Kind(i+1), p.Span(v)
		}
	}
	if kinds != 1 {
		p.Wants(n, "one of exponential, lognormal and bimodal with a mean", "write 1ms, {exponential: 1ms}, {lognormal: 1ms, sigma: 1} or {bimodal: 1ms, slow: 10%, times: 10}")
	}
	if v := n.Get("sigma"); v != nil {
		w.Sigma = p.Number(v)
	}
	if v := n.Get("slow"); v != nil {
		w.SlowPart = p.Percent(v)
	}
	if v := n.Get("times"); v != nil {
		w.SlowFactor = p.Number(v)
	}
	return w
}

// classWords are the classes of package throttle, as files may call them.
var classWords = []string{"sheddable", "sheddable_plus", "critical", "critical_plus"}

func (p *parser) load(n *document.Node) {
	if !p.Known(n, "a load", "name", "route", "demand", "arrivals", "class", "levels", "users", "clients", "retries", "backoff") {
		return
	}
	l := Load{
		Name: p.Text(n.Get("name"), ""), Route: p.named(n.Get("route"), n, "route", p.routes), Rate: p.demand(n),
		Even: p.OneOf(n.Get("arrivals"), "poisson", "even") == 1, Levels: Levels(p.OneOf(n.Get("levels"), "user", "request", "alike")),
		Users: int(p.Whole(n.Get("users"), 1, 100e6)), Clients: int(p.Whole(n.Get("clients"), 1, MaxClients)),
		Retries: int(p.Whole(n.Get("retries"), 0, maxRetries)), Backoff: p.Span(n.Get("backoff")),
	}
	switch v := n.Get("class"); {
	case v == nil:
		l.Class = 1
	case v.Kind == document.Int:
		l.Class = int(p.Whole(v, 0, maxClass))
	default:
		l.Class = p.OneOf(v, classWords...)
	}
	p.Scenario.Loads = append(p.Scenario.Loads, l)
}

// demand reads a rate, or rates from times on.
func (p *parser) demand(n *document.Node) []RateStep {
	v := n.Get("demand")
	if v == nil {
		p.Fault(n, "add demand: 2000/s", "the load has no demand")
		return nil
	}
	perSecond := func(v *document.Node) float64 {
		rate := p.Rate(v)
		if rate.Period == 0 {
			return 0
		}
		return float64(rate.Count) / rate.Period.Seconds()
	}
	if v.Kind != document.Map {
		return []RateStep{{Rate: perSecond(v)}}
	}
	var steps []RateStep
	for _, f := range v.Fields {
		steps = append(steps, RateStep{At: p.Span(f.Key), Rate: perSecond(f.Value)})
	}
	if len(steps) == 0 {
		p.Wants(v, "a rate, or rates from times on", "write it as 2000/s or {0s: 500/s, 20s: 2000/s}")
	}
	return steps
}

// key is an option of a file and how it is read.
type key struct {
	name string
	read func(*document.Node)
}

// options reads those keys of n that are there.
func options(n *document.Node, keys []key) {
	for _, k := range keys {
		if v := n.Get(k.name); v != nil {
			k.read(v)
		}
	}
}

func (p *parser) faultf(n *document.Node, err error) {
	p.Fault(n, "", "%s", strings.TrimPrefix(fmt.Sprint(err), "sim: "))
}
