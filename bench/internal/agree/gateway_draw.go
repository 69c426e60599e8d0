package agree

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
)

// object is a JSON object of Envoy's configuration.
type object = map[string]any

const typeURL = "type.googleapis.com/envoy."

// The words that actions, rules and requests are drawn from. They are few, so that most requests meet a rule.
var (
	fieldNames  = []string{"x-a", "x-b", "x-c"}
	fieldValues = []string{"a", "b", "ab", "a b", "é"}
	addresses   = []string{"192.0.2.7", "192.0.2.8", "198.51.100.9", "2001:db8::7"}
)

// site is one drawn configuration: a virtual host of Envoy's, and the file of the services for its domain.
type site struct {
	domain  string
	variant int
	host    object
	file    File
	late    bool // some of its calls are made when the response has been sent
}

// chance reports true once in n times.
func chance(rng *rand.Rand, n int) bool { return rng.IntN(n) == 0 }

func pick[T any](rng *rand.Rand, list []T) T { return list[rng.IntN(len(list))] }

// action is an action of Envoy's with the entry that it sends.
type action struct {
	config object
	key    string
	values []string // values that it may send
}

// drawAction draws one of the kinds of actions that Envoy has.
func drawAction(rng *rand.Rand) action {
	named := func(usual string) (string, object) {
		if chance(rng, 2) {
			return usual, object{}
		}
		key := pick(rng, []string{"k", "l", "tenant", "k_l"})
		return key, object{"descriptor_key": key}
	}
	match := func() any {
		return []object{{
			"name": pick(rng, fieldNames), "string_match": pick(rng, []object{{"exact": "a"}, {"prefix": "a"}, {"suffix": "b"}, {"contains": "b"}}),
			"invert_match": chance(rng, 4),
		}}
	}
	switch rng.IntN(11) {
	case 0, 1:
		key, c := named("generic_key")
		value := pick(rng, []string{"one", "two", "a_b"})
		c["descriptor_value"] = value
		return action{object{"generic_key": c}, key, []string{value}}
	case 2, 3, 4:
		key := pick(rng, []string{"k", "l", "user"})
		return action{object{"request_headers": object{"header_name": pick(rng, fieldNames), "descriptor_key": key, "skip_if_absent": chance(rng, 3)}}, key, fieldValues}
	case 5:
		return action{object{"remote_address": object{}}, "remote_address", addresses}
	case 6:
		c := object{"v4_prefix_mask_len": 24, "v6_prefix_mask_len": 64}
		return action{object{"masked_remote_address": c}, "masked_remote_address", []string{"192.0.2.0/24", "198.51.100.0/24", "2001:db8::/64"}}
	case 7:
		key, c := named("header_match")
		value := pick(rng, []string{"yes", "no"})
		c["descriptor_value"], c["headers"], c["expect_match"] = value, match(), !chance(rng, 3)
		return action{object{"header_value_match": c}, key, []string{value}}
	case 8:
		key, c := named("query_match")
		c["descriptor_value"], c["expect_match"] = "yes", !chance(rng, 3)
		c["query_parameters"] = []object{{"name": "q", "string_match": object{"prefix": "a"}}}
		return action{object{"query_parameter_value_match": c}, key, []string{"yes"}}
	case 9:
		if chance(rng, 2) {
			return action{object{"destination_cluster": object{}}, "destination_cluster", []string{"app"}}
		}
		key := pick(rng, []string{"k", "plan"})
		c := object{"descriptor_key": key, "metadata_key": object{"key": "drawn", "path": []object{{"key": pick(rng, []string{"plan", "none"})}}}, "source": "DYNAMIC"}
		if chance(rng, 2) {
			c["default_value"] = "free"
		} else {
			c["skip_if_absent"] = chance(rng, 2)
		}
		return action{object{"metadata": c}, key, []string{"gold", "free"}}
	default:
		key := pick(rng, []string{"k", "path"})
		return action{object{"query_parameters": object{"query_parameter_name": "q", "descriptor_key": key, "skip_if_absent": chance(rng, 2)}}, key, fieldValues}
	}
}

// drawLimits draws rate_limits of a route, and adds rules for their descriptors. Those of RateLimitPerRoute have
// costs and may be asked when the response has been sent, and have no stages.
func drawLimits(rng *rand.Rand, s *site, perRoute bool) (list []object) {
	for range 1 + rng.IntN(3) {
		l := object{}
		var actions []object
		var entries []action
		for range 1 + rng.IntN(3) {
			a := drawAction(rng)
			actions, entries = append(actions, a.config), append(entries, a)
		}
		l["actions"] = actions
		if chance(rng, 8) {
			l["limit"] = object{"dynamic_metadata": object{"metadata_key": object{"key": "drawn", "path": []object{{"key": pick(rng, []string{"three", "none"})}}}}}
		}
		switch {
		case perRoute && chance(rng, 2):
			l["hits_addend"] = pick(rng, []object{{"number": rng.IntN(4)}, {"format": "%REQ(x-cost)%"}})
			if chance(rng, 3) {
				l["apply_on_stream_done"] = true
				s.late = true
			}
		case !perRoute && chance(rng, 5):
			l["stage"] = 1
		}
		list = append(list, l)
		if !chance(rng, 10) {
			s.file.Descriptors = addRule(rng, s.file.Descriptors, entries)
		}
	}
	return list
}

// addRule adds a rule for the entries, below those that are there.
func addRule(rng *rand.Rand, rules []Rule, entries []action) []Rule {
	e := entries[0]
	r := Rule{Key: e.key}
	switch value := pick(rng, e.values); rng.IntN(10) {
	case 0, 1, 2, 3, 4:
		r.Value = value
	case 5:
		r.Value = value[:1] + "*"
		if value[0] >= 0x80 {
			r.Value = "a*"
		}
	}
	at := slices.IndexFunc(rules, func(o Rule) bool { return o.Key == r.Key && o.Value == r.Value })
	if at < 0 {
		at = len(rules)
		rules = append(rules, r)
	}
	one := &rules[at]
	if len(entries) > 1 {
		one.Descriptors = addRule(rng, one.Descriptors, entries[1:])
	}
	if one.Limit == nil && (len(entries) == 1 && !chance(rng, 10) || chance(rng, 6)) {
		one.Limit = &Limit{Unit: pick(rng, []string{"hour", "day", "DAY", "month", "week", "minute", "second"}), Requests: rng.Uint32N(6)}
		if chance(rng, 15) {
			one.Limit = &Limit{Unlimited: true}
		}
		if chance(rng, 3) {
			one.Limit.Name = fmt.Sprintf("n%d", rng.IntN(3))
		}
		if chance(rng, 6) {
			if name := fmt.Sprintf("n%d", rng.IntN(3)); name != one.Limit.Name {
				one.Limit.Replaces = append(one.Limit.Replaces, struct {
					Name string `yaml:"name"`
				}{name})
			}
		}
		one.ShadowMode = chance(rng, 8)
		one.DetailedMetric, one.ValueToMetric = chance(rng, 8), chance(rng, 8)
		one.ShareThreshold = strings.HasSuffix(one.Value, "*") && chance(rng, 2)
	}
	return rules
}

// text writes rules as they stand in a file.
func (f *File) write() {
	var b strings.Builder
	fmt.Fprintf(&b, "domain: %s\ndescriptors:\n", f.Domain)
	writeRules(&b, f.Descriptors, "  ")
	f.Text = []byte(b.String())
}

func writeRules(b *strings.Builder, rules []Rule, indent string) {
	for _, r := range rules {
		fmt.Fprintf(b, "%s- key: %q\n", indent, r.Key)
		if r.Value != "" {
			fmt.Fprintf(b, "%s  value: %q\n", indent, r.Value)
		}
		for name, on := range map[string]bool{
			"shadow_mode": r.ShadowMode, "detailed_metric": r.DetailedMetric, "value_to_metric": r.ValueToMetric, "share_threshold": r.ShareThreshold,
		} {
			if on {
				fmt.Fprintf(b, "%s  %s: true\n", indent, name)
			}
		}
		if l := r.Limit; l != nil {
			fmt.Fprintf(b, "%s  rate_limit:\n", indent)
			if l.Unlimited {
				fmt.Fprintf(b, "%s    unlimited: true\n", indent)
			} else {
				fmt.Fprintf(b, "%s    unit: %s\n%s    requests_per_unit: %d\n", indent, l.Unit, indent, l.Requests)
			}
			if l.Name != "" {
				fmt.Fprintf(b, "%s    name: %s\n", indent, l.Name)
			}
			if len(l.Replaces) > 0 {
				fmt.Fprintf(b, "%s    replaces:\n", indent)
				for _, o := range l.Replaces {
					fmt.Fprintf(b, "%s      - name: %s\n", indent, o.Name)
				}
			}
		}
		if len(r.Descriptors) > 0 {
			fmt.Fprintf(b, "%s  descriptors:\n", indent)
			writeRules(b, r.Descriptors, indent+"    ")
		}
	}
}

// drawSite draws a configuration of that number.
func drawSite(rng *rand.Rand, i, variants int) *site {
	s := &site{domain: fmt.Sprintf("d%d", i), variant: rng.IntN(variants)}
	s.file = File{Name: s.domain + ".yaml", Domain: s.domain}
	route := func(prefix string) object {
		r := object{"cluster": "app"}
		if !chance(rng, 6) {
			r["rate_limits"] = drawLimits(rng, s, false)
		}
		if chance(rng, 3) {
			r["include_vh_rate_limits"] = true
		}
		return object{"match": object{"prefix": prefix}, "route": r}
	}
	s.host = object{"name": s.domain, "domains": []string{s.domain + ".test"}, "routes": []object{route("/r"), route("/")}}
	if chance(rng, 2) {
		s.host["rate_limits"] = drawLimits(rng, s, false)
	}
	per := object{"@type": typeURL + "extensions.filters.http.ratelimit.v3.RateLimitPerRoute", "domain": s.domain}
	if chance(rng, 2) {
		per["vh_rate_limits"] = pick(rng, []string{"OVERRIDE", "INCLUDE", "IGNORE"})
	}
	later := object{}
	for k, v := range per {
		later[k] = v
	}
	if chance(rng, 3) {
		per["rate_limits"] = drawLimits(rng, s, true)
	}
	s.host["typed_per_filter_config"] = object{"stage0": per, "stage1": later}
	s.file.write()
	return s
}

// drawFilter draws the options of the filter, which one listener has for each service.
func drawFilter(rng *rand.Rand) object {
	f := object{"@type": typeURL + "extensions.filters.http.ratelimit.v3.RateLimit", "domain": "unused", "timeout": "10s", "failure_mode_deny": true}
	if !chance(rng, 3) {
		f["enable_x_ratelimit_headers"] = "DRAFT_VERSION_03"
	}
	if chance(rng, 3) {
		f["disable_x_envoy_ratelimited_header"] = true
	}
	if chance(rng, 3) {
		f["rate_limited_status"] = object{"code": pick(rng, []int{402, 503, 403})}
	}
	if chance(rng, 4) {
		f["request_type"] = pick(rng, []string{"external", "internal", "both"})
	}
	if chance(rng, 4) {
		f["response_headers_to_add"] = []object{{"header": object{"key": "x-limited", "value": "yes"}}}
	}
	return f
}

// drawRequest draws a request to a site.
func drawRequest(rng *rand.Rand, s *site) *http.Request {
	path := pick(rng, []string{"/", "/r", "/r/x", "/other"})
	if chance(rng, 2) {
		path += pick(rng, []string{"?q=a", "?q=b", "?q=", "?p=1&q=ab"})
	}
	r, err := http.NewRequest(pick(rng, []string{"GET", "POST"}), "http://"+s.domain+".test"+path, nil)
	if err != nil {
		panic(err) // the parts are constants
	}
	for _, name := range fieldNames {
		for range []int{0, 0, 1, 1, 1, 1, 1, 2}[rng.IntN(8)] {
			r.Header.Add(name, pick(rng, append(fieldValues, "")))
		}
	}
	r.Header.Set("X-Forwarded-For", pick(rng, addresses))
	if !chance(rng, 4) {
		r.Header.Set("X-Cost", pick(rng, []string{"0", "1", "2", "5", "x"}))
	}
	return r
}
