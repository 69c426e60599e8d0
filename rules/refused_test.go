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
	leased := func(lease string) string { return "{name: a, rate: 10/s, sharing: leased, lease: {" + lease + "}}" }
	for text, want := range map[string]string{
		"{name: a, rate: 1/s, key: [" + names(32, "a%d") + "]}":                                                   "",
		"{name: a, rate: 1/s, key: [" + names(33, "a%d") + "]}":                                                   "key has 33 attributes, want at most 32",
		"{name: a, rate: 1/s, match: {" + names(32, "a%d: x") + "}}":                                              "",
		"{name: a, rate: 1/s, match: {" + names(33, "a%d: x") + "}}":                                              "match has 33 attributes, want at most 32",
		"{name: a, rate: 1/s, key: [ip, user, ip]}":                                                               `attribute "ip" is twice in the key`,
		"{name: a, rate: 1/s, key: ['header:A', 'Header:a']}":                                                     `is twice in the key`,
		"{name: a, rate: 1/s, key: " + strings.Repeat("x", 256) + "}":                                             "",
		"{name: a, rate: 1/s, key: " + strings.Repeat("x", 257) + "}":                                             "cannot be the name of an attribute",
		"{name: a, rate: 1/s, match: {'header:A': x, 'Header:a': y}}":                                             `is twice in the match`,
		"{name: a, rate: 1/s, match: {path: []}}":                                                                 "an empty list matches nothing",
		"{name: a, rate: 1/s, match: {path: [{a: b}]}}":                                                           "a value or a pattern",
		"{name: a, rate: 1/s, match: {ip: 10.0.0.0/33}}":                                                          "is not a network of addresses",
		"{name: a, rate: 1/s, match: {ip: 10.0.0.0/32}}":                                                          "",
		"{name: a, rate: 1/s, match: {}}":                                                                         "the condition is empty",
		"{name: a, rate: 1/s, ipv6_prefix: 0}":                                                                    "from 1 to 128",
		"{name: a, rate: 1/s, ipv6_prefix: 129}":                                                                  "from 1 to 128",
		"{name: a, algorithm: concurrency, max_in_flight: 65537}":                                                 "from 0 to 65536",
		"{name: a, algorithm: concurrency, max_in_flight: -1}":                                                    "from 0 to 65536",
		"{name: a, rate: 1/s, burst: 0}":                                                                          "admits nothing",
		"{name: a, rate: 1/s, burst: 010}":                                                                        "eight-based",
		"{name: a, rate: 1/s, burst: 0x10}":                                                                       "",
		"{name: a, rate: 1/s, burst: 4611686018427387904}":                                                        "",
		"{name: a, rate: 1/s, burst: 4611686018427387905}":                                                        "a whole number",
		leased("guarantees: {0: 4/s, 255: 6/s}"):                                                                  "",
		leased("guarantees: {0: 4/s, 255: 6.1/s}"):                                                                "the guarantees are 10.1 tokens per second together, the limit has 10",
		leased("guarantees: {256: 1/s}"):                                                                          `"256" is not a priority band`,
		leased("guarantees: {-1: 1/s}"):                                                                           `"-1" is not a priority band`,
		leased("guarantees: {01: 1/s}"):                                                                           `"01" is not a priority band`,
		leased("guarantees: {}"):                                                                                  "a map from priority band to amount",
		leased("guarantees: [1]"):                                                                                 "a map from priority band to amount",
		leased("allocation: equal, guarantees: {1: 1/s}"):                                                         "guarantees have no meaning with allocation: equal",
		leased("allocation: busy, tolerance: 0.4, change: 0.39"):                                                  "",
		leased("allocation: busy, tolerance: 0.41"):                                                               "a part of a share above 0",
		leased("allocation: busy, tolerance: 0.2, change: 0.2"):                                                   "change 0.2 is not below tolerance 0.2",
		leased("allocation: busy, tolerance: 0.01"):                                                               "change 0.01 is not below tolerance 0.01",
		leased("allocation: busy, change: 0.1"):                                                                   "change 0.1 is not below tolerance 0.1",
		leased("allocation: busy, change: 0.09"):                                                                  "",
		leased("allocation: busy, tolerance: 0.0"):                                                                "a part of a share above 0",
		leased("allocation: busy, tolerance: 1"):                                                                  "a part of a share above 0",
		leased("tolerance: 0.2"):                                                                                  "tolerance has no meaning with allocation: max_min",
		"{name: a, algorithm: concurrency, max_in_flight: 9, sharing: leased, lease: {guarantees: {1: 4, 2: 5}}}": "",
		"{name: a, algorithm: concurrency, max_in_flight: 9, sharing: leased, lease: {guarantees: {1: 5, 2: 5}}}": "the guarantees are 10 places together, the limit has 9",
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
	for _, c := range []struct {
		a, b, want string
	}{
		{"memory", "memory", ""}, {"redis://h:1", "redis://h:1", ""}, {"redis://h:1", "redis://h:2", "another store is named at"}, {"memory", "redis://h:1", "another store is named at"},
		{"redis", "redis", `unknown store "redis"`}, {"memory://", "memory", `unknown store "memory"`}, {"radis://h", "memory", "did you mean redis?"},
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
