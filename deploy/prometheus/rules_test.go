// Package prometheus_test holds the rules, and the dashboard beside them, against the programs that read them: a real
// Prometheus with real servers, and promtool.
package prometheus_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func read(t *testing.T, elements ...string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(elements...))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// alerts are the names of all alerts in the rules, with their texts.
func alerts(t *testing.T) map[string]string {
	t.Helper()
	found := map[string]string{}
	for _, text := range strings.Split(read(t, "stint.rules.yml"), "- alert: ")[1:] {
		name, rest, _ := strings.Cut(text, "\n")
		if found[name] != "" {
			t.Errorf("there are two alerts %s", name)
		}
		found[name] = rest
	}
	if len(found) < 20 {
		t.Fatalf("found %d alerts only: the search is wrong", len(found))
	}
	return found
}

// TestAlerts: promtool accepts the rules and its tests of them pass. Each alert has a test in which
// it fires and one in which it does not, a severity, a summary, a description, and its section in the reference.
func TestAlerts(t *testing.T) {
	if testing.Short() {
		t.Skip("processes of their own: nothing for the race detector")
	}
	for _, args := range [][]string{{"check", "rules", "stint.rules.yml"}, {"test", "rules", "stint.rules.test.yml", "stint.hours.test.yml"}} {
		if out, err := exec.Command("promtool", args...).CombinedOutput(); err != nil {
			t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
		}
	}
	tests, page := read(t, "stint.rules.test.yml")+read(t, "stint.hours.test.yml"), read(t, "..", "..", "docs", "reference", "alerts.md")
	all := alerts(t)
	for name, text := range all {
		for _, want := range []string{`severity: (page|warning)\b`, ` summary: ".+\."`, ` description: ".+\."`, `alerts\.md#` + strings.ToLower(name) + "\n"} {
			if !regexp.MustCompile(want).MatchString(text + "\n") {
				t.Errorf("alert %s has no %s", name, want)
			}
		}
		for _, want := range []string{" fires\n", " stays quiet\n"} {
			if !strings.Contains(tests, "  - name: "+name+want) {
				t.Errorf("no test says that %s%s", name, want)
			}
		}
		if !strings.Contains(page, "\n### "+name+"\n") {
			t.Errorf("docs/reference/alerts.md has no section %s", name)
		}
	}
	for _, m := range regexp.MustCompile(`\n### (\w+)`).FindAllStringSubmatch(page, -1) {
		if all[m[1]] == "" {
			t.Errorf("docs/reference/alerts.md has a section %s, and there is no such alert", m[1])
		}
	}
}

// expressions are those of the dashboard, by the titles of their panels.
func expressions(t *testing.T) map[string][]string {
	t.Helper()
	var d struct {
		Annotations struct{ List []struct{ Name, Expr string } }
		Panels      []struct {
			Title   string
			Targets []struct{ Expr string }
		}
	}
	if err := json.Unmarshal([]byte(read(t, "..", "grafana", "stint.json")), &d); err != nil {
		t.Fatal(err)
	}
	found := map[string][]string{}
	// As Grafana does with All, and a short interval.
	fill := strings.NewReplacer("$job", ".*", "$limit", ".*", "$__rate_interval", "1m")
	for _, p := range d.Panels {
		for _, target := range p.Targets {
			found[p.Title] = append(found[p.Title], fill.Replace(target.Expr))
		}
	}
	for _, a := range d.Annotations.List {
		found[a.Name] = append(found[a.Name], fill.Replace(a.Expr))
	}
	if len(found) < 30 {
		t.Fatalf("found %d panels only: the search is wrong", len(found))
	}
	return found
}

// withData are the panels that have something to show in the test.
var withData = []string{
	"Decisions by outcome", "Decisions by limit", "Share refused", "Refusals by reason", "Keys banned", "Would be refused, and tagged",
	"Requests for decisions, 99 %", "Requests for decisions, median", "Processor",
	"The store answers", "Calls, and those that failed", "Round trip", "Memory of counters", "Counts file: since the last good write",
	"Instances and streams", "Shards led", "Epoch", "Last load was successful",
	"Requests that wait for a limit", "How waits ended", "Throttle: running, allowed, waiting", "Proxy: answers", "Proxy: upstreams",
	"Above the soft threshold", "Crossing events", "Usage reports",
}

// TestPrometheus: a real Prometheus scrapes real servers, evaluates every rule without an error, and
// answers every expression of the dashboard. Each metric that rules and dashboard name comes from
// these servers, or is in the reference.
func TestPrometheus(t *testing.T) {
	if testing.Short() {
		t.Skip("processes of their own: nothing for the race detector")
	}
	m := monitor(t)
	rules, recorded, firing := m.evaluated(), map[string]bool{}, []string{}
	for _, e := range rules {
		if e.Health != "ok" || e.LastError != "" {
			t.Errorf("rule %s: %s %s", e.Name, e.Health, e.LastError)
		}
		if e.Type == "recording" {
			recorded[e.Name] = true
		}
		if e.State == "firing" {
			firing = append(firing, e.Name)
		}
	}
	if len(rules) != len(recorded)+len(alerts(t)) {
		t.Errorf("Prometheus has %d rules, of which %d record, and the file has %d alerts", len(rules), len(recorded), len(alerts(t)))
	}
	if len(firing) > 0 {
		t.Errorf("of servers without a fault %q fire", firing)
	}
	panels := expressions(t)
	for title, all := range panels {
		for _, expression := range all {
			if _, err := m.query(expression); err != nil {
				t.Errorf("%s: %s: %v", title, expression, err)
			} else if slices.Contains(withData, title) {
				m.await(expression)
			}
		}
	}
	for _, title := range withData {
		if len(panels[title]) == 0 {
			t.Errorf("the dashboard has no panel %q", title)
		}
	}

	reference := ""
	for _, page := range []string{"service", "proxy", "plans", "events", "usage"} {
		reference += read(t, "..", "..", "docs", "reference", page+".md")
	}
	scraped, unseen := m.names(), []string{}
	for _, name := range metricNames(t) {
		base := strings.TrimSuffix(name, "_bucket")
		switch {
		case recorded[name] || slices.Contains(scraped, name):
		case regexp.MustCompile("`" + base + "[`{]").MatchString(reference):
			unseen = append(unseen, name)
		default:
			t.Errorf("%s is named, and no server has it, nor the reference", name)
		}
	}
	t.Logf("%d rules, %d metrics named; from the reference alone: %q", len(rules), len(metricNames(t)), unseen)
	if len(unseen) > 16 {
		t.Errorf("%d metrics were not seen: too few servers are scraped", len(unseen))
	}
}

// metricNames are all metrics that rules and dashboard name.
func metricNames(t *testing.T) []string {
	t.Helper()
	text := read(t, "stint.rules.yml")
	for _, all := range expressions(t) {
		text += strings.Join(all, "\n") + "\n"
	}
	text = regexp.MustCompile(`(?m)^\s*(#|- (alert|record|name):|summary:|description:|runbook_url:).*$|"[^"\n]*"`).ReplaceAllString(text, "")
	names := regexp.MustCompile(`\b(?:[a-z_]+:)?stint_[a-z_]+(?::[a-z0-9_]+)?`).FindAllString(text, -1)
	slices.Sort(names)
	return slices.Compact(names)
}
