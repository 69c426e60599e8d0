package agree

import (
	"fmt"
	"strings"
	"time"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
)

// seconds are the lengths of windows, by the names of units in lower case.
var seconds = map[string]int64{
	"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400, "month": 30 * 86400, "year": 365 * 86400,
}

// meeting is the counter that a descriptor meets in each service. It is known from
// the rules alone, so that a difference can be explained without asking either.
type meeting struct {
	there string // its key in envoyproxy/ratelimit; empty = none
	here  string // what stint tells counters apart by
	unit  int64  // seconds
	// within says that a rule was found by a star that does not end its value.
	within bool
}

// meets returns the counter of a descriptor at a time.
func (s Set) meets(domain string, d *common.RateLimitDescriptor, now time.Time) (m meeting) {
	level := s.domains[domain]
	if level == nil {
		return m
	}
	if d.Limit != nil {
		m.unit = seconds[strings.ToLower(d.Limit.Unit.String())]
		m.here = "limit of the request, " + d.Limit.Unit.String()
		m.key(domain, d, nil, now)
		return m
	}
	var rule *Rule
	shared := make([]string, len(d.Entries))
	for i, e := range d.Entries {
		rule = find(level, e.Key, e.Value)
		if rule == nil {
			return m
		}
		if strings.Contains(rule.Value, "*") && rule.Value != e.Value {
			m.within = m.within || strings.Index(rule.Value, "*") < len(rule.Value)-1
			if rule.ShareThreshold {
				shared[i] = rule.Value
			}
		}
		level = rule.Descriptors
	}
	if rule == nil || rule.Limit == nil || rule.Limit.Unlimited {
		return m
	}
	m.unit = seconds[strings.ToLower(rule.Limit.Unit)]
	m.here = fmt.Sprintf("rule %p", rule)
	m.key(domain, d, shared, now)
	return m
}

// key writes both keys: there, all is joined by underscores, and the unit shows in
// the start of the window alone.
func (m *meeting) key(domain string, d *common.RateLimitDescriptor, shared []string, now time.Time) {
	m.there = domain + "_"
	for i, e := range d.Entries {
		value := e.Value
		if shared != nil && shared[i] != "" {
			value = shared[i]
		}
		m.there += e.Key + "_" + value + "_"
		m.here += fmt.Sprintf(", %q %q", e.Key, value)
	}
	m.there += fmt.Sprint(now.Unix() / m.unit * m.unit)
	m.here += fmt.Sprintf(", %d", now.Unix()/m.unit)
}

// find returns the rule of one level for an entry: the exact value, then values with
// a star in the order of the file, then the key alone.
func find(level []Rule, key, value string) *Rule {
	for i := range level {
		if level[i].Key == key && level[i].Value != "" && level[i].Value == value {
			return &level[i]
		}
	}
	for i := range level {
		if level[i].Key == key && strings.Contains(level[i].Value, "*") && matches(level[i].Value, value) {
			return &level[i]
		}
	}
	for i := range level {
		if level[i].Key == key && level[i].Value == "" {
			return &level[i]
		}
	}
	return nil
}

// matches says whether a value has the parts between the stars, in their order.
func matches(pattern, value string) bool {
	parts := strings.Split(pattern, "*")
	last := len(parts) - 1
	rest, ok := strings.CutPrefix(value, parts[0])
	if !ok || len(rest) < len(parts[last]) || !strings.HasSuffix(rest, parts[last]) {
		return false
	}
	rest = strings.TrimSuffix(rest, parts[last])
	for _, p := range parts[1:last] {
		i := strings.Index(rest, p)
		if i < 0 {
			return false
		}
		rest = rest[i+len(p):]
	}
	return true
}
