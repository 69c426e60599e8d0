package limittest

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stint-io/stint/rules"
)

const someLimits = `
limits:
  - name: login
    match: {method: POST, path: /login}
    key: [ip]
    rate: 5/minute
    algorithm: fixed_window
  - name: api
    match: {path: /api/*}
    key: ["header:x-api-key", "query:tenant"]
    missing: all
    rate: 10/s
    burst: 3
    on_exceed: {reject: 503}
  - {name: slow, match: {path: /slow}, algorithm: concurrency, max_in_flight: 2, timeout: 1m}
`

// play runs a file with those limits beside it.
func play(t *testing.T, text string) (*Report, error) {
	t.Helper()
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "stint.yaml"), []byte(someLimits), 0o600); err != nil {
		t.Fatal(err)
	}
	return Run(t.Context(), filepath.Join(dir, "x_test.yaml"), []byte(text))
}

// A file whose expectations are met passes; each expectation that is changed fails, at its line.
func TestExpectations(t *testing.T) {
	const good = `config: stint.yaml
start: 2026-05-01T00:00:00Z
tests:
  - name: logins
    steps:
      - request: {method: POST, path: /login, ip: 192.0.2.7}
        repeat: 5
        expect: {allowed: true, status: 200, limit: login, matches: [login], reason: none}
      - request: {method: POST, path: "//login?x=1", ip: 192.0.2.7}
        repeat: 2
        expect: {allowed: false, status: 429, limit: login, reason: rate_exceeded, remaining: 0, retry_after: 1m}
      - at: 59s
        request: {method: POST, path: /login, ip: 192.0.2.7}
        expect: {allowed: false, retry_after: 1s, reset_after: 1s}
      - after: 1s
        request: {method: POST, path: /login, ip: 192.0.2.7}
        expect: {remaining: 4}
  - name: keys of header fields and of the query
    steps:
      - request: {path: "/api/x?tenant=a", headers: {X-Api-Key: k}}
        repeat: 5
        expect: {admitted: 3}
      - request: {path: "/api/x?tenant=b", headers: {X-Api-Key: k}}
        cost: 4
        expect: {allowed: false, reason: cost_exceeds_limit, retry_after: never, status: 503}
      - request: {path: /none}
        expect: {allowed: true, matches: []}
  - name: in flight
    steps:
      - request: {path: /slow}
        repeat: 4
        expect: {admitted: 4}
      - request: {path: /slow}
        repeat: 4
        hold: true
        expect: {admitted: 2}
`
	report, err := play(t, good)
	if err != nil || report.Failed != 0 || report.Passed != 3 {
		t.Fatalf("%+v, %v", report, err)
	}
	for _, c := range []struct {
		old, changed, what string
		line               int
	}{
		{"allowed: true, status: 200", "allowed: false, status: 200", "allowed", 8},
		{"status: 200", "status: 429", "status", 8},
		{"limit: login, matches: [login]", "limit: slow, matches: [login]", "limit", 8},
		{"matches: [login]", "matches: [login, api]", "matches", 8},
		{"reason: none", "reason: banned", "reason", 8},
		{"remaining: 0", "remaining: 1", "remaining", 11},
		{"retry_after: 1m}", "retry_after: 59s}", "retry_after", 11},
		{"reset_after: 1s", "reset_after: 2s", "reset_after", 14},
		{"at: 59s", "at: 58s", "retry_after", 14},
		{"after: 1s\n", "after: 999ms\n", "remaining", 17},
		{"admitted: 3", "admitted: 4", "admitted", 22},
		{"matches: []", "matches: [api]", "matches", 27},
		{"expect: {admitted: 2}", "expect: {admitted: 3}", "admitted", 36},
		{"expect: {remaining: 4}", "expect: {remaining: 4, soft: true}", "soft", 17},
	} {
		report, err := play(t, strings.Replace(good, c.old, c.changed, 1))
		if err != nil || report.Failed != 1 {
			t.Errorf("%s: %+v, %v", c.changed, report, err)
			continue
		}
		found := false
		for _, test := range report.Tests {
			for _, f := range test.Failures {
				found = found || f.What == c.what && f.Line == c.line
			}
		}
		if !found {
			t.Errorf("%s: want a failure of %s in line %d: %+v", c.changed, c.what, c.line, report.Tests)
		}
	}
}

// Faults of a file have a place and a way out.
func TestFaults(t *testing.T) {
	for _, c := range []struct{ text, want string }{
		{"", "the file is empty"},
		{"tests: []", "names no limits file"},
		{"config: stint.yaml", "no list of tests"},
		{"config: stint.yaml\ntests:\n  - {name: a, step: []}", `x_test.yaml:3:15: unknown key "step"`},
		{"config: stint.yaml\ntests:\n  - {name: a, step: []}", "did you mean steps?"},
		{"config: stint.yaml\ntests:\n  - {name: a, steps: [{request: {path: /}, expect: {limit: logn}}]}", `there is no limit "logn"`},
		{"config: stint.yaml\ntests:\n  - {name: a, steps: [{request: {path: /}, expect: {limit: logn}}]}", "did you mean login?"},
		{"config: stint.yaml\ntests:\n  - {steps: [{request: {path: /}, at: soon, repeat: 0, cost: -1}]}", "a duration such as"},
		{"config: stint.yaml\ntests:\n  - {steps: [{request: {path: /}, at: soon, repeat: 0, cost: -1}]}", "from 1 to 1000000"},
		{"config: stint.yaml\ntests:\n  - {steps: [{request: {path: /}, at: soon, repeat: 0, cost: -1}]}", "the test has no name"},
		{"config: stint.yaml\ntests:\n  - {name: a, steps: [{at: 2s, request: {a: b}}, {at: 1s, request: {a: b}}]}", "in the order of their times"},
		{"config: stint.yaml\ntests:\n  - {name: a, steps: [{at: 2s, after: 1s, request: {a: [b]}}]}", "both at and after"},
		{"config: stint.yaml\ntests:\n  - {name: a, steps: [{request: {a: [b]}}]}", "the value of the attribute a"},
		{"config: stint.yaml\nstart: now\ntests:\n  - {name: a, steps: [{}]}", "a time from 1971"},
		{"config: other.yaml\ntests:\n  - {name: a, steps: [{request: {a: b}}]}", "other.yaml"},
	} {
		report, err := play(t, c.text)
		if err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %+v, %v, want %s", c.text, report, err, c.want)
		}
	}
}

// FuzzRun: no file ends the process; each is faults or a report that counts its tests.
func FuzzRun(f *testing.F) {
	f.Add("config: stint.yaml\ntests:\n  - {name: a, steps: [{at: 2s, request: {ip: b, headers: {a: b}}, repeat: 3, expect: {admitted: 1}}]}")
	f.Add("config: [a, &x b]\nstart: *x\ntests: [{}]")
	f.Fuzz(func(t *testing.T, text string) {
		file, err := parse("x_test.yaml", []byte(text))
		if err != nil {
			if list := rules.Errors(nil); !errors.As(err, &list) {
				t.Fatalf("%T: %v", err, err)
			}
			return
		}
		set, err := rules.Parse("stint.yaml", []byte(someLimits))
		if err != nil {
			t.Fatal(err)
		}
		if file.check(set) != nil {
			return
		}
		for i := range file.tests {
			for k := range file.tests[i].steps {
				file.tests[i].steps[k].repeat = min(file.tests[i].steps[k].repeat, 10)
			}
			if r, err := file.tests[i].run(t.Context(), set, file.start); err == nil && r.OK != (len(r.Failures) == 0) {
				t.Fatal(fmt.Sprint(r))
			}
		}
	})
}
