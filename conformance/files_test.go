package conformance_test

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// fileAsker runs a command that reads requests from a file: all steps at once.
type fileAsker struct {
	way, scenario string
	config        string
	read          func(t *testing.T, a *fileAsker, list []step) []reply
}

func (a *fileAsker) in(sc string) { a.scenario = sc }

func (a *fileAsker) ask(t *testing.T, _ query) reply {
	t.Fatalf("%s: asks all steps at once", a.way)
	return reply{}
}

func (a *fileAsker) run(t *testing.T, _ scenario, list []step) []reply { return a.read(t, a, list) }

// replayed asks by stint replay: the log with one more line each time, whose decision is the
// difference.
func replayed(t *testing.T, a *fileAsker, list []step) []reply {
	type figures struct{ Admitted, Refused int }
	var before figures
	var lines []string
	var replies []reply
	for i, st := range list {
		row := map[string]any{
			"time": fmt.Sprintf("2026-01-01T00:00:00.%03dZ", i), "remote_addr": "127.0.0.1",
			"request_method": st.q.verb(), "request_uri": st.q.target(a.scenario), "status": 200, "cost": st.q.tokens(),
		}
		if st.q.ip != "" {
			row["remote_addr"] = st.q.ip
		}
		for _, f := range st.q.header(a.way, a.scenario) {
			row["http_"+strings.ReplaceAll(strings.ToLower(f[0]), "-", "_")] = f[1]
		}
		line, err := json.Marshal(row)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, string(line))
		log := filepath.Join(t.TempDir(), "access.log")
		if err := os.WriteFile(log, []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		out, err := exec.Command(binary, "replay", "--config", a.config, "--cost", "cost", "--json", log).CombinedOutput()
		if err != nil {
			t.Fatalf("stint replay: %v\n%s", err, out)
		}
		var report struct {
			Admitted, Refused int
			Limits            []struct {
				Limit   string
				Refused int
			}
		}
		if err := json.Unmarshal(out, &report); err != nil {
			t.Fatalf("stint replay: %v\n%s", err, out)
		}
		r := reply{retry: -1}
		r.allowed = report.Admitted > before.Admitted
		if !r.allowed && report.Refused == before.Refused {
			r.err = fmt.Errorf("neither admitted nor refused: %s", out)
		}
		for _, l := range report.Limits {
			if l.Refused > 0 && !r.allowed {
				r.limit = l.Limit
			}
		}
		before = figures{report.Admitted, report.Refused}
		replies = append(replies, r)
	}
	return replies
}

// tested asks by stint test: a file whose steps expect what the scenario does. A step that is not as
// expected has an error that says how.
func tested(t *testing.T, a *fileAsker, list []step) []reply {
	var b strings.Builder
	fmt.Fprintf(&b, "config: %q\ntests:\n  - name: asked\n    steps:\n", a.config)
	for _, st := range list {
		fields := map[string]string{}
		for _, f := range st.q.header(a.way, a.scenario) {
			fields[f[0]] = f[1]
		}
		headers, err := json.Marshal(fields)
		if err != nil {
			t.Fatal(err)
		}
		ip := st.q.ip
		if ip == "" {
			ip = "127.0.0.1"
		}
		fmt.Fprintf(&b, "      - {after: 1ms, request: {method: %s, path: %q, ip: %q, headers: %s}, cost: %d, expect: %s}\n",
			st.q.verb(), st.q.target(a.scenario), ip, headers, st.q.tokens(), st.want.expectation())
	}
	name := filepath.Join(t.TempDir(), "asked_test.yaml")
	if err := os.WriteFile(name, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	out, _ := exec.Command(binary, "test", "--json", name).CombinedOutput()
	var report struct {
		OK    bool
		Files []struct {
			Tests []struct {
				Failures []struct {
					Line            int
					What, Got, Want string
				}
			}
		}
	}
	if err := json.Unmarshal(out, &report); err != nil || len(report.Files) != 1 {
		t.Fatalf("stint test: %v\n%s\n%s", err, out, b.String())
	}
	replies := make([]reply, len(list))
	for i, st := range list {
		replies[i] = reply{want: st.want, retry: -1}
		if st.want.retryAtMost > 0 {
			replies[i].retry = st.want.retryAtMost
		}
	}
	const firstLine = 5 // of the first step in the file
	for _, f := range report.Files[0].Tests {
		for _, fault := range f.Failures {
			replies[fault.Line-firstLine].err = fmt.Errorf("%s is %s, want %s", fault.What, fault.Got, fault.Want)
		}
	}
	if !report.OK && len(report.Files[0].Tests) == 0 {
		t.Fatalf("stint test: %s", out)
	}
	return replies
}

// expectation is a want in the words of a test file.
func (w want) expectation() string {
	list := []string{fmt.Sprintf("allowed: %v", w.allowed)}
	add := func(format string, v any) { list = append(list, fmt.Sprintf(format, v)) }
	if !w.allowed {
		add("status: %d", w.status)
		if w.reason != "" {
			add("reason: %s", w.reason)
		}
		if w.limit != "" {
			add("limit: %s", w.limit)
		}
	}
	if w.allowed && w.remaining >= 0 {
		add("remaining: %d", w.remaining)
	}
	if w.warning != "" {
		add("limit: %s, soft: true", w.warning)
	}
	return "{" + strings.Join(list, ", ") + "}"
}

func fileWays() []way {
	ownCounters := map[string]string{
		"file":   "it decides on counters of its own, from empty",
		"redis":  "it decides on counters of its own, from empty",
		"leases": "it decides as one instance that has all of the limit",
	}
	open := func(name string, read func(*testing.T, *fileAsker, []step) []reply) func(*testing.T, *site) asker {
		return func(_ *testing.T, s *site) asker { return &fileAsker{way: name, config: s.config, read: read} }
	}
	return []way{
		{
			name: "stint replay",
			lacks: with(
				each("a report has counts of what was admitted and refused", status, reason, remaining, retry, body, fieldsOut, location, tagged, warning),
				each("a log has what came; nothing waits", waits, reserves, finishes, peeks),
				each("a log is a file of JSON, which is UTF-8", bytes),
				each("a field of a log has one value", twice),
				each("one run has one configuration", reloads),
				each("an empty field of a log means that there is none", empty),
			),
			notShared: ownCounters,
			open:      open("stint replay", replayed),
		},
		{
			name: "stint test",
			lacks: with(
				each("what can be expected are the figures of limits, and no answer", body, fieldsOut, location, tagged),
				each("nothing waits and nothing is settled", waits, reserves, finishes),
				each("a test file is YAML, which is UTF-8", bytes),
				each("headers are a map: a name occurs once", twice),
				each("one file has one configuration", reloads),
			),
			notShared: ownCounters,
			open:      open("stint test", tested),
		},
	}
}
