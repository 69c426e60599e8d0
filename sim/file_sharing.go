package sim

import (
	"strings"
	"time"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/internal/share"
)

// What only the ways to share without leases of parts know.
var (
	suppressKeys = []string{"report", "interval", "average", "ramp", "full", "draws"}
	splitKeys    = []string{"pace"}
)

// sharing reads how the limit is shared, with what only that way knows.
func (p *scenarioParser) sharing(n *document.Node, own *Ours) {
	if v := n.Get("sharing"); v != nil {
		own.Suppress, own.Split = nil, nil
		switch p.word(v, "leased", "suppressed", "split") {
		case 1:
			own.Suppress = &share.Suppress{}
		case 2:
			own.Split = &OwnSplit{}
		}
	}
	for _, k := range suppressKeys {
		if v := n.Get(k); v != nil && own.Suppress == nil {
			p.Fault(v, "add sharing: suppressed", "%s is for limits that are suppressed", k)
		}
	}
	for _, k := range splitKeys {
		if v := n.Get(k); v != nil && own.Split == nil {
			p.Fault(v, "add sharing: split", "%s is for limits that are split", k)
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
func (p *scenarioParser) suppress(n *document.Node, s *share.Suppress) {
	if v := n.Get("report"); v != nil {
		if s.Report = p.span(v); s.Report == 0 {
			p.Wants(v, "a duration above 0", "leave it out for the default")
		}
	}
	if v := n.Get("average"); v != nil {
		s.Admitted = p.word(v, "attempted", "admitted") == 1
	}
	if v := n.Get("ramp"); v != nil {
		s.Ramp = share.Ramp(p.word(v, "exact", "linear"))
	}
	if v := n.Get("full"); v != nil {
		s.Full = p.number(v)
	}
	if v := n.Get("draws"); v != nil {
		s.Independent = p.word(v, "balanced", "independent") == 1
	}
	window, interval := n.Get("window"), n.Get("interval")
	if (window == nil) != (interval == nil) {
		p.Fault(n, "add both or none, such as window: 24s and interval: 6s", "a window is divided into intervals")
		return
	}
	if window != nil {
		w, i := p.span(window), p.span(interval)
		if i <= 0 || w%max(i, 1) != 0 || w < i {
			p.Wants(interval, "a part of the window", "make the window some intervals long")
			return
		}
		s.Window, s.Intervals = w, int(min(w/i, share.MaxIntervals+1))
	}
	if err := s.Validate(); err != nil {
		p.Fault(n, "", "%s", strings.ReplaceAll(err.Error(), "share: ", ""))
	}
}

// parts reads how the parts that all have beforehand are used.
func (p *scenarioParser) parts(n *document.Node, s *OwnSplit) {
	if v := n.Get("window"); v != nil {
		s.Window = p.span(v)
	}
	if v := n.Get("pace"); v != nil {
		s.Pacing = share.Pacing(p.word(v, "none", "even", "pid"))
	}
	most := share.SplitTerms{Part: share.Part{Weight: 1, Of: 1}, Burst: 1}
	most.Total.Period = time.Second
	if _, err := share.NewSplit(share.SplitOptions{Window: s.Window, Pacing: s.Pacing}, most); err != nil {
		p.Fault(n, "", "%s", strings.TrimPrefix(err.Error(), "share: "))
	}
}
