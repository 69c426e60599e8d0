package rules

import (
	"fmt"
	"time"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

// Sharing says how instances share one limit. The zero value is SharingExact.
type Sharing uint8

// The ways to share.
const (
	SharingExact      Sharing = iota // every decision at the store
	SharingLeased                    // local decisions on parts that follow the demand
	SharingSplit                     // local decisions on parts that do not
	SharingSuppressed                // local decisions; all refuse a fraction while demand is above the limit
)

var sharingNames = [...]string{
	SharingExact: "exact", SharingLeased: "leased", SharingSplit: "split", SharingSuppressed: "suppressed",
}

// sharingWays say in a sentence how a limit is shared.
var sharingWays = [...]string{
	SharingExact: "exactly", SharingLeased: "by leases", SharingSplit: "by splitting", SharingSuppressed: "by suppression",
}

// String returns the word used in limit files.
func (s Sharing) String() string { return wordOf(sharingNames[:], s) }

// Local reports whether instances decide by themselves, with what a coordinator grants them.
func (s Sharing) Local() bool {
	return s == SharingLeased || s == SharingSplit || s == SharingSuppressed
}

// Split says which part of a limit this service has, when the limit is split between several
// services that do not know of each other. The zero value is the whole limit. The part is
// divided between the instances of the service by their weights.
type Split struct {
	// Instances is the sum of the weights of all services, and Weight that of this
	// one; 0 = 1.
	Instances, Weight int64
}

// maxInstances bounds the services of a split limit. Not more: a rate of 1000 per second would
// be one token in 17 minutes for each.
const maxInstances = 1 << 20

// Part returns the part of a policy that this service has: the rate exactly, burst and permits
// rounded down.
func (s Split) Part(p limit.Policy) limit.Policy {
	instances, weight := max(s.Instances, 1), max(s.Weight, 1)
	if instances == weight || p.Unlimited {
		return p
	}
	if p.Rate.Count <= limit.MaxCount/weight && p.Rate.Period <= limit.Never/time.Duration(instances) {
		p.Rate.Count *= weight
		p.Rate.Period *= time.Duration(instances)
	} else {
		p.Rate.Count = portion(p.Rate.Count, weight, instances)
	}
	p.Burst = portion(p.Burst, weight, instances)
	p.MaxInFlight = portion(p.MaxInFlight, weight, instances)
	return p
}

// portion is n*part/of rounded down; part is at most of.
func portion(n, part, of int64) int64 {
	return int64(fixed.MulDiv(uint64(max(n, 0)), uint64(part), uint64(of)))
}

// Suppress says how a limit is suppressed. The zero value has the defaults.
type Suppress struct {
	// Report is how often an instance reports at most; 0 = 100 ms.
	Report time.Duration
	// Window and Interval say that attempts are averaged over a window of intervals; both 0 =
	// over the time since the load last changed.
	Window, Interval time.Duration
	// Linear refuses nothing at the limit and everything at Full times the limit, 0 =
	// 3; otherwise 1 - limit/attempted is refused.
	Linear bool
	Full   float64
	// Admitted averages admitted requests instead of attempted ones.
	Admitted bool
	// Independent decides at random for each request by itself.
	Independent bool
}

// The bounds of Suppress, which are those of internal/lease.
const (
	usualReport    = 100 * time.Millisecond
	shortestReport = 10 * time.Millisecond
	longestReport  = time.Minute
	longestWindow  = time.Hour
	maxIntervals   = 64
)

// sharing is the node that says how the limit is shared, or the limit where that is a default.
func (s *scope) sharing() *document.Node {
	if n := s.limit.Get("sharing"); n != nil {
		return n
	}
	return s.limit
}

// meaningless reports options of a way to share, written in the limit itself, that is not in
// force. Defaults may have options of several ways.
func (s *scope) meaningless(l *Limit, key string, want Sharing) bool {
	n := s.limit.Get(key)
	if n == nil || l.Sharing == want {
		return false
	}
	s.Fault(n, fmt.Sprintf("add sharing: %v, or leave %s out", want, key), "%s has no meaning with sharing: %v", key, l.Sharing)
	return true
}

// split reads the options of split limits.
func (b *builder) split(s *scope, l *Limit) {
	if s.meaningless(l, "split", SharingSplit) || l.Sharing != SharingSplit {
		return
	}
	n := s.get("split")
	if n == nil || !s.section(n, "split", "a map such as {instances: 4}", splitKeys) {
		return
	}
	instances := n.Get("instances")
	if instances == nil {
		s.Fault(n, "add instances: the number of services that share the limit", "split does not say between how many")
		return
	}
	var ok bool
	if l.Split.Instances, ok = s.integer(instances, 1, maxInstances); !ok {
		return
	}
	l.Split.Weight = 1
	if weight := n.Get("weight"); weight != nil {
		if l.Split.Weight, ok = s.integer(weight, 1, l.Split.Instances); !ok {
			return
		}
	}
	check := func(v *Variant) {
		p := v.Policy
		part := l.Split.Part(p)
		switch {
		case p.Unlimited:
		case p.Algorithm == limit.Concurrency && p.MaxInFlight > 0 && part.MaxInFlight == 0:
			s.Fault(instances, "use sharing: leased, which moves permits to instances with demand", "%d permits cannot be split between %d", p.MaxInFlight, l.Split.Instances)
		case p.Algorithm == limit.TokenBucket && p.Burst > 0 && part.Burst == 0:
			s.Fault(instances, "use sharing: leased, which moves tokens to instances with demand, or a larger burst", "a burst of %d cannot be split between %d", p.Burst, l.Split.Instances)
		}
	}
	check(&l.Base)
	for i := range l.Overrides {
		check(&l.Overrides[i].Variant)
	}
}

// suppress reads the options of suppressed limits.
func (b *builder) suppress(s *scope, l *Limit) {
	if s.meaningless(l, "suppress", SharingSuppressed) || l.Sharing != SharingSuppressed {
		return
	}
	if l.Base.Policy.Algorithm == limit.Concurrency {
		s.Fault(s.sharing(), "use sharing: leased", "a limit of what is in flight cannot be shared by suppression: a fraction of attempts says nothing about how many are in flight")
		return
	}
	n := s.get("suppress")
	if n == nil || !s.section(n, "suppress", "a map such as {report: 100ms}", suppressKeys) {
		return
	}
	o := &l.Suppress
	if r := n.Get("report"); r != nil {
		if d, ok := s.duration(r); ok {
			if o.Report = d; d < shortestReport || d > longestReport {
				s.Wants(r, fmt.Sprintf("a duration from %v to %v", shortestReport, longestReport), "what is reported less often is admitted above the limit for longer; more often costs messages")
			}
		}
	}
	b.suppressWindow(s, n, o)
	s.either(n.Get("ramp"), &o.Linear, "exact", "linear")
	if f := n.Get("full"); f != nil {
		if times, ok := s.integer(f, 2, 1000); ok {
			if o.Full = float64(times); !o.Linear {
				s.Fault(f, "add ramp: linear, or leave full out", "full has no meaning with ramp: exact")
			}
		}
	}
	s.either(n.Get("draws"), &o.Independent, "balanced", "independent")
}

// suppressWindow reads what is averaged, and over which window.
func (b *builder) suppressWindow(s *scope, n *document.Node, o *Suppress) {
	window, interval, average := n.Get("window"), n.Get("interval"), n.Get("average")
	if s.either(average, &o.Admitted, "attempted", "admitted"); o.Admitted && window == nil {
		s.Fault(average, "add window: 24s and interval: 6s", "what was admitted is averaged over a window")
	}
	switch {
	case window == nil && interval == nil:
		return
	case window == nil:
		s.Fault(interval, "add window, of some intervals", "interval without window")
		return
	case interval == nil:
		s.Fault(window, "add interval, a part of the window", "window without interval")
		return
	}
	w, ok := s.duration(window)
	i, fine := s.duration(interval)
	if !ok || !fine {
		return
	}
	o.Window, o.Interval = w, i
	switch {
	case w > longestWindow:
		s.Wants(window, fmt.Sprintf("a duration of at most %v", longestWindow), "")
	case i > w:
		s.Fault(interval, "make the window some intervals long", "the interval, %v, is longer than the window, %v", i, w)
	case w%i != 0:
		s.Fault(interval, "make the window a multiple of the interval", "a window of %v has no whole number of intervals of %v", w, i)
	case w/i > maxIntervals:
		s.Fault(interval, "use longer intervals", "the window has %d intervals, want at most %d", w/i, maxIntervals)
	case i < max(o.Report, 0) || o.Report == 0 && i < usualReport:
		report := o.Report
		if report == 0 {
			report = usualReport
		}
		s.Fault(interval, "use longer intervals, or report more often", "the interval, %v, is shorter than report, %v", i, report)
	}
}
