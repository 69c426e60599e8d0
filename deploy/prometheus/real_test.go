package prometheus_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
)

// patience bounds every wait for something that is sure to come.
const patience = 60 * time.Second

// monitored is a real Prometheus with our rules, and real servers that it scrapes.
type monitored struct {
	t   *testing.T
	url string
}

// start runs a command until the test ends. It is told to end before it is killed.
func start(t *testing.T, name string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "STATE_DIRECTORY=", "XDG_STATE_HOME="+t.TempDir())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		_ = log.Close()
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("%s %s:\n%s", name, args[0], text)
		}
	})
}

// get asks until the answer is wanted.
func get(t *testing.T, url string, wanted func(status int, body string) bool) string {
	t.Helper()
	var last string
	for deadline := time.Now().Add(patience); time.Now().Before(deadline); <-time.After(20 * time.Millisecond) {
		answer, err := http.Get(url)
		if err != nil {
			last = err.Error()
			continue
		}
		body, err := io.ReadAll(answer.Body)
		if err = errors.Join(err, answer.Body.Close()); err != nil {
			last = err.Error()
			continue
		}
		if last = string(body); wanted(answer.StatusCode, last) {
			return last
		}
	}
	t.Fatalf("%s never answered as wanted, but\n%s", url, last)
	return ""
}

func ok(status int, _ string) bool { return status == http.StatusOK }

const monitoredLimits = `
limits:
  - {name: api, key: [user], rate: 10/s, burst: 5, soft: 50%}
  - {name: shadow, match: {path: /shadow}, rate: 1/hour, shadow: true}
  - {name: waits, match: {path: /wait}, rate: 100/s, on_exceed: {queue: {max_wait: 1s, length: 5}}}
  - {name: bans, match: {path: /login}, key: [ip], rate: 5/minute, on_exceed: {reject: 429, ban: {for: 15m, after: 20/minute}}}
  - {name: leased, match: {path: /leased}, rate: 1000/s, sharing: leased}
`

// monitor starts a service in memory, one with Redis in a cluster, a proxy with a throttle, and a
// Prometheus that scrapes them and evaluates the rules, all faster than anybody would.
func monitor(t *testing.T) *monitored {
	t.Helper()
	dir := t.TempDir()
	write := func(name, text string) string {
		name = filepath.Join(dir, name)
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return name
	}
	stint := filepath.Join(dir, "stint")
	if out, err := exec.Command("go", "build", "-o", stint, "../../cmd/stint").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	port := func() string { return fmt.Sprint("127.0.0.1:", redistest.ReservePort(t)) }
	limits := write("limits.yaml", monitoredLimits)
	throttled := write("proxy.yaml", "limits:\n  - {name: door, rate: 1000/s}\nthrottle: {concurrency: 10}\n")
	redis := redistest.Start(t).URL()

	var services, admins []string
	for _, more := range [][]string{
		{"--resp", port()},
		{"--store", redis, "--cluster", redis, "--node", "one"},
	} {
		service, admin := port(), port()
		services, admins = append(services, service), append(admins, admin)
		start(t, stint, append([]string{"serve", "--config", limits, "--http", service, "--grpc", port(), "--admin", admin}, more...)...)
	}
	entrance, admin := port(), port()
	start(t, stint, "proxy", "--upstream", "http://"+services[0], "--config", throttled, "--http", entrance, "--admin", admin)
	admins = append(admins, admin)
	for _, a := range admins {
		get(t, "http://"+a+"/healthz", ok)
	}
	ask(t, services)
	get(t, "http://"+entrance+"/healthz", ok)

	rules, err := filepath.Abs("stint.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	config := write("prometheus.yml", fmt.Sprintf(`
global: {scrape_interval: 200ms, evaluation_interval: 200ms}
rule_files: [%q]
scrape_configs:
  - job_name: stint
    static_configs: [{targets: [%s]}]
`, rules, strings.Join(admins, ", ")))
	m := &monitored{t, "http://" + port()}
	start(t, "prometheus", "--config.file="+config, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address="+strings.TrimPrefix(m.url, "http://"), "--log.level=warn")
	get(t, m.url+"/-/ready", ok)
	for _, expression := range []string{`count(up{job="stint"} == 1) == 3`, `count(count_over_time(stint_build_info[1m]) > 2) == 3`} {
		m.await(expression)
	}
	ask(t, services) // what is counted from here on has a rate
	m.await(`sum(rate(stint_decisions_total{limit="api", outcome="refused"}[1m])) > 0`)
	return m
}

// ask has every kind of limit asked at each service.
func ask(t *testing.T, services []string) {
	t.Helper()
	for _, s := range services {
		for _, path := range []string{"/login", "/shadow", "/wait", "/leased"} {
			for range 10 {
				answer, err := http.Post("http://"+s+"/v1/take", "application/json", strings.NewReader(`{"attributes": {"user": "u", "ip": "192.0.2.7", "path": "`+path+`"}}`))
				if err != nil {
					t.Fatal(err)
				}
				if answer.StatusCode != http.StatusOK && answer.StatusCode != http.StatusTooManyRequests {
					t.Fatalf("a take ends with %s", answer.Status)
				}
				_ = answer.Body.Close()
			}
		}
	}
}

// result is what the API of Prometheus answers.
type result struct {
	Status, Error string
	Data          json.RawMessage
}

// call reads an answer of the API.
func (m *monitored) call(path string, query url.Values, to any) error {
	answer, err := http.Get(m.url + path + "?" + query.Encode())
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	var r result
	if err := json.NewDecoder(answer.Body).Decode(&r); err != nil {
		return err
	}
	if r.Status != "success" {
		return fmt.Errorf("prometheus: %s: %s", r.Status, r.Error)
	}
	return json.Unmarshal(r.Data, to)
}

// query is how many series an expression has.
func (m *monitored) query(expression string) (int, error) {
	var data struct{ Result []json.RawMessage }
	err := m.call("/api/v1/query", url.Values{"query": {expression}}, &data)
	return len(data.Result), err
}

// await waits until an expression has a series.
func (m *monitored) await(expression string) {
	m.t.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(20 * time.Millisecond) {
		series, err := m.query(expression)
		if err == nil && series > 0 {
			return
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("%s has no series: %v", expression, err)
		}
	}
}

// evaluated returns the rules once all were evaluated.
func (m *monitored) evaluated() []evaluation {
	m.t.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(20 * time.Millisecond) {
		var data struct {
			Groups []struct{ Rules []evaluation }
		}
		if err := m.call("/api/v1/rules", nil, &data); err != nil {
			m.t.Fatal(err)
		}
		var all []evaluation
		for _, g := range data.Groups {
			all = append(all, g.Rules...)
		}
		if len(all) > 0 && !slices.ContainsFunc(all, func(e evaluation) bool { return e.Health == "unknown" }) {
			return all
		}
		if time.Now().After(deadline) {
			m.t.Fatalf("some rules were never evaluated: %+v", all)
		}
	}
}

// evaluation is how a rule stands in Prometheus.
type evaluation struct{ Name, Type, Query, Health, LastError, State string }

// names are all metrics that the servers have sent.
func (m *monitored) names() []string {
	m.t.Helper()
	var names []string
	if err := m.call("/api/v1/label/__name__/values", nil, &names); err != nil {
		m.t.Fatal(err)
	}
	return names
}
