package rules

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
)

// Sharing says how instances share one limit. The zero value is SharingExact.
type Sharing uint8

// The ways to share.
const (
	SharingExact      Sharing = iota // every decision at the store
	SharingLeased                    // local decisions on parts that follow the load
	SharingSplit                     // local decisions on parts that do not
	SharingSuppressed                // local decisions; all refuse a fraction once there is too much
)

var sharingNames = [...]string{
	SharingExact: "exact", SharingLeased: "leased", SharingSplit: "split", SharingSuppressed: "suppressed",
}

// sharingWays say in a sentence how a limit is shared.
var sharingWays = [...]string{
	SharingExact: "exactly", SharingLeased: "by leases", SharingSplit: "by splitting", SharingSuppressed: "by suppression",
}

// String returns the word used in limit files.
func (s Sharing) String() string {
	if int(s) < len(sharingNames) {
		return sharingNames[s]
	}
	return "unknown"
}

// Local says whether instances decide by themselves, and a coordinator tells them how
// much they may.
func (s Sharing) Local() bool {
	return s == SharingLeased || s == SharingSplit || s == SharingSuppressed
}

// Split says which part of a limit this configuration has, when the whole is split
// between several services that do not know of each other. The zero value is the whole.
// The part is divided equally between the instances of the service, by their weights.
type Split struct {
	// Instances is the sum of the weights of all services, and Weight that of this
	// one; 0 = 1.
	Instances, Weight int64
}

// maxInstances bounds what a limit is split between. Not more: a rate of a thousand
// million a second would be one token in a quarter of an hour for each.
const maxInstances = 1 << 20

// Part returns the part of a policy that this service has: the rate exactly, a burst and
// places rounded down.
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
	hi, lo := bits.Mul64(uint64(max(n, 0)), uint64(part))
	q, _ := bits.Div64(hi, lo, uint64(of))
	return int64(q)
}

// Suppress says how a limit is suppressed. The zero value has the defaults.
type Suppress struct {
	// Report is how often an instance reports at most; 0 = 100 ms.
	Report time.Duration
	// Window and Interval say that attempts are averaged over a window of intervals;
	// both 0 = since the load has changed last.
	Window, Interval time.Duration
	// Linear refuses nothing at the limit and everything at Full times the limit, 0 =
	// 3; otherwise 1 - limit/attempted is refused.
	Linear bool
	Full   float64
	// Admitted averages what was admitted, and not what was attempted.
	Admitted bool
	// Independent draws each request by itself.
	Independent bool
}

// The bounds of Suppress, which are those of package share.
const (
	usualReport    = 100 * time.Millisecond
	shortestReport = 10 * time.Millisecond
	longestReport  = time.Minute
	longestWindow  = time.Hour
	maxIntervals   = 64
)

// split reads what is only for limits that are split.
func (b *builder) split(s *scope, l *Limit) {
	if n := s.limit.Get("split"); n != nil && l.Sharing != SharingSplit {
		s.Fault(n, "add sharing: split, or leave split out", "split has no meaning with sharing: %v", l.Sharing)
		return
	}
	n := s.get("split")
	if n == nil || l.Sharing != SharingSplit {
		return
	}
	if n.Kind != document.Map {
		s.Wants(n, "a map such as {instances: 4}", "")
		return
	}
	s.known(n, "split", splitKeys)
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
			s.Fault(instances, "use sharing: leased, which moves places to where they are wanted", "%d places cannot be split between %d", p.MaxInFlight, l.Split.Instances)
		case p.Algorithm == limit.TokenBucket && p.Burst > 0 && part.Burst == 0:
			s.Fault(instances, "use sharing: leased, which moves tokens to where they are wanted, or a larger burst", "a burst of %d cannot be split between %d", p.Burst, l.Split.Instances)
		}
	}
	check(&l.Base)
	for i := range l.Overrides {
		check(&l.Overrides[i].Variant)
	}
}

// suppress reads what is only for limits that are suppressed.
func (b *builder) suppress(s *scope, l *Limit) {
	if n := s.limit.Get("suppress"); n != nil && l.Sharing != SharingSuppressed {
		s.Fault(n, "add sharing: suppressed, or leave suppress out", "suppress has no meaning with sharing: %v", l.Sharing)
	}
	if l.Sharing != SharingSuppressed {
		return
	}
	if l.Base.Policy.Algorithm == limit.Concurrency {
		at := s.limit.Get("sharing")
		if at == nil {
			at = s.limit
		}
		s.Fault(at, "use sharing: leased", "a limit of what is in flight cannot be shared by suppression: a fraction of attempts says nothing about how many are in flight")
		return
	}
	n := s.get("suppress")
	if n == nil {
		return
	}
	if n.Kind != document.Map {
		s.Wants(n, "a map such as {report: 100ms}", "")
		return
	}
	s.known(n, "suppress", suppressKeys)
	o := &l.Suppress
	if r := n.Get("report"); r != nil {
		if d, ok := s.duration(r); ok {
			if o.Report = d; d < shortestReport || d > longestReport {
				s.Wants(r, fmt.Sprintf("a duration from %v to %v", shortestReport, longestReport), "what is reported less often is admitted above the limit for longer; more often costs messages")
			}
		}
	}
	b.suppressWindow(s, n, o)
	if r := n.Get("ramp"); r != nil {
		if i, ok := s.Word(r, "exact", "linear"); ok {
			o.Linear = i == 1
		}
	}
	if f := n.Get("full"); f != nil {
		if times, ok := s.integer(f, 2, 1000); ok {
			if o.Full = float64(times); !o.Linear {
				s.Fault(f, "add ramp: linear, or leave full out", "full has no meaning with ramp: exact")
			}
		}
	}
	if d := n.Get("draws"); d != nil {
		if i, ok := s.Word(d, "balanced", "independent"); ok {
			o.Independent = i == 1
		}
	}
}

// suppressWindow reads over what is averaged.
func (b *builder) suppressWindow(s *scope, n *document.Node, o *Suppress) {
	window, interval, average := n.Get("window"), n.Get("interval"), n.Get("average")
	if average != nil {
		if i, ok := s.Word(average, "attempted", "admitted"); ok {
			if o.Admitted = i == 1; o.Admitted && window == nil {
				s.Fault(average, "add window: 24s and interval: 6s", "what was admitted is averaged over a window")
			}
		}
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
