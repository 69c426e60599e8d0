package rules

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
)

// What a file says is what counts: each policy as it is compiled, with what it takes from the
// limit, where an override says nothing, and from the defaults, where neither does.
func TestCompiledPolicies(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	bucket := func(n, burst int64) limit.Policy {
		return limit.Policy{Algorithm: limit.TokenBucket, Rate: limit.PerSecond(n), Burst: burst}
	}
	none := limit.Policy{Unlimited: true}
	for text, want := range map[string][]limit.Policy{
		"{name: a, rate: 5/s}":           {bucket(5, 5)},
		"{name: a, rate: 5/s, burst: 9}": {bucket(5, 9)},
		"{name: a, rate: 0/s, burst: 0}": {bucket(0, 0)},
		"{name: a, rate: 5/s, burst: 1}": {bucket(5, 1)},
		"{name: a, unlimited: true}":     {none},
		"{name: a, rate: 5/s, burst: 9, overrides: [{when: {u: a}, rate: 7/s}, {when: {u: b}, burst: 3}, {when: {u: c}, rate: 7/s, burst: 8}, {when: {u: d}, unlimited: true}]}": {
			bucket(5, 9), bucket(7, 7), bucket(5, 3), bucket(7, 8), none,
		},
		"{name: a, unlimited: true, overrides: [{when: {u: a}, rate: 7/s}]}":         {none, bucket(7, 7)},
		"{name: a, algorithm: leaky_bucket, rate: 5/s}":                              {{Algorithm: limit.LeakyBucket, Rate: limit.PerSecond(5)}},
		"{name: a, algorithm: leaky_bucket, rate: 5/s, burst: 0}":                    {{Algorithm: limit.LeakyBucket, Rate: limit.PerSecond(5)}},
		"{name: a, algorithm: fixed_window, rate: 5/s, align: first_hit}":            {{Algorithm: limit.FixedWindow, Rate: limit.PerSecond(5), Align: limit.AlignFirstHit}},
		"{name: a, algorithm: fixed_window, rate: 5/s, count_refused: true}":         {{Algorithm: limit.FixedWindow, Rate: limit.PerSecond(5), CountRefused: true}},
		"{name: a, algorithm: sliding_window_counter, rate: 5/s, rounding: up}":      {{Algorithm: limit.SlidingWindowCounter, Rate: limit.PerSecond(5), Rounding: limit.RoundUp}},
		"{name: a, algorithm: sliding_window_counter, rate: 5/s, rounding: down}":    {{Algorithm: limit.SlidingWindowCounter, Rate: limit.PerSecond(5), Rounding: limit.RoundDown}},
		"{name: a, algorithm: sliding_window_counter, rate: 5/s, rounding: nearest}": {{Algorithm: limit.SlidingWindowCounter, Rate: limit.PerSecond(5), Rounding: limit.RoundNearest}},
		"{name: a, algorithm: concurrency, max_in_flight: 3}":                        {{Algorithm: limit.Concurrency, MaxInFlight: 3, Timeout: defaultTimeout}},
		"{name: a, algorithm: concurrency, max_in_flight: 0, timeout: 5s, overrides: [{when: {u: a}, max_in_flight: 65536}, {when: {u: b}, timeout: 7s}]}": {
			{Algorithm: limit.Concurrency, Timeout: 5 * time.Second}, {Algorithm: limit.Concurrency, MaxInFlight: 65536, Timeout: 5 * time.Second}, {Algorithm: limit.Concurrency, Timeout: 7 * time.Second},
		},
	} {
		s, err := Parse("test.yaml", []byte("limits:\n  - "+text+"\n"))
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var got []limit.Policy
		for _, v := range s.Variants() {
			got = append(got, v.Policy)
		}
		if !slices.Equal(got, want) {
			t.Errorf("%s:\n%+v, want\n%+v", text, got, want)
		}
	}
	for text, want := range map[string]limit.Policy{
		"defaults: {rate: 3/s, burst: 7}\nlimits: [{name: a}]":                          bucket(3, 7),
		"defaults: {unlimited: true}\nlimits: [{name: a}]":                              none,
		"defaults: {unlimited: true}\nlimits: [{name: a, rate: 5/s}]":                   bucket(5, 5),
		"defaults: {unlimited: true, rate: 3/s}\nlimits: [{name: a, unlimited: false}]": bucket(3, 3),
	} {
		s, err := Parse("test.yaml", []byte(text+"\n"))
		if err != nil || s.Variants()[0].Policy != want {
			t.Errorf("%s: %+v, %v", text, s, err)
		}
	}
}

// A ban lasts as long as the file says, after the attempts that it says or the limit's own
// rate, under a counter of its own for each policy that is a limit at all.
func TestCompiledBans(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	s := mustParse(t, `limits:
  - {name: own, key: [ip], rate: 5/s, on_exceed: {reject: 403, ban: {for: 15m}}, overrides: [{when: {ip: 192.0.2.7}, rate: 9/s}, {when: {ip: 192.0.2.8}, unlimited: true}]}
  - {name: after, key: [ip], rate: 5/s, on_exceed: {ban: {for: 2h, after: 20/minute}}}
  - {name: places, algorithm: concurrency, max_in_flight: 1, on_exceed: {ban: {for: 1s, after: 1/s}}}
  - {name: none, rate: 5/s, on_exceed: {reject: 599}}
`)
	ban := func(length time.Duration, after limit.Rate) limit.Policy {
		return limit.Policy{Algorithm: limit.FixedWindow, Align: limit.AlignFirstHit, Rate: after, CountRefused: true, Ban: length}
	}
	want := []limit.Policy{ban(15*time.Minute, limit.PerSecond(5)), ban(15*time.Minute, limit.PerSecond(9)), {}, ban(2*time.Hour, limit.PerMinute(20)), ban(time.Second, limit.PerSecond(1)), {}}
	for i, v := range s.Variants() {
		if v.BanPolicy != want[i] || (v.BanID != "") != (want[i] != limit.Policy{}) {
			t.Errorf("%s: %q %+v, want %+v", v.ID, v.BanID, v.BanPolicy, want[i])
		}
	}
	for i, want := range []int{403, 429, 429, 599} {
		if got := s.Limits()[i].Status; got != want {
			t.Errorf("%s: status %d, want %d", s.Limits()[i].Name, got, want)
		}
	}
	for text, fine := range map[string]bool{"reject: 400": true, "reject: 399": false, "reject: 599": true, "reject: 600": false, "ban: {for: 0s}": false, "ban: {after: 1/s}": false, "ban: {for: 1s, after: 0/s}": true} {
		if _, err := Parse("test.yaml", []byte("limits: [{name: a, rate: 1/s, on_exceed: {"+text+"}}]\n")); (err == nil) != fine {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// The other words of a limit, one by one and from the defaults.
func TestCompiledOptions(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	s := mustParse(t, `defaults: {shadow: true, soft: 50%, on_store_failure: reject, ipv6_prefix: 48, missing: all}
limits:
  - {name: defaults, key: [ip], rate: 1/s}
  - {name: own, key: [ip], rate: 1/s, mode: enforce, soft: 100%, on_store_failure: local, ipv6_prefix: 128, missing: reject, enforce: 0.01%}
  - {name: shadow, key: [ip], rate: 1/s, mode: shadow, soft: 0%, ipv6_prefix: 1, enforce: 100%}
  - {name: not, key: [ip], rate: 1/s, shadow: false, missing: skip, on_store_failure: allow}
`)
	for i, want := range []string{
		"true 50 reject 48 all 10000", "false 100 local 128 reject 1", "true 0 reject 1 all 10000", "false 50 allow 48 skip 10000",
	} {
		l := s.Limits()[i]
		if got := fmt.Sprint(l.Shadow, l.SoftPercent, " ", l.OnStoreFailure, " ", l.ipv6, " ", missingNames[l.Missing], " ", l.EnforcePermyriad); got != want {
			t.Errorf("%s: %s, want %s", l.Name, got, want)
		}
	}
}

// A split leaves each service something, and a suppressed limit is one of a rate, wherever the
// file says how a limit is shared.
func TestWhatCannotBeShared(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for text, want := range map[string]string{
		"limits: [{name: a, rate: 10/s, burst: 4, sharing: split, split: {instances: 4}}]":                                              "",
		"limits: [{name: a, rate: 10/s, burst: 3, sharing: split, split: {instances: 4}}]":                                              "a burst of 3 cannot be split between 4",
		"limits: [{name: a, rate: 10/s, burst: 4, sharing: split, split: {instances: 4}, overrides: [{when: {u: a}, burst: 3}]}]":       "a burst of 3 cannot be split between 4",
		"limits: [{name: a, rate: 0/s, burst: 0, sharing: split, split: {instances: 4}}]":                                               "",
		"limits: [{name: a, algorithm: concurrency, max_in_flight: 4, sharing: split, split: {instances: 4}}]":                          "",
		"limits: [{name: a, algorithm: concurrency, max_in_flight: 3, sharing: split, split: {instances: 4}}]":                          "3 permits cannot be split between 4",
		"limits: [{name: a, algorithm: concurrency, max_in_flight: 0, sharing: split, split: {instances: 4}}]":                          "",
		"limits: [{name: a, rate: 10/s, sharing: split, split: {instances: 4, weight: 4}}]":                                             "",
		"limits: [{name: a, rate: 10/s, sharing: split, split: {instances: 4, weight: 5}}]":                                             "from 1 to 4",
		"limits: [{name: a, rate: 10/s, sharing: split, split: {instances: 4, weight: 0}}]":                                             "from 1 to 4",
		"limits: [{name: a, unlimited: true, sharing: split, split: {instances: 4}}]":                                                   "",
		"limits: [{name: a, algorithm: concurrency, max_in_flight: 3, sharing: suppressed}]":                                            "cannot be shared by suppression",
		"defaults: {sharing: suppressed}\nlimits: [{name: a, algorithm: concurrency, max_in_flight: 3}]":                                "cannot be shared by suppression",
		"defaults: {sharing: suppressed, suppress: {report: 1s}}\nlimits: [{name: a, rate: 1/s}, {name: b, rate: 1/s, sharing: exact}]": "",
	} {
		_, err := Parse("test.yaml", []byte(text+"\n"))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// Each attribute that some limit reads is named once, in order: of a match, an expression, a
// key, and the condition of an override.
func TestAttributesThatAreRead(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	s := mustParse(t, `limits:
  - {name: a, match: {path: /x, zone: z}, key: [user, "header:X-Key"], when: ip != "", rate: 1/s, overrides: [{when: {tier: gold}, rate: 2/s}, {when: 'method == "GET"', rate: 3/s}]}
  - {name: b, match: {domain: d}, key: [user, second], rate: 1/s}
`)
	if got := fmt.Sprint(s.Attributes()); got != "[header:x-key ip method path second tier user zone]" {
		t.Errorf("%s", got)
	}
}

// There is one warning for each place, and a hundred in all at most.
func TestWarningsAreBounded(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	text := "domain: edge\ndescriptors:\n"
	for i := range 150 {
		text += fmt.Sprintf("  - {key: k%d, unit: second}\n", i)
	}
	s := mustParse(t, text)
	if len(s.Warnings()) != document.MaxFaults {
		t.Errorf("%d warnings of 150", len(s.Warnings()))
	}
	s = mustParse(t, "domain: edge\ndescriptors:\n  - &a {key: a, unit: second, descriptors: [{key: b, unit: second}]}\n  - {key: c, descriptors: [{key: d, descriptors: &e [{key: e, unit: day}]}, {key: f, descriptors: *e}]}\n")
	seen := map[string]bool{}
	for _, w := range s.Warnings() {
		if seen[w.Error()] {
			t.Errorf("twice: %s", w.Error())
		}
		seen[w.Error()] = true
	}
	for text, odd := range map[string]bool{"enforce: 50%": true, "enforce: 0%": false, "enforce: 100%": false, "enforce: 0.01%": true, "enforce: 99.99%": true, "enforce: 50%, key: [ip]": false} {
		if s := mustParse(t, "limits: [{name: a, rate: 1/s, "+text+"}]\n"); (len(s.Warnings()) > 0) != odd {
			t.Errorf("%s: warnings %v", text, s.Warnings())
		}
	}
}

// A file that is named twice, by whatever path, is read once.
func TestFilesAreReadOnce(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	dir := t.TempDir()
	name := filepath.Join(dir, "a.yaml")
	if err := os.WriteFile(name, []byte("limits: [{name: a, rate: 1/s}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	for _, paths := range [][]string{{name, name}, {"a.yaml", name}, {dir, "a.yaml"}, {".", dir, "./a.yaml", "../" + filepath.Base(dir) + "/a.yaml"}} {
		if s, err := Load(paths...); err != nil || len(s.Limits()) != 1 {
			t.Errorf("%v: %v", paths, err)
		}
	}
}
