package rules

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// names are n attributes, as a list or a map in one line.
func names(n int, form string) string {
	var list []string
	for i := range n {
		list = append(list, fmt.Sprintf(form, i))
	}
	return strings.Join(list, ", ")
}

// What a file may say ends where the documentation says: at each bound one side is taken and
// the other is refused, in words.
func TestWhereFilesEnd(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	leased := func(lease string) string { return "{name: a, rate: 10/s, sharing: leased, lease: {" + lease + "}}" }
	for text, want := range map[string]string{
		"{name: a, rate: 1/s, key: [" + names(32, "a%d") + "]}":                           "",
		"{name: a, rate: 1/s, key: [" + names(33, "a%d") + "]}":                           "key has 33 attributes, want at most 32",
		"{name: a, rate: 1/s, match: {" + names(32, "a%d: x") + "}}":                      "",
		"{name: a, rate: 1/s, match: {" + names(33, "a%d: x") + "}}":                      "match has 33 attributes, want at most 32",
		"{name: a, rate: 1/s, key: [ip, user, ip]}":                                       `attribute "ip" is twice in the key`,
		"{name: a, rate: 1/s, key: ['header:A', 'Header:a']}":                             `is twice in the key`,
		"{name: a, rate: 1/s, key: " + strings.Repeat("x", 256) + "}":                     "",
		"{name: a, rate: 1/s, key: " + strings.Repeat("x", 257) + "}":                     "cannot be the name of an attribute",
		"{name: a, rate: 1/s, match: {'header:A': x, 'Header:a': y}}":                     `is twice in the match`,
		"{name: a, rate: 1/s, match: {path: []}}":                                         "an empty list matches nothing",
		"{name: a, rate: 1/s, match: {path: [{a: b}]}}":                                   "a value or a pattern",
		"{name: a, rate: 1/s, match: {ip: 10.0.0.0/33}}":                                  "is not a network of addresses",
		"{name: a, rate: 1/s, match: {ip: 10.0.0.0/32}}":                                  "",
		"{name: a, rate: 1/s, match: {}}":                                                 "the condition is empty",
		"{name: a, rate: 1/s, ipv6_prefix: 0}":                                            "from 1 to 128",
		"{name: a, rate: 1/s, ipv6_prefix: 129}":                                          "from 1 to 128",
		"{name: a, algorithm: concurrency, max_in_flight: 65537}":                         "from 0 to 65536",
		"{name: a, algorithm: concurrency, max_in_flight: -1}":                            "from 0 to 65536",
		"{name: a, rate: 1/s, burst: 0}":                                                  "admits nothing",
		"{name: a, rate: 1/s, burst: 010}":                                                "eight-based",
		"{name: a, rate: 1/s, burst: 0x10}":                                               "",
		"{name: a, rate: 1/s, burst: 4611686018427387904}":                                "",
		"{name: a, rate: 1/s, burst: 4611686018427387905}":                                "a whole number",
		"{name: a, rate: 2000000/s, sharing: split, split: {instances: 1048576}}":         "",
		"{name: a, rate: 2000000/s, sharing: split, split: {instances: 1048577}}":         "from 1 to 1048576",
		"{name: a, rate: 2000000/s, sharing: split, split: {instances: 0}}":               "from 1 to 1048576",
		"{name: a, rate: 1/s, when: 'path == \"" + strings.Repeat("x", 16384-10) + "\"'}": "",
		"{name: a, rate: 1/s, when: 'path == \"" + strings.Repeat("x", 16385-10) + "\"'}": "expression has more than 16384 bytes",
		"{name: a, rate: 1/s, when: path}":                                                "expression gives string, want bool",

		leased("guarantees: {0: 4/s, 255: 6/s}"):                 "",
		leased("guarantees: {0: 4/s, 255: 6.1/s}"):               "the guarantees are 10.1 tokens per second together, the limit has 10",
		leased("guarantees: {256: 1/s}"):                         `"256" is not a priority band`,
		leased("guarantees: {-1: 1/s}"):                          `"-1" is not a priority band`,
		leased("guarantees: {01: 1/s}"):                          `"01" is not a priority band`,
		leased("guarantees: {}"):                                 "a map from priority band to amount",
		leased("guarantees: [1]"):                                "a map from priority band to amount",
		leased("allocation: equal, guarantees: {1: 1/s}"):        "guarantees have no meaning with allocation: equal",
		leased("allocation: busy, tolerance: 0.4, change: 0.39"): "",
		leased("allocation: busy, tolerance: 1"):                 "a part of a share, such as 0.05",
		leased("tolerance: 0.2"):                                 "tolerance has no meaning but with allocation: busy",

		"{name: a, algorithm: concurrency, max_in_flight: 9, sharing: leased, lease: {guarantees: {1: 4, 2: 5}}}":                "",
		"{name: a, algorithm: concurrency, max_in_flight: 9, sharing: leased, lease: {guarantees: {1: 5, 2: 5}}}":                "the guarantees are 10 permits together, the limit has 9",
		"{name: a, rate: 9/s, sharing: leased, lease: {guarantees: {1: 4/s}}, key: [u], overrides: [{when: {u: b}, rate: 3/s}]}": "the guarantees are 4 tokens per second together, the override when u=b has 3",
	} {
		_, err := Parse("test.yaml", []byte("limits:\n  - "+text+"\n"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%.150s: %v, want %q", text, err, want)
		}
	}
}

// A store may be named in several files, if it is the same.
func TestStoreOfSeveralFiles(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for _, c := range []struct {
		a, b, want string
	}{
		{"memory", "memory", ""},
		{"redis://h:1", "redis://h:1", ""},
		{"redis://h:1", "redis://h:2", "another store is named at"},
		{"memory", "redis://h:1", "another store is named at"},
		{"redis", "redis", `unknown store "redis"`},
		{"memory://", "memory", `unknown store "memory"`},
		{"radis://h", "memory", "did you mean redis?"},
	} {
		dir := t.TempDir()
		for i, store := range []string{c.a, c.b} {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%d.yaml", i)), []byte(fmt.Sprintf("store: %s\nlimits: [{name: l%d, rate: 1/s}]\n", store, i)), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		s, err := Load(dir)
		if c.want == "" && (err != nil || s.Store() != c.a) || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%s and %s: %v", c.a, c.b, err)
		}
	}
}

// How a limit is suppressed, at the ends of its ranges.
func TestWhereSuppressionEnds(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for text, want := range map[string]string{
		"report: 10ms": "", "report: 9ms": "10ms", "report: 1m": "", "report: 61s": "1m",
		"window: 1h, interval: 1m, report: 1m": "", "window: 61m, interval: 1m, report: 1m": "1h0m0s", "window: 1m, interval: 1m": "", "window: 1m, interval: 61s": "is longer than the window",
		"window: 10s, interval: 3s": "no whole number of intervals", "window: 64s, interval: 1s": "", "window: 65s, interval: 1s": "the window has 65 intervals, want at most 64",
		"window: 10s, interval: 1s, report: 1s": "", "window: 10s, interval: 1s, report: 1001ms": "is shorter than report", "window: 1s, interval: 100ms": "", "window: 900ms, interval: 90ms": "is shorter than report, 100ms",
		"window: 10s": "window without interval", "interval: 1s": "interval without window", "average: admitted": "is averaged over a window", "average: attempted": "", "window: 10s, interval: 2s, average: admitted": "",
		"window: x, interval: 1s": "a positive duration", "window: 1s, interval: x": "a positive duration",
		"ramp: linear, full: 2": "", "ramp: linear, full: 1000": "", "ramp: linear, full: 1": "from 2 to 1000", "ramp: linear, full: 1001": "from 2 to 1000", "full: 2": "full has no meaning with ramp: exact",
	} {
		_, err := Parse("test.yaml", []byte("limits: [{name: a, rate: 1/s, sharing: suppressed, suppress: {"+text+"}}]\n"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// A value in a text for people is short: up to a hundred bytes it is shown in full, of a longer
// one the beginning, without a broken character.
func TestShownValues(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for value, want := range map[string]string{
		"": "", "v": "v", strings.Repeat("x", 100): strings.Repeat("x", 100), strings.Repeat("x", 101): strings.Repeat("x", 100) + "...", strings.Repeat("x", 99) + "é": strings.Repeat("x", 99) + "...", strings.Repeat("x", 98) + "éé": strings.Repeat("x", 98) + "é...",
	} {
		if got := shorten(value); got != want {
			t.Errorf("%q is shown as %q", value, got)
		}
	}
}

// A key of Envoy's format is none that an instance could name, and its shared values are known
// for the entries that there are.
func TestKeysOfEnvoysRules(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	s := mustParse(t, "domain: edge\ndescriptors: [{key: k, value: 'a*', share_threshold: true, descriptors: [{key: l, rate_limit: {unit: second, requests_per_unit: 1}}]}]\n")
	l := s.Limits()[0]
	for i, want := range []string{"a*", "", ""} {
		if got := l.SharedValue(i); got != want {
			t.Errorf("entry %d is shared as %q, want %q", i, got, want)
		}
	}
	found, _ := s.Match("edge", attrs("k=abc l=v"), nil, nil)
	if len(found) != 1 || l.KeyText(found[0].Key) != `k=a* l="v"` && l.KeyText(found[0].Key) != `k="a*" l="v"` {
		t.Fatalf("%d found: %s", len(found), l.KeyText(found[0].Key))
	}
	if got, ok := l.KeyAttributes(found[0].Key); ok || got != nil {
		t.Errorf("%v", got)
	}
	if request, ok := s.Sample(l); !ok || fmt.Sprint(request) != "[{k a} {l demo}]" {
		t.Errorf("a sample is %v", request)
	}
}

// There is one warning for an attribute that nothing provides, at the first limit that reads it,
// also in its overrides.
func TestUnprovidedOfOverrides(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	s := mustParse(t, `limits:
  - {name: a, match: {path: /x}, key: [zone, ip], rate: 1/s, overrides: [{when: {tier: gold}, rate: 2/s}, {when: {zone: z}, rate: 3/s}]}
  - {name: b, key: [zone, tier, more], rate: 1/s}
  - {name: c, key: [elsewhere], rate: 1/s, sharing: leased}
`)
	got := ""
	for _, w := range s.Unprovided() {
		got += fmt.Sprintf("%d %s; ", w.Line, w.Message)
	}
	want := ""
	for _, one := range []struct {
		line        int
		limit, name string
	}{{2, "a", "zone"}, {2, "a", "tier"}, {3, "b", "more"}} {
		want += fmt.Sprintf("%d limit %q goes by %q, which no gateway and no middleware provides; ", one.line, one.limit, one.name)
	}
	if got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
