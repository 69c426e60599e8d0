package sim

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/sim/internal/words"
)

// maxEvents bounds what repeated events come to, all together: a mistyped every should
// be a fault, not a run that never begins.
const maxEvents = 100_000

// eventKeys are what may stand beside at in an event of each kind.
var eventKeys = map[string][]string{
	"limit":           {"burst"},
	"clock":           {"by"},
	"pause":           {"for", "backlog", "every", "times"},
	"crash":           {"for", "upgrade", "every", "times"},
	"stop":            {"for", "upgrade", "every", "times"},
	"partition":       {"for", "cut", "every", "times"},
	"rolling_restart": {"every", "down", "crash", "upgrade"},
}

var eventKinds = []string{"limit", "clock", "pause", "crash", "stop", "partition", "rolling_restart"}

func (p *scenarioParser) events(n *document.Node) {
	if n == nil {
		return
	}
	if n.Kind != document.List {
		p.Wants(n, "a list of events", "write it as [{at: 20s, crash: coordinator, for: 5s}]")
		return
	}
	for i, item := range n.Items {
		p.event(fmt.Sprintf("events[%d]", i), item)
	}
	slices.SortStableFunc(p.scenario.Changes, func(a, b Change) int { return int(a.At - b.At) })
}

// event reads one event. where is what the file calls it.
func (p *scenarioParser) event(where string, n *document.Node) {
	if n.Kind != document.Map {
		p.Wants(n, "an event", "write it as {at: 20s, crash: coordinator, for: 5s}")
		return
	}
	kind := ""
	for _, k := range eventKinds {
		// A rolling restart may be a crash.
		if n.Get(k) != nil && (k != "crash" || n.Get("rolling_restart") == nil) {
			if kind != "" {
				p.Fault(n, "make it two events", "an event is one of %s, this is %s and %s", strings.Join(eventKinds, ", "), kind, k)
				return
			}
			kind = k
		}
	}
	if kind == "" {
		hint := ""
		for _, f := range n.Fields {
			hint = cmp.Or(document.Meant(f.Key.Text, eventKinds), hint)
		}
		p.Fault(n, hint, "want one of %s", strings.Join(eventKinds, ", "))
		return
	}
	p.Known(n, "an event of this kind", append([]string{"at", kind}, eventKeys[kind]...)...)
	if n.Get("at") == nil {
		p.Fault(n, "add at: 20s", "the event has no time")
		return
	}
	switch s := p.scenario; kind {
	case "limit":
		burst := n.Get("burst")
		if burst == nil {
			burst = p.burst
		}
		s.Changes = append(s.Changes, Change{At: p.Span(n.Get("at")), Limit: p.limit(n.Get(kind), burst)})
	case "clock":
		p.clock(n, where)
	case "rolling_restart":
		p.rolling(n, where)
	case "partition":
		p.partition(n, where)
	default:
		p.halts(n, kind, where)
	}
}

// clock reads that clocks are set forth or back.
func (p *scenarioParser) clock(n *document.Node, where string) {
	s := p.scenario
	at, by := p.Span(n.Get("at")), n.Get("by")
	if by == nil || words.Zero(by) {
		p.Fault(n, "write it as {at: 20s, clock: all, by: -10s}", "an event of clocks needs by: how far they are set forth, or back")
		return
	}
	d := p.SpanFrom(by, -words.MaxDuration)
	nodes := p.nodes(n.Get("clock"), true)
	if !p.room(n, len(s.ClockSteps)+len(nodes)) {
		return
	}
	for _, a := range nodes {
		p.spots[fmt.Sprintf("clock_steps[%d]", len(s.ClockSteps))] = fileSpot{n, where}
		s.ClockSteps = append(s.ClockSteps, ClockStep{At: at, Node: a, By: d})
	}
}

// halts reads pauses and stops.
func (p *scenarioParser) halts(n *document.Node, kind, where string) {
	s := p.scenario
	w := p.when(n)
	backlog, upgrade := p.Span(n.Get("backlog")), p.Truth(n.Get("upgrade"))
	if !p.room(n, len(s.Pauses)+len(s.Stops)+w.times) {
		return
	}
	nodes := p.nodes(n.Get(kind), true)
	if !p.room(n, len(s.Pauses)+len(s.Stops)+w.times*len(nodes)) {
		return
	}
	w.each(func(at time.Duration) {
		for _, a := range nodes {
			if kind == "pause" {
				p.spots[fmt.Sprintf("pauses[%d]", len(s.Pauses))] = fileSpot{n, where}
				s.Pauses = append(s.Pauses, Pause{At: at, For: w.length, Node: a, Backlog: backlog})
				continue
			}
			p.spots[fmt.Sprintf("stops[%d]", len(s.Stops))] = fileSpot{n, where}
			s.Stops = append(s.Stops, Stop{At: at, For: w.length, Node: a, Orderly: kind == "stop", Upgrade: upgrade})
		}
	})
}

func (p *scenarioParser) partition(n *document.Node, where string) {
	s := p.scenario
	w := p.when(n)
	nodes := p.nodes(n.Get("partition"), true)
	cut := Direction(p.OneOf(n.Get("cut"), "both", "outwards", "inwards"))
	if !p.room(n, len(s.Partitions)+w.times) {
		return
	}
	w.each(func(at time.Duration) {
		p.spots[fmt.Sprintf("partitions[%d]", len(s.Partitions))] = fileSpot{n, where}
		s.Partitions = append(s.Partitions, Partition{At: at, For: w.length, Nodes: nodes, Cut: cut})
	})
}

func (p *scenarioParser) rolling(n *document.Node, where string) {
	r := Rolling{
		At: p.Span(n.Get("at")), Every: p.Span(n.Get("every")), Down: p.Span(n.Get("down")),
		Crash: p.Truth(n.Get("crash")), Upgrade: p.Truth(n.Get("upgrade")),
		Instances: p.instances(n.Get("rolling_restart")),
	}
	for _, key := range []string{"every", "down"} {
		if v := n.Get(key); v == nil || r.Down == 0 && key == "down" && words.Zero(v) {
			p.Fault(n, "write it as {at: 20s, rolling_restart: all, every: 5s, down: 2s}", "a rolling restart needs %s", key)
		}
	}
	p.spots[fmt.Sprintf("rolling[%d]", len(p.scenario.Rolling))] = fileSpot{n, where}
	p.scenario.Rolling = append(p.scenario.Rolling, r)
}

// when reads the time of an event. Without times it happens until the end of the run.
func (p *scenarioParser) when(n *document.Node) when {
	w := when{at: p.Span(n.Get("at")), length: p.Span(n.Get("for")), every: p.Span(n.Get("every")), times: 1}
	if long := n.Get("for"); long != nil && words.Zero(long) {
		p.Wants(long, "a duration above 0", "leave it out for an event that lasts until the end")
	}
	every, times := n.Get("every"), n.Get("times")
	switch {
	case every == nil && times != nil:
		p.Fault(times, "add every: 1m", "times needs every: how long from one to the next")
	case every == nil:
	case w.length == 0 || w.every <= w.length:
		p.Fault(every, "", "an event that happens again needs a for that is shorter than every")
	case times != nil:
		w.times = int(p.Whole(times, 1, maxEvents))
	case w.at < p.scenario.Duration:
		if n := (p.scenario.Duration - w.at - 1) / w.every; n >= maxEvents {
			p.room(every, maxEvents+1)
		} else {
			w.times = 1 + int(n)
		}
	}
	return w
}

// room reports whether the scenario may have so many events of a kind.
func (p *scenarioParser) room(n *document.Node, count int) bool {
	if count <= maxEvents {
		return true
	}
	p.Fault(n, "let it happen less often, or to fewer", "that makes more than %d events", maxEvents)
	return false
}
