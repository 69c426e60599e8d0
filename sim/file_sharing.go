package sim

import (
	"cmp"
	"errors"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/demand"
	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/partition"
	"github.com/stint-io/stint/sim/internal/words"
)

// sharing reads how the limit is shared, with what only that way knows.
func (p *scenarioParser) sharing(n *document.Node, own *Ours) {
	if v := n.Get("sharing"); v != nil {
		way, ok := p.Word(v, "leased", "suppressed", "split")
		if !ok {
			return
		}
		if own.Suppress == nil && way == 1 {
			own.Suppress = &lease.Suppress{}
		} else if way != 1 {
			own.Suppress = nil
		}
		if own.Split == nil && way == 2 {
			own.Split = &OwnSplit{}
		} else if way != 2 {
			own.Split = nil
		}
	}
	suppressed, split := own.Suppress != nil, own.Split != nil
	for _, only := range []struct {
		here      bool
		keys      []string
		hint, why string
	}{
		{suppressed, []string{"report", "interval", "average", "ramp", "full", "draws"}, "add sharing: suppressed", "is for limits that are suppressed"},
		{split, []string{"pace"}, "add sharing: split", "is for limits that are split"},
		{!suppressed && !split, []string{"allocation", "estimator"}, "leave it out", "is for leases: nobody divides this limit by what is wanted"},
		{!split, []string{"lease", "refresh", "expiry", "start", "forgetful"}, "leave it out", "is for limits with a coordinator, and those that are split have none"},
	} {
		for _, k := range only.keys {
			if v := n.Get(k); v != nil && !only.here {
				p.Fault(v, only.hint, "%s %s", k, only.why)
			}
		}
	}
	switch {
	case own.Suppress != nil:
		s := *own.Suppress // a variant has its own
		own.Suppress = &s
		p.suppress(n, &s)
	case own.Split != nil:
		s := *own.Split
		own.Split = &s
		p.parts(n, &s)
	case n.Get("window") != nil:
		p.Fault(n.Get("window"), "add sharing: suppressed, or sharing: split", "leases know no window")
	}
}

// suppress reads how a limit is suppressed.
func (p *scenarioParser) suppress(n *document.Node, s *lease.Suppress) {
	before := p.Faults.Count()
	if v := n.Get("report"); v != nil {
		s.Report = p.above(v)
		p.shared(v, (&lease.Suppress{Report: s.Report}).Validate())
	}
	if v := n.Get("average"); v != nil {
		s.Admitted = p.OneOf(v, "attempted", "admitted") == 1
	}
	if v := n.Get("ramp"); v != nil {
		s.Ramp = lease.Ramp(p.OneOf(v, "exact", "linear"))
	}
	if v := n.Get("full"); v != nil {
		if s.Full = p.Number(v); s.Full == 0 && p.Faults.Count() == before {
			p.Wants(v, "how many times the limit is refused altogether", "leave it out for the default")
		}
		p.shared(v, (&lease.Suppress{Full: s.Full}).Validate())
	}
	if v := n.Get("draws"); v != nil {
		s.Independent = p.OneOf(v, "balanced", "independent") == 1
	}
	window, interval := n.Get("window"), n.Get("interval")
	if (window == nil) != (interval == nil) {
		p.Fault(cmp.Or(window, interval), "add both or none, such as window: 24s and interval: 6s", "a window is divided into intervals")
		return
	}
	if window != nil {
		w, i := p.above(window), p.above(interval)
		if w > 0 && i > 0 && w%i != 0 {
			p.Wants(interval, "a part of the window", "make the window some intervals long")
		}
		s.Window, s.Intervals = w, int(min(w/max(i, 1), demand.MaxIntervals+1))
	}
	if p.Faults.Count() == before {
		p.shared(cmp.Or(interval, n.Get("report"), n.Get("average"), n), s.Validate())
	}
}

// above reads a duration that is not zero.
func (p *scenarioParser) above(n *document.Node) time.Duration {
	if words.Zero(n) {
		p.Wants(n, "a duration above 0", "leave it out for the default")
	}
	return p.Span(n)
}

// shared reports what is wrong with the settings of a way of sharing that n is the latest of.
func (p *scenarioParser) shared(n *document.Node, err error) {
	list := []error{err}
	if joined, ok := errors.AsType[interface {
		error
		Unwrap() []error
	}](err); ok {
		list = joined.Unwrap()
	}
	for _, err := range list {
		if err != nil {
			_, text, _ := strings.Cut(err.Error(), ": ") // the name of the package comes first
			p.Fault(n, "", "%s", text)
		}
	}
}

// parts reads how the parts that all have beforehand are used.
func (p *scenarioParser) parts(n *document.Node, s *OwnSplit) {
	before := p.Faults.Count()
	if v := n.Get("window"); v != nil {
		s.Window = p.above(v)
	}
	if v := n.Get("pace"); v != nil {
		s.Pacing = partition.Pacing(p.OneOf(v, "none", "even", "pid"))
	}
	if p.Faults.Count() > before {
		return
	}
	none := splitTerms(Limit{}, partition.Part{Weight: 1, Of: 1}, s.Window)
	_, err := partition.New(partition.Options{Window: s.Window, Pacing: s.Pacing}, none)
	p.shared(cmp.Or(n.Get("window"), n.Get("pace"), n), err)
}

// splits reports limits that the systems of the file are to split and that cannot be:
// among too many, or that have more than one token in a nanosecond.
func (p *scenarioParser) splits() {
	split := p.own.Split != nil
	for _, own := range p.variants {
		split = split || own.Split != nil
	}
	s := p.scenario
	if !split || s.Instances == 0 || s.Weights != nil && len(s.Weights) != s.Instances {
		return
	}
	part, spot := partOf(s.Weights, s.Instances, 0), "instances"
	if s.Weights != nil {
		spot = "weights"
	}
	if err := part.Validate(); err != nil {
		p.shared(p.spots[spot].node, err)
		return
	}
	for _, l := range p.limits {
		p.shared(l.node, splitTerms(l.limit, part, 0).Validate(0))
	}
}
