package rules

import (
	"reflect"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
)

const envoyFile = `
domain: test-domain
descriptors:
  - key: key1
    value: value1
    rate_limit: {unit: second, requests_per_unit: 1}
    descriptors:
      - key: subkey1
        rate_limit: {unit: second, requests_per_unit: 5}
      - key: subkey1
        value: subvalue1
        rate_limit: {unit: second, requests_per_unit: 10}
  - key: key2
    rate_limit: {unit: MINUTE, requests_per_unit: 20}
  - key: key2
    value: value2
    rate_limit: {unit: minute, requests_per_unit: 30}
  - key: key2
    value: value3
  - key: wild
    value: foo*
    rate_limit: {unit: hour, requests_per_unit: 1}
  - key: wild
    value: "f*r"
    rate_limit: {unit: hour, requests_per_unit: 2}
  - key: wild
    value: foobar
    rate_limit: {unit: hour, requests_per_unit: 3}
  - key: wild
    rate_limit: {unit: hour, requests_per_unit: 4}
  - key: "star*key"
    rate_limit: {unit: hour, requests_per_unit: 5}
  - key: shared
    value: /a/*
    share_threshold: true
    rate_limit: {unit: day, requests_per_unit: 6}
    descriptors:
      - key: user
        rate_limit: {unit: day, requests_per_unit: 7}
  - key: parent
    descriptors:
      - key: child
        rate_limit: {unit: week, requests_per_unit: 8}
  - key: shadow
    shadow_mode: true
    rate_limit: {unit: month, requests_per_unit: 9}
  - key: free
    rate_limit: {unlimited: true}
  - key: a
    value: b_c
    rate_limit: {unit: year, requests_per_unit: 0}
  - key: a_b
    value: c
    rate_limit: {unit: year, requests_per_unit: 11}
`

func TestEnvoyMatching(t *testing.T) {
	s := mustParse(t, envoyFile)
	const domain = "test-domain"
	for _, tt := range []struct{ domain, descriptor, want string }{
		{domain, "", ""},
		{"other", "key1=value1", ""},
		{"", "key1=value1", ""},
		{domain, "key1=value1", "1/s"},
		{domain, "key1=value1 subkey1=x", "5/s"},
		{domain, "key1=value1 subkey1=subvalue1", "10/s"},
		{domain, "key1=value1 subkey2=x", ""},
		{domain, "key1=value1 subkey1=x more=y", ""}, // deeper than any rule
		{domain, "key1=value2", ""},
		{domain, "subkey1=x", ""},
		{domain, "key2=x", "20/m"},
		{domain, "key2=", "20/m"},
		{domain, "key2=value2", "30/m"},
		{domain, "key2=value3", "whitelist"},
		{domain, "wild=foobar", "3/h"}, // exact
		{domain, "wild=fooxxr", "1/h"}, // the first with a star
		{domain, "wild=fxr", "2/h"},    // the second
		{domain, "wild=foo", "1/h"},    // a star stands for nothing too
		{domain, "wild=bar", "4/h"},    // the key alone
		{domain, "starXkey=v", ""},     // the pattern is matched on key_value
		{domain, "starXkey=a_key", "5/h"},
		{domain, "shared=/a/x", "6/d"},
		{domain, "shared=/a/x user=u", "7/d"},
		{domain, "shared=/b/x", ""},
		{domain, "parent=x", ""},
		{domain, "parent=x child=y", "8/w"},
		{domain, "shadow=x", "9/mo shadow"},
		{domain, "free=x", "unlimited"},
		{domain, "a=b_c", "0/y"},
		{domain, "a_b=c", "11/y"},
	} {
		found, _ := s.Match(tt.domain, attrs(tt.descriptor), nil, nil)
		got := ""
		for _, m := range found {
			switch p := m.Variant.Policy; {
			case m.Limit.Whitelist:
				got += "whitelist"
			case p.Unlimited:
				got += "unlimited"
			default:
				got += p.Rate.String()
				if p.Algorithm != limit.FixedWindow || p.Align != limit.AlignEpoch || !p.CountRefused {
					t.Errorf("%s: policy %+v", tt.descriptor, p)
				}
			}
			if m.Shadow {
				got += " shadow"
			}
		}
		if got != tt.want {
			t.Errorf("%s %q: got %q, want %q", tt.domain, tt.descriptor, got, tt.want)
		}
	}
}

func TestEnvoyCounters(t *testing.T) {
	s := mustParse(t, envoyFile)
	bucket := func(descriptor string) string {
		m, _ := s.Match("test-domain", attrs(descriptor), nil, nil)
		if len(m) != 1 {
			t.Fatalf("%s: %d matches", descriptor, len(m))
		}
		return m[0].Variant.ID + string(m[0].Key)
	}
	for _, tt := range []struct {
		a, b string
		same bool
	}{
		{"key2=x", "key2=x", true},
		{"key2=x", "key2=y", false},
		{"wild=foo1", "wild=foo2", false},    // each value its own counter
		{"shared=/a/1", "shared=/a/2", true}, // unless they share the threshold
		{"shared=/a/1 user=u", "shared=/a/2 user=u", true},
		{"shared=/a/1 user=u", "shared=/a/1 user=v", false},
		{"a=b_c", "a_b=c", false},
	} {
		if got := bucket(tt.a) == bucket(tt.b); got != tt.same {
			t.Errorf("%s and %s: one counter is %v, want %v", tt.a, tt.b, got, tt.same)
		}
	}
}

func TestEnvoyOptions(t *testing.T) {
	s := mustParse(t, `
domain: d
descriptors:
  - key: k
    value: ü
    quota_mode: true
    rate_limit: {name: n, unit: day, requests_per_unit: 5, replaces: [{name: m}, {name: o}]}
    metadata: {a: {b: [1, 2.5, x, true, null]}}
    detailed_metric: on
  - key: other
    name: misplaced
`)
	l := s.Limits()[0]
	want := map[string]any{"a": map[string]any{"b": []any{int64(1), 2.5, "x", true, nil}}}
	if l.Alias != "n" || strings.Join(l.Replaces, ",") != "m,o" || !l.QuotaMode || !reflect.DeepEqual(l.Metadata, want) {
		t.Errorf("got %+v", l)
	}
	if l.Name != "d.k__" || l.Domain != "d" || l.Line != 4 || l.Status != 429 {
		t.Errorf("got name %q, domain %q, line %d", l.Name, l.Domain, l.Line)
	}
	if w := s.Warnings(); len(w) != 1 || w[0].Message != "name means nothing in a descriptor" {
		t.Errorf("warnings: %v", w)
	}
}

func TestBothFormatsTogether(t *testing.T) {
	set, err := Options{}.compile([]source{
		{"envoy.yaml", []byte("domain: d\ndescriptors: [{key: user, rate_limit: {unit: day, requests_per_unit: 5}}]\n")},
		{"stint.yaml", []byte("limits: [{name: a, match: {domain: d}, key: user, rate: 5/s}, {name: b, key: user, rate: 6/s}]\n")},
	}, new(document.Faults))
	if err != nil {
		t.Fatal(err)
	}
	if got, want := matched(set, "d", "user=u"), `!envoy "d" "user"=""[user="u"]; a[user="u"]; b[user="u"]`; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// FuzzEnvoyDescriptors: any descriptor finds at most one rule, and always the same.
func FuzzEnvoyDescriptors(f *testing.F) {
	s := mustParse(f, envoyFile)
	f.Add("test-domain", "key1", "value1", "subkey1", "x", uint8(2))
	f.Add("test-domain", "starXkey", "_key", "", "", uint8(1))
	f.Add("", "\xff", "*", "shared", "/a/*", uint8(3))
	f.Fuzz(func(t *testing.T, domain, k1, v1, k2, v2 string, n uint8) {
		request := []limit.Attribute{{Name: k1, Value: v1}, {Name: k2, Value: v2}, {Name: k1, Value: v2}}[:n%4]
		m, _ := s.Match(domain, request, nil, nil)
		if len(m) > 1 || len(m) == 1 && (domain != "test-domain" || len(m[0].Limit.Key) != len(request)) {
			t.Fatalf("got %d matches", len(m))
		}
		again, _ := s.Match(domain, request, nil, make([]byte, 0, 10))
		if len(again) != len(m) || len(m) == 1 && string(again[0].Key) != string(m[0].Key) {
			t.Fatal("the second time differs")
		}
	})
}
