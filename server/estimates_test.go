package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/server"
)

const learnedLimits = `estimates: {by: [model, tenant], start: 1000}
limits: [{name: tokens, key: [tenant], rate: 100000/month, algorithm: fixed_window}]
`

type estimatedAnswer struct {
	reservationAnswer
	Estimate *struct {
		Cost, Settled, Declared int64
		From                    string
		Whole                   bool
	}
}

func (s *service) estimated(path, body string) (out estimatedAnswer) {
	s.t.Helper()
	got := s.post(path, body)
	if err := json.Unmarshal([]byte(got.body), &out); err != nil || got.status != http.StatusOK {
		s.t.Fatal(path, body, got.status, got.body, err)
	}
	return out
}

// learn reserves by an estimate, and commits an actual cost at another server, several times.
func learn(at, other *service, tenant string, times int, actual int64) (last estimatedAnswer) {
	for range times {
		last = at.estimated("/v1/reserve", fmt.Sprintf(`{"attributes":{"model":"large","tenant":%q,"max_tokens":"4096"}}`, tenant))
		other.estimated("/v1/commit", fmt.Sprintf(`{"id":%q,"actual":%d}`, last.ID, actual))
	}
	return last
}

// A cost that is left out is estimated from what was committed, in memory; the answers say by what, and so do explain and
// the metrics. What is declared may be a field or an attribute.
func TestEstimates(t *testing.T) {
	s := start(t, learnedLimits)
	one := s.estimated("/v1/reserve", `{"attributes":{"model":"large","tenant":"acme","max_tokens":"4096"}}`)
	if e := one.Estimate; e == nil || one.Reserved != 1000 || e.From != "start" || e.Declared != 4096 || one.Limits[0].Remaining != 99000 {
		t.Fatalf("%+v %+v", one, e)
	}
	if done := s.estimated("/v1/commit", `{"id":"`+one.ID+`","actual":1500}`); *done.Actual != 1500 || done.Estimate.Cost != 1000 {
		t.Errorf("%+v", done)
	}
	learn(s, s, "acme", 40, 300)
	small := s.estimated("/v1/reserve", `{"attributes":{"model":"large","tenant":"acme"},"declared":100}`)
	if small.Reserved != 100 || small.Estimate.From != "model" {
		t.Errorf("%+v %+v", small, small.Estimate)
	}
	x := s.estimated("/v1/explain", `{"attributes":{"model":"large","tenant":"acme","max_tokens":"5000"}}`)
	if e := x.Estimate; e == nil || e.From != "own" || e.Settled != 41 || e.Cost < 290 || e.Cost > 310 {
		t.Errorf("explain: %+v", e)
	}
	if x := s.estimated("/v1/explain", `{"attributes":{"tenant":"new","model":"large"}}`); x.Estimate.From != "model" {
		t.Errorf("explain: %+v", x.Estimate)
	}
	if x := s.estimated("/v1/explain", `{"attributes":{"ip":"192.0.2.7"}}`); x.Estimate != nil {
		t.Errorf("explain of what has no model: %+v", x.Estimate)
	}
	given := s.estimated("/v1/reserve", `{"attributes":{"model":"large","tenant":"acme","max_tokens":"NaN"},"cost":7}`)
	if given.Reserved != 7 || given.Estimate != nil {
		t.Errorf("%+v", given)
	}
	for _, metric := range []string{
		`stint_estimates_total{from="own"} 40`, `stint_estimates_total{from="model"} 1`, `stint_estimates_total{from="start"} 1`,
		`stint_estimates_settled_total{result="low"} 1`, `stint_estimates_settled_total{result="enough"} 40`,
		`stint_estimates_error_cost_total{direction="under"} 500`, `stint_estimates_actual_cost_total 13500`,
		`stint_estimates_learned{of="own"} 1`, `stint_estimates_learned{of="model"} 1`,
	} {
		if page := s.do(http.MethodGet, s.admin+"/metrics", "").body; !strings.Contains(page, metric+"\n") {
			t.Errorf("no %s in\n%s", metric, strings.Join(regexp.MustCompile(`(?m)^stint_estimates.*$`).FindAllString(page, -1), "\n"))
		}
	}
	for body, want := range map[string]string{
		`{"attributes":{"model":"m","max_tokens":"NaN"}}`:                 "want a whole number from 1",
		`{"attributes":{"model":"m","max_tokens":"9223372036854775808"}}`: "want a whole number from 1",
		`{"attributes":{"model":"m","max_tokens":"-1"}}`:                  "want a whole number from 1",
		`{"attributes":{"model":"m"},"declared":0}`:                       "declared is 0",
		`{"attributes":{"model":"m"},"declared":9223372036854775808}`:     "want a whole number",
		`{"attributes":{"model":"m"},"declared":"7"}`:                     "want a whole number",
		`{"attributes":{"model":"m"},"declared":1.5}`:                     "want a whole number",
		`{"attributes":{"model":"m","max_tokens":"7"},"declared":7}`:      "give one of them",
		`{"attributes":{"model":"m"},"cost":0}`:                           "leave it out",
	} {
		if got := s.post("/v1/reserve", body); got.status != http.StatusBadRequest || !strings.Contains(got.body, want) {
			t.Errorf("%s: %d %s, want %s", body, got.status, got.body, want)
		}
	}
}

// A reload changes what is estimated; without the section nothing is, and a cost that is left out is 1.
func TestEstimatesAreReloaded(t *testing.T) {
	s := start(t, learnedLimits)
	learn(s, s, "acme", 40, 300)
	reload := func(file string) {
		t.Helper()
		if err := os.WriteFile(s.path, []byte(file), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := s.Reload(); err != nil {
			t.Fatal(err)
		}
	}
	const ask = `{"attributes":{"model":"large","tenant":"acme","max_tokens":"4096"}}`
	reload(strings.Replace(learnedLimits, "1000", "2000", 1))
	if got := s.estimated("/v1/reserve", ask); got.Estimate.From != "own" {
		t.Errorf("another start: %+v", got.Estimate)
	}
	reload(strings.Replace(learnedLimits, "start", "quantile: 0.5, start", 1))
	if got := s.estimated("/v1/reserve", ask); got.Estimate.From != "start" {
		t.Errorf("another quantile: %+v", got.Estimate)
	}
	reload(learnedLimits[strings.Index(learnedLimits, "limits"):])
	if got := s.estimated("/v1/reserve", ask); got.Reserved != 1 || got.Estimate != nil {
		t.Errorf("without the section: %+v", got)
	}
	if got := s.post("/v1/reserve", `{"attributes":{},"declared":9}`); got.status != http.StatusBadRequest || !strings.Contains(got.body, "estimates:") {
		t.Errorf("%+v", got)
	}
}

// Near the end of a budget what is declared is reserved, and the answer says so.
func TestEstimatesNearTheEnd(t *testing.T) {
	s := start(t, strings.Replace(learnedLimits, "100000", "8000", 1))
	const ask = `{"attributes":{"model":"large","tenant":"acme","max_tokens":"4096"}}`
	if one := s.estimated("/v1/reserve", ask); one.Estimate.Whole || one.Reserved != 1000 {
		t.Errorf("3096 of the 7000 that are left might be used as well: %+v %+v", one, one.Estimate)
	}
	two := s.estimated("/v1/reserve", ask)
	if !two.Estimate.Whole || two.Reserved != 4096 || two.Estimate.Cost != 1000 {
		t.Errorf("6192 of the 6000 that are left might be used: %+v %+v", two, two.Estimate)
	}
	if got := s.post("/v1/reserve", ask); got.status != http.StatusTooManyRequests {
		t.Errorf("%+v", got)
	}
	if got := s.estimated("/v1/reserve", `{"attributes":{"tenant":"acme"},"cost":2904}`); got.Limits[0].Remaining != 0 {
		t.Errorf("a refusal has left something charged: %+v", got)
	}
}

// What is learned is there after a restart with a state directory, and after one in memory it is not; two servers of one
// Redis learn from what each commits, whichever has reserved it.
func TestEstimatesOutliveAServer(t *testing.T) {
	const ask = `{"attributes":{"model":"large","tenant":"acme","max_tokens":"4096"}}`
	folder := t.TempDir()
	for from, adjust := range map[string]func(*server.Options){"own": func(o *server.Options) { o.StateDir = folder }, "start": func(*server.Options) {}} {
		s := start(t, learnedLimits, adjust)
		learn(s, s, "acme", 40, 300)
		s.stop()
		again := start(t, learnedLimits, adjust)
		await(t, from, func() bool { return again.estimated("/v1/explain", ask).Estimate.From == from })
		again.stop()
	}
	r := redistest.Start(t)
	shared := func(o *server.Options) { o.Store = "redis://" + r.Addr() + "?timeout=10s" }
	a, b := start(t, learnedLimits, shared), start(t, learnedLimits, shared)
	learn(a, b, "acme", 40, 300)
	if got := b.estimated("/v1/explain", ask).Estimate; got.From != "own" || got.Settled != 40 {
		t.Errorf("the one that commits: %+v", got)
	}
	b.stop() // it writes what it has learned
	c := start(t, learnedLimits, shared)
	await(t, "the third", func() bool { return c.estimated("/v1/explain", ask).Estimate.From == "own" })
	if got := c.estimated("/v1/reserve", ask); got.Reserved < 290 || got.Reserved > 310 {
		t.Errorf("%+v %+v", got, got.Estimate)
	}
}
