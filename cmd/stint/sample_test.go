package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
)

// The line that is printed at the start meets a limit of the file, whatever the limits
// match.
func TestTryLineMeetsALimit(t *testing.T) {
	for _, yaml := range []string{
		"limits: [{name: a, rate: 1/s}]",
		"limits: [{name: a, match: {method: POST, path: /login}, key: [ip], rate: 1/s}]",
		"limits: [{name: a, match: {path: /api/*}, key: [user], rate: 1/s}]",
		"limits: [{name: a, when: user == 'me', rate: 1/s}, {name: b, match: {host: '*.example'}, rate: 1/s}]",
		"limits: [{name: free, unlimited: true}, {name: b, match: {path: \"/it's\"}, rate: 1/s}]",
		"domain: d\ndescriptors: [{key: k}, {key: m, value: v*, rate_limit: {unit: day, requests_per_unit: 1}}]",
	} {
		set, err := rules.Parse("f", []byte(yaml))
		if err != nil {
			t.Fatal(err)
		}
		line := tryLine(set, "", "http://127.0.0.1:1")
		_, text, _ := strings.Cut(line, "-d '")
		text, to, _ := strings.Cut(text, "' ")
		if to != "http://127.0.0.1:1/v1/take" {
			t.Errorf("%s: %s", yaml, line)
		}
		var q struct {
			Attributes  map[string]string
			Domain      string
			Descriptors []struct{ Entries []struct{ Key, Value string } }
		}
		if err := json.Unmarshal([]byte(text), &q); err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		var attrs []limit.Attribute
		for name, value := range q.Attributes {
			attrs = append(attrs, limit.Attribute{Name: name, Value: value})
		}
		for _, d := range q.Descriptors {
			for _, e := range d.Entries {
				attrs = append(attrs, limit.Attribute{Name: e.Key, Value: e.Value})
			}
		}
		found, _ := set.Match(q.Domain, attrs, nil, nil)
		met := false
		for _, m := range found {
			met = met || !m.Variant.Policy.Unlimited
		}
		if !met {
			t.Errorf("%s: %s meets no limit", yaml, line)
		}
	}
}
