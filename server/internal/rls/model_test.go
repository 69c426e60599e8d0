package rls

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"
)

// The model is Envoy's rate limit service as its documentation tells it, with plain
// maps, text keys and one request at a time. It shares nothing with what it is held
// against.

// modelRule is a descriptor of a file.
type modelRule struct {
	Key         string         `json:"key"`
	Value       string         `json:"value,omitempty"`
	Limit       *modelLimit    `json:"rate_limit,omitempty"`
	Descriptors []*modelRule   `json:"descriptors,omitempty"`
	Shadow      bool           `json:"shadow_mode,omitempty"`
	Quota       bool           `json:"quota_mode,omitempty"`
	Detailed    bool           `json:"detailed_metric,omitempty"`
	ValueMetric bool           `json:"value_to_metric,omitempty"`
	Share       bool           `json:"share_threshold,omitempty"`
	Metadata    map[string]any `json:"metadata,omitempty"`

	path string // domain.key_value.key_value
}

type modelLimit struct {
	Unit      string              `json:"unit,omitempty"`
	Requests  uint32              `json:"requests_per_unit,omitempty"`
	Unlimited bool                `json:"unlimited,omitempty"`
	Name      string              `json:"name,omitempty"`
	Replaces  []map[string]string `json:"replaces,omitempty"`
}

// text is the file: JSON is YAML.
func (r *modelRule) text(domain string) string {
	b, err := json.Marshal(map[string]any{"domain": domain, "descriptors": r.Descriptors})
	if err != nil {
		panic(err)
	}
	return string(b)
}

// model is the service.
type model struct {
	domains       map[string]*modelRule
	counts        map[string]uint64
	near          map[string]uint64 // by path: hits admitted above 0.8 of the limit
	quota, shadow bool              // for all
	admittedOnly  bool              // count admitted requests only
}

var modelUnits = map[string]int64{
	"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 7 * 86400, "month": 30 * 86400, "year": 365 * 86400,
}

// met is what a descriptor of a request meets.
type met struct {
	rule          *modelRule // nil for an override
	name, unit    string
	requests      uint32
	counter       string
	shadow, quota bool
	unlimited     bool
	replaces      []map[string]string
}

func (m *model) find(domain string, d *ratelimitv3.RateLimitDescriptor) *met {
	root := m.domains[domain]
	if root == nil {
		return nil
	}
	if o := d.Limit; o != nil {
		counter := domain + " override"
		for _, e := range d.Entries {
			counter += fmt.Sprintf(" %s=%s", e.Key, e.Value)
		}
		return &met{unit: strings.ToLower(o.Unit.String()), requests: o.RequestsPerUnit, counter: counter}
	}
	counter := domain
	rule := root
	for _, e := range d.Entries {
		var next *modelRule
		pick := func(fits func(r *modelRule) bool) {
			for _, r := range rule.Descriptors {
				if next == nil && fits(r) {
					next = r
				}
			}
		}
		pick(func(r *modelRule) bool { return r.Value != "" && r.Key == e.Key && r.Value == e.Value })
		pick(func(r *modelRule) bool {
			pattern := r.Key
			if r.Value != "" {
				pattern += "_" + r.Value
			}
			return strings.Contains(pattern, "*") && glob(pattern, e.Key+"_"+e.Value)
		})
		pick(func(r *modelRule) bool { return r.Value == "" && r.Key == e.Key })
		if next == nil {
			return nil
		}
		rule = next
		value := e.Value
		if rule.Share {
			value = rule.Value
		}
		counter += fmt.Sprintf(" %s=%s", e.Key, value)
	}
	if rule.Limit == nil {
		return nil
	}
	return &met{
		rule: rule, name: rule.Limit.Name, unit: rule.Limit.Unit, requests: rule.Limit.Requests, counter: counter,
		shadow: rule.Shadow, quota: rule.Quota, unlimited: rule.Limit.Unlimited, replaces: rule.Limit.Replaces,
	}
}

// glob matches by recursion on the first character.
func glob(pattern, s string) bool {
	switch {
	case pattern == "":
		return s == ""
	case pattern[0] == '*':
		return glob(pattern[1:], s) || s != "" && glob(pattern, s[1:])
	default:
		return s != "" && s[0] == pattern[0] && glob(pattern[1:], s[1:])
	}
}

// answer decides one request at a time in Unix seconds.
func (m *model) answer(req *pb.RateLimitRequest, now int64) *modelAnswer {
	all := make([]*met, len(req.Descriptors))
	replaced := map[string]bool{}
	for i, d := range req.Descriptors {
		all[i] = m.find(req.Domain, d)
		if all[i] != nil {
			for _, r := range all[i].replaces {
				replaced[r["name"]] = true
			}
		}
	}
	for i, l := range all {
		if l != nil && !l.unlimited && l.name != "" && replaced[l.name] {
			all[i] = nil
		}
	}
	a := &modelAnswer{}
	refused, quotas, quotasOver := false, 0, 0
	for i, l := range all {
		st := &pb.RateLimitResponse_DescriptorStatus{Code: pb.RateLimitResponse_OK}
		a.statuses = append(a.statuses, st)
		over := false
		switch {
		case l != nil && l.unlimited:
			st.LimitRemaining = math.MaxUint32
		case l != nil:
			over = m.status(st, l, hitsOf(req, i), now)
		}
		if quota := m.quota || l != nil && l.quota; quota && (l == nil || !l.unlimited) {
			quotas++
			if over {
				quotasOver++
			}
		} else if over {
			refused = true
			a.last = i + 1
		}
	}
	refused = refused || quotas > 0 && quotas == quotasOver
	m.count(a, all, req, now, refused)
	a.code = pb.RateLimitResponse_OK
	if refused && !m.shadow {
		a.code = pb.RateLimitResponse_OVER_LIMIT
	}
	a.metadata = m.metadata(req, all, a.statuses)
	return a
}

// status evaluates one limit as if the request were admitted, and reports whether it
// is over and not a shadow.
func (m *model) status(st *pb.RateLimitResponse_DescriptorStatus, l *met, hits uint64, now int64) (over bool) {
	length := modelUnits[l.unit]
	st.CurrentLimit = &pb.RateLimitResponse_RateLimit{
		Name: l.name, RequestsPerUnit: l.requests,
		Unit: pb.RateLimitResponse_RateLimit_Unit(pb.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(l.unit)]),
	}
	st.DurationUntilReset = &durationpb.Duration{Seconds: length - now%length}
	after := m.counts[window(l, now)] + hits
	if after <= uint64(l.requests) {
		st.LimitRemaining = l.requests - uint32(after)
		return false
	}
	if l.shadow {
		return false
	}
	st.Code = pb.RateLimitResponse_OVER_LIMIT
	return true
}

func window(l *met, now int64) string {
	length := modelUnits[l.unit]
	return fmt.Sprintf("%s %s %d", l.counter, l.unit, now/length)
}

// count charges the counters. A refused request is counted as well, unless the model
// is told otherwise; then the statuses of limits that it fits say what is left
// without it.
func (m *model) count(a *modelAnswer, all []*met, req *pb.RateLimitRequest, now int64, refused bool) {
	for i, l := range all {
		if l == nil || l.unlimited {
			continue
		}
		at, hits := window(l, now), hitsOf(req, i)
		before := m.counts[at]
		fits := before+hits <= uint64(l.requests)
		if m.admittedOnly && refused && fits {
			a.statuses[i].LimitRemaining = l.requests - uint32(before)
		}
		if m.admittedOnly && (refused || !fits) {
			continue
		}
		m.counts[at] = before + hits
		if near := uint64(math.Floor(float64(float32(l.requests) * 0.8))); fits && l.rule != nil && before+hits > near {
			m.near[l.rule.path] += before + hits - max(near, before)
		}
	}
}

// metadata has the metadata of all rules that were evaluated and are not over.
func (m *model) metadata(req *pb.RateLimitRequest, all []*met, statuses []*pb.RateLimitResponse_DescriptorStatus) map[string]any {
	out := map[string]any{"domain": req.Domain}
	descriptors := []any{}
	merged := map[string]any{}
	for i, d := range req.Descriptors {
		entries := []any{}
		for _, e := range d.Entries {
			entries = append(entries, e.Key+"="+e.Value)
		}
		one := map[string]any{"entries": entries}
		if d.Limit != nil {
			one["limit"] = strings.Join(strings.Fields(d.Limit.String()), " ")
		}
		if d.HitsAddend != nil {
			one["hitsAddend"] = float64(d.HitsAddend.Value)
		}
		descriptors = append(descriptors, one)
		if l := all[i]; l != nil && l.rule != nil && !l.unlimited && statuses[i].Code == pb.RateLimitResponse_OK {
			merge(merged, l.rule.Metadata)
		}
	}
	out["descriptors"] = descriptors
	if req.HitsAddend != 0 {
		out["hitsAddend"] = float64(req.HitsAddend)
	}
	if len(merged) > 0 {
		out["metadata"] = merged
	}
	return out
}

func merge(into, from map[string]any) {
	for k, v := range from {
		a, isMap := into[k].(map[string]any)
		b, both := v.(map[string]any)
		switch {
		case isMap && both:
			merge(a, b)
		case into[k] == nil && both:
			c := map[string]any{}
			merge(c, b)
			into[k] = c
		case into[k] == nil:
			into[k] = v
		}
	}
}

func hitsOf(req *pb.RateLimitRequest, i int) uint64 {
	if h := req.Descriptors[i].HitsAddend; h != nil {
		return h.Value
	}
	return uint64(max(1, req.HitsAddend))
}

// modelAnswer is what the model says.
type modelAnswer struct {
	code     pb.RateLimitResponse_Code
	statuses []*pb.RateLimitResponse_DescriptorStatus
	last     int // 1 + the last descriptor over a limit that is no quota; 0 = none
	metadata map[string]any
}

// headers are the three values: of the last limit that is over and no quota, else of
// the least remaining, the first of several.
func (a *modelAnswer) headers() []string {
	var chosen *pb.RateLimitResponse_DescriptorStatus
	if a.last > 0 {
		chosen = a.statuses[a.last-1]
	} else {
		for _, st := range a.statuses {
			if st.CurrentLimit != nil && (chosen == nil || st.LimitRemaining < chosen.LimitRemaining) {
				chosen = st
			}
		}
	}
	if chosen == nil {
		return nil
	}
	return []string{
		fmt.Sprint("RateLimit-Limit=", chosen.CurrentLimit.RequestsPerUnit),
		fmt.Sprint("RateLimit-Remaining=", chosen.LimitRemaining),
		fmt.Sprint("RateLimit-Reset=", chosen.DurationUntilReset.Seconds),
	}
}

// drawing draws files and requests. Names are few, so that they meet.
type drawing struct {
	*rand.Rand
	units []string
}

func pickOf[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

func (r drawing) one(in int) bool { return r.IntN(in) == 0 }

// rules draws the descriptors below a path.
func (r drawing) rules(path string, depth int) []*modelRule {
	var out []*modelRule
	seen := map[string]bool{}
	for range 1 + r.IntN(6) {
		rule := &modelRule{
			Key:    pickOf(r.Rand, "a", "b", "c", "c*"),
			Value:  pickOf(r.Rand, "", "", "x", "xy", "x*", "*y", "*", "x*y*"),
			Shadow: r.one(5), Quota: r.one(4), Detailed: r.one(6), ValueMetric: r.one(6),
		}
		if rule.Key == "c*" {
			rule.Value = pickOf(r.Rand, "", "x")
		}
		composite := rule.Key
		if rule.Value != "" {
			composite += "_" + rule.Value
		}
		if seen[composite] {
			continue
		}
		seen[composite] = true
		rule.path = path + "." + composite
		rule.Share = strings.Contains(rule.Value, "*") && r.one(3)
		if !r.one(7) {
			rule.Limit = r.limit()
		}
		if r.one(2) {
			rule.Metadata = map[string]any{pickOf(r.Rand, "tier", "team"): pickOf[any](r.Rand, "gold", 2.0, true,
				map[string]any{"p": composite}, map[string]any{"q": composite, "p": map[string]any{composite: "z"}})}
		}
		if depth < 3 && r.one(3) {
			rule.Descriptors = r.rules(rule.path, depth+1)
		}
		out = append(out, rule)
	}
	return out
}

func (r drawing) limit() *modelLimit {
	l := &modelLimit{Name: pickOf(r.Rand, "", "", "n1", "n2", "n3")}
	for _, n := range []string{"n1", "n2", "n3"} {
		if n != l.Name && r.one(8) {
			l.Replaces = append(l.Replaces, map[string]string{"name": n})
		}
	}
	if l.Unlimited = r.one(9); !l.Unlimited {
		l.Unit = pickOf(r.Rand, r.units...)
		l.Requests = uint32(pickOf(r.Rand, 0, 1, 2, 3, 5, 10, 20, 1000))
	}
	return l
}
