package rules

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
)

// defaultTimeout is how long a permit in flight is held if its holder never finishes, unless
// timeout says otherwise. Not shorter: most requests, uploads included, end within it. Not
// longer: the permits of a crashed caller are missing that long.
const defaultTimeout = time.Minute

var (
	buckets    = []limit.Algorithm{limit.TokenBucket, limit.LeakyBucket}
	windows    = []limit.Algorithm{limit.FixedWindow, limit.SlidingWindowLog, limit.SlidingWindowCounter}
	rising     = []limit.Algorithm{limit.RisingWindow}
	semaphores = []limit.Algorithm{limit.Concurrency}
)

// policyKeys are the keys that only some algorithms have.
var policyKeys = []struct {
	key string
	of  []limit.Algorithm
}{
	{"rate", slices.Concat(buckets, windows, rising)},
	{"burst", buckets},
	{"rise", rising},
	{"start", rising},
	{"max_in_flight", semaphores},
	{"timeout", semaphores},
	{"align", []limit.Algorithm{limit.FixedWindow}},
	{"timezone", []limit.Algorithm{limit.FixedWindow}},
	{"hard", windows},
	{"rounding", []limit.Algorithm{limit.SlidingWindowCounter}},
	{"count_refused", slices.Concat(buckets, windows)},
	{"charge", slices.Concat(buckets, windows)},
	{"share", []limit.Algorithm{limit.TokenBucket}},
}

// algorithm reads the algorithm of the limit; its overrides share it.
func (s *scope) algorithm() (a limit.Algorithm) {
	n := s.get("algorithm")
	if n != nil && n.Kind == document.Text {
		if hint := foreignAlgorithm(n.Text); hint != "" {
			s.Wants(n, "one of "+strings.Join(limit.AlgorithmNames(), ", "), hint)
			for i, name := range limit.AlgorithmNames() { // what is said of other keys is about the one that is meant
				if strings.Contains(hint, "write "+name) {
					a = limit.Algorithm(i)
				}
			}
			return a
		}
	}
	choice(s.file, n, &a, limit.AlgorithmNames()...)
	return a
}

// policy reads the policy of the limit, or of the override in the scope. It
// reports false after a fault.
func (s *scope) policy(algorithm limit.Algorithm) (limit.Policy, bool) {
	before := s.Faults.Count()
	p := limit.Policy{Algorithm: algorithm}
	from := s.misplaced(algorithm)
	if s.unlimited() {
		p.Unlimited = true
		s.unlimitedWithMore()
	} else {
		s.amounts(&p, from)
	}
	s.calendar(&p, from)
	choice(s.file, from("rounding"), &p.Rounding, "up", "down", "nearest")
	if n := from("count_refused"); n != nil {
		p.CountRefused, _ = s.boolean(n)
	}
	if s.chargedAfter(from("charge")) {
		p.CountRefused = true
	}
	if s.Faults.Count() > before {
		return p, false
	}
	if err := p.Validate(); err != nil {
		at := s.at()
		if n := at.Get("rate"); n != nil {
			at = n
		} else if n := at.Get("max_in_flight"); n != nil {
			at = n
		}
		s.Fault(at, "", "%s", trimmed(err))
		return p, false
	}
	return p, true
}

// misplaced reports keys that the algorithm does not have, and returns a lookup of those that it
// has. An override with a rate does not inherit the burst, which was chosen for the limit's own
// rate.
func (s *scope) misplaced(algorithm limit.Algorithm) func(key string) *document.Node {
	for _, k := range policyKeys {
		if slices.Contains(k.of, algorithm) {
			continue
		}
		at := s.at()
		for _, f := range at.Fields {
			if f.Key.Text != k.key {
				continue
			}
			names := make([]string, len(k.of))
			for i := range k.of {
				names[i] = k.of[i].String()
			}
			hint := "it belongs to " + strings.Join(names, ", ")
			if len(names) == 1 {
				hint = "leave it out, or add algorithm: " + names[0]
			}
			s.Fault(f.Key, hint, "%s has no meaning with algorithm %v", k.key, algorithm)
		}
	}
	return func(key string) *document.Node {
		for _, k := range policyKeys {
			if k.key == key && !slices.Contains(k.of, algorithm) {
				return nil
			}
		}
		if n := s.override.Get(key); n != nil {
			return n
		}
		if key == "burst" && s.override.Get("rate") != nil {
			return nil
		}
		return s.get(key)
	}
}

// unlimited reads unlimited. An override with an amount of its own is limited, even if its limit
// is not.
func (s *scope) unlimited() bool {
	for _, at := range [...]*document.Node{s.override, s.limit, s.defaults} {
		if n := at.Get("unlimited"); n != nil {
			v, _ := s.boolean(n)
			return v
		}
		if at.Get("rate") != nil || at.Get("max_in_flight") != nil {
			return false
		}
	}
	return false
}

func (s *scope) unlimitedWithMore() {
	at := s.at()
	for _, key := range []string{"rate", "burst", "max_in_flight"} {
		if n := at.Get(key); n != nil && at.Get("unlimited") != nil {
			s.Fault(n, "leave one out", "unlimited and %s exclude each other", key)
		}
	}
}

func (s *scope) amounts(p *limit.Policy, from func(string) *document.Node) {
	at := s.at()
	if p.Algorithm == limit.Concurrency {
		p.Timeout = defaultTimeout
		if n := from("max_in_flight"); n == nil {
			s.Fault(at, "add max_in_flight: 10", "a concurrency limit has no max_in_flight")
		} else {
			p.MaxInFlight, _ = s.integer(n, 0, limit.MaxLogCount)
		}
		if n := from("timeout"); n != nil {
			p.Timeout, _ = s.duration(n)
		}
		return
	}
	n := from("rate")
	if n == nil && (s.get("max_in_flight") != nil || s.get("concurrency") != nil) {
		s.Fault(at, "add algorithm: concurrency, and max_in_flight: 5", "%s has no rate, and no algorithm whose requests are counted while they run", s.subject())
		return
	}
	if n == nil {
		hint := "add rate: 100/s, or unlimited: true"
		if stated := foreignRate(at, 0); stated != "" {
			hint = "write " + stated
		}
		s.Fault(at, hint, "%s has no rate", s.subject())
		return
	}
	p.Rate, _ = s.rate(n)
	// The default burst of a token bucket is the count as it is written, so that 100/minute admits 100 at once and
	// 0.0167/s one. What a window holds at once is the same. A leaky bucket without burst has no queue: it refuses requests that
	// arrive faster than the rate, as nginx does.
	if p.Algorithm == limit.TokenBucket {
		p.Burst = writtenCount(n)
	} else if p.Algorithm != limit.LeakyBucket {
		p.Rate = p.Rate.WithCount(writtenCount(n))
	}
	if p.Algorithm == limit.RisingWindow {
		s.rise(p, from)
	}
	if n := from("burst"); n != nil {
		burst, ok := s.integer(n, 0, limit.MaxCount)
		p.Burst = burst
		if ok && burst == 0 && p.Rate.Count > 0 && p.Algorithm == limit.TokenBucket {
			s.Fault(n, "leave it out, or write rate: 0/s to refuse everything", "a token bucket with burst 0 admits nothing")
		}
	}
}

// writtenCount is the count of a rate as it is written, rounded up; 0 = the rate has a fault.
func writtenCount(n *document.Node) int64 {
	count, err := limit.DefaultBurst(n.Text)
	if err != nil {
		return 0
	}
	return count
}

// rise reads how fast the rate may rise. Windows of a period other than a second are for limits that
// are declared by it: a rise of 100 in a rate per minute is 100 per minute.
func (s *scope) rise(p *limit.Policy, from func(string) *document.Node) {
	n := from("rise")
	if n == nil {
		s.Fault(s.at(), "add rise: 100, how much more a window admits than the one before", "%s is a rising_window and has no rise", s.subject())
		return
	}
	p.Rise, _ = s.integer(n, 1, limit.MaxCount)
	// The default is the rise: an idle key is as one of which the window before was empty.
	p.Start = p.Rise
	if n := from("start"); n != nil {
		p.Start, _ = s.integer(n, 0, limit.MaxCount)
	}
}

func (s *scope) subject() string {
	if s.override != nil {
		return "an override"
	}
	if n := s.limit.Get("name"); n != nil && n.Text != "" {
		return fmt.Sprintf("limit %q", n.Text)
	}
	return "a limit"
}
