package rules

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stint-io/stint/limit"
)

// TestForeignWords: each name from another rate limiter is refused with the line to write in its place, no name has
// two, and none is a name here.
func TestForeignWords(t *testing.T) {
	seen := map[string]bool{}
	add := func(names []string) {
		for _, name := range names {
			if seen[name] {
				t.Errorf("%s is there twice", name)
			}
			if seen[name] = true; contains(limitKeys, name) {
				t.Errorf("%s is a key of a limit", name)
			}
		}
	}
	add(countKeys)
	add(periodKeys)
	for hint, names := range foreignKeys {
		add(names)
		for _, name := range names {
			_, err := Parse("l.yaml", fmt.Appendf(nil, "limits: [{name: a, rate: 1/s, %s: x}]", name))
			if hint := strings.Replace(hint, "key: [user]", "key: [x]", 1); err == nil || !strings.Contains(err.Error(), "hint: "+hint) {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
	for name, hint := range foreignAlgorithms {
		_, err := Parse("l.yaml", fmt.Appendf(nil, "limits: [{name: a, rate: 1/s, algorithm: %s}]", strings.ToUpper(name)))
		if err == nil || !strings.Contains(err.Error(), "hint: "+hint) {
			t.Errorf("%s: %v", name, err)
		}
		for _, word := range strings.FieldsFunc(hint, func(r rune) bool { return r == ' ' || r == ',' }) {
			if _, err := Parse("l.yaml", fmt.Appendf(nil, "limits: [{name: a, rate: 1/s, algorithm: %s}]", word)); strings.Contains(word, "_") && err != nil {
				t.Errorf("%s: %s is no algorithm: %v", name, word, err)
			}
		}
	}
}

// TestForeignRates: the rate that a count and a period with keys of their own are together is one that can be read.
func TestForeignRates(t *testing.T) {
	for _, count := range countKeys {
		for i, period := range periodKeys {
			value, want := "1m", "7/1m"
			switch {
			case strings.Contains(period, "ms"):
				value, want = "500", "7/500ms"
			case i%3 == 1:
				value, want = "60", "7/60s"
			case i%3 == 2:
				value, want = "minutes", "7/minute"
			}
			if count == "rps" { // the unit in a name counts
				want = "7/second"
			}
			_, err := Parse("l.yaml", fmt.Appendf(nil, "limits: [{name: a, %s: 7, %s: %s}]", count, period, value))
			if err == nil || !strings.Contains(err.Error(), "hint: a rate has its period: write rate: "+want) {
				t.Errorf("%s: 7, %s: %s: want %s: %v", count, period, value, want, err)
			}
			if _, err := limit.ParseRate(want); err != nil {
				t.Error(err)
			}
		}
	}
	_, err := Parse("l.yaml", []byte("limits: [{name: a, limit: 5, per: user}]"))
	if err == nil || !strings.Contains(err.Error(), "write key: [user]; the period is a part of the rate, as in rate: 5/minute") {
		t.Error(err)
	}
}

// TestForeignAttributes: a name that means something else than the nearest name here is not suggested.
func TestForeignAttributes(t *testing.T) {
	for name, want := range map[string]string{
		"client_ip": "ip", "REMOTE_ADDR": "ip", "x-forwarded-for": "ip", "api_key": "header:x-api-key", "uri": "path",
		"user_id": "", "userid": "", "username": "", "user_name": "", "tenant": "", "customer": "",
	} {
		if got, _ := nearAttribute(name); got != want {
			t.Errorf("%s: %q is suggested, want %q", name, got, want)
		}
	}
}

// TestExemptNeedsNoKey: who meets an unlimited override is not refused for want of a key.
func TestExemptNeedsNoKey(t *testing.T) {
	set, err := Parse("l.yaml", []byte(`limits: [{name: a, key: ["header:x-api-key"], missing: reject, rate: 1/s, overrides: [{when: {path: /health}, unlimited: true}]}]`))
	if err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]bool{"/health": false, "/other": true} {
		matched, _ := set.Match("", []limit.Attribute{{Name: "path", Value: path}}, nil, nil)
		if len(matched) != 1 || matched[0].Missing != want {
			t.Errorf("%s: %+v, want missing %v", path, matched, want)
		}
	}
}

// TestMoreForeignWords: what people write in places where another thing stands here.
func TestMoreForeignWords(t *testing.T) {
	for text, want := range map[string]string{
		"redis: localhost:6379\nlimits: [{name: a, rate: 1/s}]":                             "write store: redis://127.0.0.1:6379",
		"jwt: {secret: x}\nlimits: [{name: a, rate: 1/s}]":                                  "write identity: {jwt: {jwks:",
		"limits: [{name: a, rate: 1/s, on_exceed: {status: 429}}]":                          "write it below reject:",
		"limits: [{name: a, rate: '10/s, 1000/day'}]":                                       "several rates at once are horizons",
		"limits: [{name: a, rate: [10/s, 1000/day]}]":                                       "several rates at once are horizons",
		"limits: [{name: a, algorithm: semaphore, max: 10}]":                                "write concurrency",
		"limits: [{name: a, concurrency: 5}]":                                               "algorithm: concurrency",
		"limits: [{name: a, rate: 1/s, enforce: false}]":                                    "write shadow: true",
		"limits: [{name: a, rate: 1/s, overrides: {acme: 100/minute}}]":                     "write [{when: {user: acme}",
		"limits: [{name: a, rate: 1/s, overrides: [{match: {ip: 1.2.3.4}, rate: 5/s}]}]":    "in an override it is when:",
		"limits: [{name: a, rate: 1/s, match: [{path: /a}, {path: /b}]}]":                   "alternatives are a list of values",
		"limits: [{name: a, rate: 1/s, key: [ip], on_exceed: {ban: {after: 20, for: 1h}}}]": "did you mean 20/s?",
		"limits: [{name: a, rate: 5/m, key: [ip], on_exceed: {ban: {after: 20, for: 1h}}}]": "did you mean 20/m?",
		"limits: [{name: a, rate: 1/s, match: {header: {x-a: b}}}]":                         `write "header:x-a": b`,
		"limits: [{name: a, rate: 1/s, store: memory}]":                                     "at the top of the file",
		"rate: 5/s\nlimits: [{name: a, rate: 1/s}]":                                         "belongs to one limit",
	} {
		_, err := Parse("l.yaml", []byte(text))
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want %q: %v", text, want, err)
		}
		if strings.Contains(text, "semaphore") && strings.Contains(err.Error(), "add rate") {
			t.Errorf("%s: what follows is about another algorithm: %v", text, err)
		}
	}
	for name, want := range map[string]string{"jwt.sub": "claim:sub", "cookie.session": "cookie:session", "$remote_addr": "ip"} {
		if got, _ := nearAttribute(name); got != want {
			t.Errorf("%s: %q is suggested, want %q", name, got, want)
		}
	}
}

// TestSuggestedRatesCanBeRead: a rate in a hint can be written as it stands.
func TestSuggestedRatesCanBeRead(t *testing.T) {
	files, err := filepath.Glob("testdata/bad/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal(files, err)
	}
	rate := regexp.MustCompile(`(?:rate: |did you mean )([^\s,}\]?]*/[^\s,}\]?]+)`)
	n := 0
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "  hint: ") {
				continue
			}
			for _, m := range rate.FindAllStringSubmatch(line, -1) {
				n++
				if _, err := limit.ParseRate(m[1]); err != nil {
					t.Errorf("%s: %s: %v", name, strings.TrimSpace(line), err)
				}
			}
		}
	}
	if n < 30 {
		t.Errorf("%d rates were found in hints, want at least 30", n)
	}
}
