package overload

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/sim/internal/report"
)

const good = `name: small
duration: 1s
servers: {a: {cores: 2}, b: {cores: 1, discipline: sharing}}
routes:
  get: {at: a, work: {exponential: 1ms}, slo: 20ms, timeout: 100ms, calls: [{at: b, work: {lognormal: 1ms}, times: 2}]}
load:
  - {name: users, route: get, demand: {0s: 100/s, 500ms: 900/s}, class: critical, levels: request, users: 10, clients: 2, retries: 1, backoff: 5ms}
  - {route: get, demand: 50/s, arrivals: even, class: 5}
network: {delay: 1ms}
measure: {from: 500ms, step: 500ms, band: 10ms}
stint: {max_queue: 5ms}
systems: [stint, {name: mine, rate: 90%, client_throttle: 2}, {name: strict, model: dagor, target: 5ms}, none]
show: [goodput, good class 5, p99 users]
`

// The ready scenarios are good, say what they are about, and can be played: here their first part.
func TestExampleScenarios(t *testing.T) {
	paths, err := filepath.Glob("../../examples/scenarios/overload-*.yaml")
	if err != nil || len(paths) < 8 {
		t.Fatalf("%d scenarios, %v", len(paths), err)
	}
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".yaml"), func(t *testing.T) {
			text, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			about, _, _ := strings.Cut(string(text), "\nname:")
			for _, want := range []string{"# Look at:", "# Goal"} {
				if !strings.Contains(about, want) {
					t.Errorf("the comment has no %q", want)
				}
			}
			if !Speaks(path) {
				t.Error("it is not known for what it is")
			}
			f, err := ParseFile(path)
			if err != nil {
				t.Fatal(err)
			}
			systems, err := f.Choose()
			if err != nil {
				t.Fatal(err)
			}
			s := f.Scenario
			s.Duration = min(s.Duration, 300*time.Millisecond)
			for _, l := range s.Loads {
				if l.Rate[0].Rate > 1e5 {
					s.Duration = min(s.Duration, 10*time.Millisecond)
				}
			}
			s.Measure = Measure{Band: s.Measure.Band}
			for _, system := range systems {
				if r := play(t, s, system); r.All.Offered == 0 {
					t.Errorf("%s: no requests", system.Name())
				}
			}
		})
	}
}

func TestParseScenario(t *testing.T) {
	f, err := ParseScenario([]byte(good), "good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s := f.Scenario
	if len(s.Servers) != 2 || s.Servers[1].Discipline != Sharing || len(s.Routes[0].Step.Calls) != 2 || s.Loads[0].Class != 2 ||
		s.Loads[0].Rate[1] != (RateStep{500 * ms, 900}) || !s.Loads[1].Even || f.own.MaxQueue != 5*ms {
		t.Errorf("got %+v", f)
	}
	for _, tt := range []struct{ from, to, want string }{
		{"servers:", "severs:", "did you mean servers?"},
		{"{cores: 2}", "{}", "has no cores"},
		{"at: b", "at: c", `there is no server "c"`},
		{"route: get, demand: 50/s", "route: got, demand: 50/s", "did you mean get?"},
		{"demand: 50/s", "rate: 50/s", "the load has no demand"},
		{"class: critical", "class: critcal", "did you mean critical?"},
		{"class: 5", "class: 9", "from 0 to 7"},
		{"{exponential: 1ms}", "{exponential: 1ms, lognormal: 1ms}", "one of exponential, lognormal and bimodal"},
		{"model: dagor", "model: dagr", "did you mean dagor?"},
		{"target: 5ms", "rate: 5%", "rate is no option of dagor"},
		{"name: mine", "name: wisp", "a name of its own"},
		{"client_throttle: 2", "client_throttle: 1", "from 1.1 to 100"},
		{"p99 users", "p99 usres", "did you mean p99 users?"},
		{"duration: 1s", "duration: 2h", "duration is 2h"},
		{"from: 500ms", "from: 2s", "within the duration"},
		{"lognormal: 1ms", "lognormal: 1ms, sigma: 9", "sigma is 9"},
		{"{0s: 100/s, 500ms: 900/s}", "{500ms: 100/s, 0s: 900/s}", "in order of time"},
	} {
		text := strings.Replace(good, tt.from, tt.to, 1)
		if text == good {
			t.Fatalf("%q is not in the file", tt.from)
		}
		_, err := ParseScenario([]byte(text), "bad.yaml")
		if list := rules.Errors(nil); !errors.As(err, &list) || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", tt.to, err, tt.want)
		}
	}
	deep := good
	for range 5 {
		deep = strings.Replace(deep, "times: 2}]", "times: 1000, calls: [{at: b, work: 1ms, times: 2}]}]", 1)
	}
	for _, text := range []string{deep, "", "[]", "random: {overload: 1000}\nduration: 1s", "random: {}\nduration: 1s\nservers: {a: {cores: 1}}"} {
		if _, err := ParseScenario([]byte(text), "bad.yaml"); err == nil {
			t.Errorf("%q is accepted", text)
		}
	}
}

// FuzzScenario: no text makes the parser crash, and what it accepts can be begun.
func FuzzScenario(f *testing.F) {
	f.Add(good)
	f.Add("random: {overload: 2}\nduration: 1s\n")
	f.Add("servers: &a {a: {cores: 1}}\nroutes: *a\nload: [{}]\nduration: 1s")
	f.Fuzz(func(t *testing.T, text string) {
		file, err := ParseScenario([]byte(text), "fuzz.yaml")
		if err != nil {
			return
		}
		systems, err := file.Choose()
		if err != nil {
			t.Fatal(err)
		}
		s := file.Scenario
		for _, l := range s.Loads {
			for _, step := range l.Rate {
				if step.Rate > 1e4 || l.Clients > 100 {
					return // it would take long
				}
			}
		}
		s.Duration, s.Measure = min(s.Duration, ms), Measure{}
		if len(s.Servers) < 20 {
			play(t, s, systems[0])
		}
	})
}

func TestCompare(t *testing.T) {
	f, err := ParseScenario([]byte(good), "good.yaml")
	if err != nil {
		t.Fatal(err)
	}
	systems, err := f.Choose()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Compare(t.Context(), f.Scenario, systems, 2)
	if err != nil {
		t.Fatal(err)
	}
	for format, wants := range map[report.Format][]string{
		report.Text: {"small: 2 servers, 1s, 2 runs with seeds 0 to 1", "\nmine ", "good class 5", "p99 users (ms)", "median", "±"},
		report.CSV:  {"system,goodput (1/s)", "\nstrict,"}, report.Markdown: {"| system | goodput (1/s) |"}, report.JSONText: {`"servers": 2`, `"system": "none"`},
	} {
		var out bytes.Buffer
		if err := c.WriteTable(&out, format, f.Show); err != nil {
			t.Fatal(err)
		}
		for _, want := range wants {
			if !strings.Contains(out.String(), want) {
				t.Errorf("format %d lacks %q:\n%s", format, want, out.String())
			}
		}
	}
	if err := c.WriteTable(io.Discard, report.Text, []string{"none"}); err == nil {
		t.Error("a figure that there is not: no error")
	}
	var svg bytes.Buffer
	if err := c.WriteChart(&svg); err != nil {
		t.Fatal(err)
	}
	decoder := xml.NewDecoder(&svg)
	for {
		_, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Compare(t.Context(), f.Scenario, systems, 0); err == nil {
		t.Error("0 runs are accepted")
	}
	if _, err := f.Choose("stint", "stint", "wips"); err == nil || !strings.Contains(err.Error(), "named twice") || !strings.Contains(err.Error(), "did you mean wisp?") {
		t.Errorf("got %v", err)
	}
	for _, name := range DefaultFigures() {
		if full, err := f.Scenario.FigureNamed(name); err != nil || full != name {
			t.Errorf("%q: %q, %v", name, full, err)
		}
	}
}

// The page about these files shows one that is good, and speaks of every key, system and figure.
func TestPage(t *testing.T) {
	text, err := os.ReadFile("../../docs/reference/simulate-servers.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "```yaml\n")
	if !ok {
		t.Fatal("the page shows no file")
	}
	src, _, _ := strings.Cut(rest, "```")
	if _, err := ParseScenario([]byte(src), "page.yaml"); err != nil {
		t.Error(err)
	}
	var figures []string
	for _, f := range general {
		figures = append(figures, f.Name)
	}
	for _, word := range slices.Concat(ownKeys, modelKeys, SystemNames(), figures) {
		if !strings.Contains(string(text), "`"+word) {
			t.Errorf("the page lacks %s", word)
		}
	}
}
