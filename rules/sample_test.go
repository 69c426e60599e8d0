package rules

import (
	"testing"
)

// A sample meets its limit, whatever the match wants; where none is found that is said.
func TestSample(t *testing.T) {
	s := mustParse(t, `limits:
  - {name: plain, rate: 1/s}
  - {name: keyed, key: [ip, user, "header:x-key"], rate: 1/s}
  - {name: match, match: {method: [POST, PUT], path: /api/*/items*, host: "*.example.com"}, key: [path], rate: 1/s}
  - {name: net, match: {ip: 10.0.0.0/8}, rate: 1/s}
  - {name: address, match: {ip: 10.0.0.1}, key: [ip], rate: 1/s}
  - {name: v6, match: {ip: "2001:db8::/32"}, rate: 1/s}
  - {name: size, when: request.size > 1000, rate: 1/s}
  - {name: reject, key: [tenant], missing: reject, rate: 1/s}
  - {name: hopeless, when: user == "somebody", rate: 1/s}
`)
	for _, l := range s.Limits() {
		request, ok := s.Sample(l)
		if ok == (l.Name == "hopeless") {
			t.Errorf("%s: %v %v", l.Name, request, ok)
		}
		if ok && s.WhyNot(l, "", request) != "" {
			t.Errorf("%s: %v: %s", l.Name, request, s.WhyNot(l, "", request))
		}
	}
	e := mustParse(t, `domain: edge
descriptors:
  - {key: remote_address, rate_limit: {unit: second, requests_per_unit: 1}}
  - key: path
    value: /api/*
    descriptors:
      - {key: user, rate_limit: {unit: second, requests_per_unit: 1}}
`)
	for _, l := range e.Limits() {
		if request, ok := e.Sample(l); !ok {
			t.Errorf("%s: %v", l.Name, request)
		}
	}
}
