package ui

import (
	"context"
	"encoding/json"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/banlist"
	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/tally"
	"github.com/stint-io/stint/internal/watch"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/lending"
	"github.com/stint-io/stint/store/memory"
)

// world is a dashboard of an engine whose tallies a test sets.
type world struct {
	*UI
	tallies   []tally.Tally
	elsewhere map[string][2]uint64
	leases    any
	status    int
}

func newWorld(t *testing.T, text string) *world {
	t.Helper()
	set, err := rules.Parse("l.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	w := &world{status: http.StatusOK}
	seen := watch.New()
	e, err := engine.New(memory.New(memory.Options{}), set, engine.Options{Decisions: []engine.DecisionObserver{seen}})
	if err != nil {
		t.Fatal(err)
	}
	w.UI = New(Options{
		Version: "v1", ConfigVersion: func() string { return "" }, Ready: func() (bool, string) { return true, "" },
		Limits: e.Set, Tallies: func() iter.Seq[tally.Tally] { return slices.Values(w.tallies) }, Elsewhere: func() map[string][2]uint64 { return w.elsewhere },
		Watch: seen, Bans: banlist.New(e), Engine: e, Members: func(context.Context) ([]Member, error) { return nil, nil },
		Leases: http.HandlerFunc(func(out http.ResponseWriter, _ *http.Request) {
			out.WriteHeader(w.status)
			if err := json.NewEncoder(out).Encode(w.leases); err != nil {
				t.Error(err)
			}
		}),
	})
	return w
}

func (w *world) get(path string) *httptest.ResponseRecorder {
	out := httptest.NewRecorder()
	w.ServeHTTP(out, httptest.NewRequest(http.MethodGet, path, http.NoBody))
	return out
}

// Only what is new or other is sent; a container whose elements went is told so.
func TestSince(t *testing.T) {
	at := func(list ...part) shown { return shownOf(list) }
	none := shown{}
	first := at(part{"rows", "a", "A"}, part{"rows", "b", "B"}, part{"foot", "f", "F"})
	for _, one := range []struct {
		name       string
		is, before shown
		want       string
	}{
		{"at first", first, none, `{"order":{"foot":["f"],"rows":["a","b"]},"html":{"a":"A","b":"B","f":"F"}}`},
		{"nothing", first, first, `{}`},
		{"one is other", at(part{"rows", "a", "A"}, part{"rows", "b", "B2"}, part{"foot", "f", "F"}), first, `{"html":{"b":"B2"}}`},
		{"another order", at(part{"rows", "b", "B"}, part{"rows", "a", "A"}, part{"foot", "f", "F"}), first, `{"order":{"rows":["b","a"]}}`},
		{"all went", at(part{"foot", "f", "F"}), first, `{"order":{"rows":[]}}`},
	} {
		got, err := json.Marshal(one.is.since(one.before))
		if err != nil || string(got) != one.want {
			t.Errorf("%s: %s, want %s", one.name, got, one.want)
		}
	}
}

// Rates are of the latest five seconds, with what other processes decided; a limit that is new begins at 0, and one that
// is gone is forgotten. A chart has a point for each five seconds.
func TestRates(t *testing.T) {
	w := newWorld(t, "limits: [{name: a, rate: 1/s}, {name: b, rate: 1/s}]")
	now := time.Now()
	rate := func(name string) string {
		for _, r := range w.figures.rows(t.Context(), query{most: 10}).rows {
			if r.Limit == name {
				return fmt.Sprintf("%g %g %g", r.Allowed, r.Refused, r.Over)
			}
		}
		return ""
	}
	for i := range uint64(12) {
		a := tally.Tally{Limit: "a", Allowed: 10 * i}
		a.Refused[limit.ReasonRate], a.ShadowRefused[limit.ReasonRate], a.Tagged[limit.ReasonRate] = 3*i, 2*i, i
		w.tallies = []tally.Tally{a, {Limit: "comes with requests", Allowed: i}}
		if i >= 6 {
			w.tallies = append(w.tallies, tally.Tally{Limit: "b", Allowed: 1000 + i})
		}
		w.elsewhere = map[string][2]uint64{"a": {5 * i, 2 * i}}
		w.figures.count(now.Add(time.Duration(i) * time.Second))
		if want := map[bool]string{true: "0 0 0", false: "15 5 3"}[i == 0]; rate("a") != want {
			t.Errorf("after %d s: %s, want %s", i, rate("a"), want)
		}
	}
	if got := rate("b"); got != "1 0 0" {
		t.Errorf("a limit that is new: %s", got)
	}
	allowed, refused := w.figures.series("a")
	if fmt.Sprint(allowed, refused) != "[15 15] [8 8]" {
		t.Errorf("the chart: %v %v", allowed, refused)
	}
	if len(w.figures.mu.of) != 2 {
		t.Errorf("%d are counted", len(w.figures.mu.of))
	}
	set, err := rules.Parse("l.yaml", []byte("limits: [{name: b, rate: 1/s}]"))
	if err != nil {
		t.Fatal(err)
	}
	w.o.Limits = func() *rules.Set { return set }
	w.figures.count(now.Add(12 * time.Second))
	if len(w.figures.mu.of) != 1 {
		t.Errorf("%d are counted after one is gone", len(w.figures.mu.of))
	}
}

// Pages of limits: what is found, in which order, from which to which; a page beyond the last is the last.
func TestRows(t *testing.T) {
	text := "limits:\n"
	for i := range 120 {
		text += fmt.Sprintf("  - {name: limit-%03d, rate: 1/s}\n", i)
	}
	w := newWorld(t, text)
	for at := range 2 {
		for i := range uint64(120) {
			one := tally.Tally{Limit: fmt.Sprintf("limit-%03d", i), Allowed: uint64(at) * 10 * (i % 7)}
			one.Refused[limit.ReasonRate] = uint64(at) * 10 * (i % 5)
			w.tallies = append(w.tallies, one)
		}
		w.figures.count(time.Now().Add(time.Duration(at) * time.Second))
		w.tallies = nil
	}
	for _, one := range []struct{ query, want string }{
		{"?sort=name", "limit-000 to limit-049, 120, page 1 of 3"},
		{"?sort=name&page=3", "limit-100 to limit-119, 120, page 3 of 3"},
		{"?sort=name&page=-1", "limit-000 to limit-049, 120, page 1 of 3"},
		{"?sort=name&find=LIMIT-11", "limit-110 to limit-119, 10"},
		{"?sort=refused&find=limit-00", "limit-004 to limit-000, 10"}, // refused most: 4 and 9; least: 0 and 5, of which 5 admits more
		{"?sort=allowed&find=limit-00", "limit-006 to limit-007, 10"},
		{"?find=none", "No limit matches."},
	} {
		body := w.get("/ui" + one.query).Body.String()
		first, last := strings.Index(body, "/ui/limit?name="), strings.LastIndex(body, "/ui/limit?name=")
		got := "No limit matches."
		if first >= 0 {
			got = body[first+15:first+24] + " to " + body[last+15:last+24]
		}
		for _, want := range append(strings.Split(one.want, ", ")[1:], got) {
			if !strings.Contains(one.want, got) || !strings.Contains(body, want) && want != got {
				t.Errorf("%s: %s, no %q", one.query, got, want)
			}
		}
	}
	if body := w.get("/ui?sort=name&page=2").Body.String(); !strings.Contains(body, `rel="prev"`) || !strings.Contains(body, `rel="next"`) {
		t.Error("the second of three pages has none before, or none after")
	}
	if before := w.get("/ui?sort=name&page=3").Body.String(); !strings.Contains(before, `href="/ui?page=2&amp;sort=name" rel="prev"`) || strings.Contains(before, `rel="next"`) {
		t.Error("the last page has a next one, or none before")
	}
}

// GET /v1/top takes what it documents, and says what it does not.
func TestTopQuery(t *testing.T) {
	w := newWorld(t, "limits: [{name: a, rate: 1/s}, {name: b, rate: 1/s}]")
	for query, want := range map[string]string{
		"": `"limits_total":2`, "?limits=1&keys=20": `"limits_total":2`, "?limits=1000&keys=1&sort=name&find=a": `"limits_total":1`, "?find=x": `{"limits":[],`,
		"?limits=0": "limits is", "?limits=1001": "limits is", "?keys=21": "keys is", "?keys=x": "keys is", "?sort=x": "sort is", "?page=1": "unknown parameter",
	} {
		got := w.get("/v1/top" + query)
		if bad := !strings.Contains(want, "{") && !strings.Contains(want, "total"); !strings.Contains(got.Body.String(), want) || (got.Code == 400) != bad {
			t.Errorf("%s: %d %s", query, got.Code, got.Body)
		}
	}
}

// What is not there is not found, and no asset but the three is served. A ban is lifted by POST alone.
func TestPaths(t *testing.T) {
	w := newWorld(t, "limits: [{name: a, rate: 1/s}]")
	for path, want := range map[string]int{
		"/ui/static/style.css": 200, "/ui/static/live.js": 200, "/ui/static/icon.svg": 200, "/ui/static/pages.html": 404, "/ui/static/..%2Fui.go": 404, "/ui/static/": 404,
		"/ui/": 301, "/ui/limit?name=a": 200, "/ui/limit?name=b": 404, "/ui/bans/lift": 405, "/ui/x": 404,
	} {
		if got := w.get(path); got.Code != want || got.Header().Get("Content-Security-Policy") == "" {
			t.Errorf("%s: %d, want %d", path, got.Code, want)
		}
	}
	// A stream too many is refused, and does not take the place of another.
	for range cap(w.viewers) {
		w.viewers <- struct{}{}
	}
	if got := w.get("/ui/events?of=/ui"); got.Code != 503 {
		t.Errorf("one too many: %d", got.Code)
	}
}

// Which state a page shows on top.
func TestStatus(t *testing.T) {
	w := newWorld(t, "limits: [{name: a, rate: 1/s}]")
	for want, one := range map[string]struct {
		ready bool
		text  string
	}{`good">ready`: {true, ""}, `warn" title="&lt;b&gt;">degraded`: {true, "<b>"}, `bad" title="no store">not ready`: {false, "no store"}} {
		w.o.Ready = func() (bool, string) { return one.ready, one.text }
		if body := w.get("/ui").Body.String(); !strings.Contains(body, want) {
			t.Errorf("no %s", want)
		}
	}
}

// The page of leases: the largest first, one limit alone when asked for, holders by what they hold and not all of them,
// names as text; and why there is nothing to see.
func TestLeases(t *testing.T) {
	w := newWorld(t, "limits: [{name: a, rate: 1/s}]")
	page := leaseView{}
	for i := range 60 {
		page.Resources = append(page.Resources, lending.Resource{Limit: fmt.Sprintf("limit-%02d", i), Key: "<b>k", Lent: float64(i), Capacity: 100})
	}
	for i := range 25 {
		page.Resources[59].Leases = append(page.Resources[59].Leases, lending.Lease{Instance: fmt.Sprintf("<i>%02d", i), Granted: float64(i)})
	}
	w.leases = page
	w.UI.leases.sample(t.Context(), time.Now().Add(-time.Second))
	w.UI.leases.sample(t.Context(), time.Now())
	body := w.get("/ui/leases").Body.String()
	if strings.Count(body, "<section") != 50 || !strings.Contains(body, "10 more buckets") || !strings.Contains(body, "5 more.") || strings.Contains(body, "<b>k") || strings.Contains(body, "<i>") || strings.Contains(body, "limit-09") {
		t.Errorf("%d buckets", strings.Count(body, "<section"))
	}
	if a, b := strings.Index(body, "limit-59"), strings.Index(body, "limit-58"); a < 0 || b < a {
		t.Error("not the largest first")
	}
	if strings.Count(body, "<svg class=\"chart\"") != leaseCharts || strings.Count(body, "&lt;i&gt;05") < 1 || strings.Contains(body, "<bdi>&lt;i&gt;04</bdi></th>") {
		t.Errorf("%d charts, or not the largest holders", strings.Count(body, "<svg class=\"chart\""))
	}
	if body := w.get("/ui/leases?limit=limit-03").Body.String(); strings.Count(body, "<section") != 1 || !strings.Contains(body, "limit-03") {
		t.Error("not the one limit")
	}
	w.status = http.StatusServiceUnavailable
	w.leases = "the coordinator is away"
	w.UI.leases.sample(t.Context(), time.Now())
	if body := w.get("/ui/leases").Body.String(); !strings.Contains(body, "cannot be read") || !strings.Contains(body, "coordinator is away") {
		t.Error("it does not say why")
	}
	for range leasePoints + 5 {
		w.UI.leases.sample(t.Context(), time.Now())
	}
	if n := len(w.UI.leases.mu.samples); n != leasePoints {
		t.Errorf("%d samples are kept", n)
	}
}

// What if the rate were another: the burst goes with it unless it is said, and what is wrong is said.
func TestWhatIf(t *testing.T) {
	w := newWorld(t, "limits: [{name: a, rate: 1/h, burst: 3}, {name: f, algorithm: fixed_window, rate: 1/h}]")
	for range 10 {
		if _, err := w.o.Engine.Take(t.Context(), limit.Request{}); err != nil {
			t.Fatal(err)
		}
	}
	for query, want := range map[string]string{
		"name=a&rate=5/h":          "<strong>5 refused</strong>",
		"name=a&rate=5/h&burst=8":  "<strong>2 refused</strong>",
		"name=f&rate=4/h":          "<strong>6 refused</strong>",
		"name=a&rate=x":            "role=\"alert\"",
		"name=a&rate=5/h&burst=x":  "want a whole number",
		"name=a&rate=5/h&burst=-1": "role=\"alert\"",
	} {
		if body := w.get("/ui/limit?" + query).Body.String(); !strings.Contains(body, want) {
			_, body, _ = strings.Cut(body, "whatif")
			t.Errorf("%s: no %s in %.1500s", query, want, body)
		}
	}
	if body := w.get("/ui/limit?name=a").Body.String(); strings.Contains(body, `role="alert"`) || strings.Contains(body, "refused in truth") {
		t.Error("it answers what nobody asked")
	}
	if len(w.playing) != 0 {
		t.Error("the place of who plays is not given back")
	}
}

// The attributes of a command are those that a gateway tells.
func TestAttributes(t *testing.T) {
	w := newWorld(t, "limits: [{name: a, key: [\"header:x-api-key\"], rate: 1/h}]")
	got, err := w.attributes("curl 'https://A.example:8443/b/../c?d=1' -H 'X-Api-Key: k1' -H 'X-Other: o'", "::ffff:192.0.2.1")
	text := ""
	for _, a := range got {
		text += a.Name + "=" + a.Value + " "
	}
	if err != nil || !strings.Contains(text, "method=GET path=") || !strings.Contains(text, "proto=https") || strings.Contains(text, "X-Other") || strings.Contains(text, "=o ") {
		t.Errorf("%s, %v", text, err)
	}
	if _, err := w.attributes("curl https://a.example", "nowhere"); err == nil || !strings.Contains(err.Error(), "no IP address") {
		t.Error(err)
	}
	form := httptest.NewRequest(http.MethodPost, "/ui/explain", strings.NewReader(url.Values{"curl": {"curl https://a.example/" + strings.Repeat("x", maxForm)}, "ip": {""}}.Encode()))
	form.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	out := httptest.NewRecorder()
	w.ServeHTTP(out, form)
	if strings.Contains(out.Body.String(), "xxxxx") {
		t.Error("a form above the bound is read")
	}
}

// What the page says of each limit that a request meets, and that it takes nothing.
func TestExplain(t *testing.T) {
	w := newWorld(t, "limits: [{name: a, rate: 1/h}, {name: watched, shadow: true, rate: 1/h}, {name: other, match: {path: /x}, rate: 1/h}]")
	ask := func() string {
		r := httptest.NewRequest(http.MethodPost, "/ui/explain", strings.NewReader(url.Values{"curl": {"curl https://a.example/"}}.Encode()))
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		out := httptest.NewRecorder()
		w.ServeHTTP(out, r)
		return out.Body.String()
	}
	for range 2 {
		if body := ask(); !strings.Contains(body, `good">allowed`) || !strings.Contains(body, ">it fits<") || !strings.Contains(body, "it fits; the limit only watches") || !strings.Contains(body, "<li>other: ") {
			t.Errorf("at first: %s", body)
		}
	}
	if _, err := w.o.Engine.Take(t.Context(), limit.Request{}); err != nil {
		t.Fatal(err)
	}
	if body := ask(); !strings.Contains(body, "refused with 429") || !strings.Contains(body, "refused: rate_exceeded") || !strings.Contains(body, "over the limit, which only watches: rate_exceeded") || !strings.Contains(body, "1 of 1 used") {
		t.Errorf("then: %s", body)
	}
}

// How policies, rates and the members that there are not are written.
func TestWords(t *testing.T) {
	for want, p := range map[string]limit.Policy{
		"unlimited": {Unlimited: true}, "3 in flight": {Algorithm: limit.Concurrency, MaxInFlight: 3}, "5/s": {Rate: limit.PerSecond(5)},
		"5/s, burst 7": {Rate: limit.PerSecond(5), Burst: 7}, "5/s, fixed window": {Algorithm: limit.FixedWindow, Rate: limit.PerSecond(5)},
	} {
		if got := policyText(&p); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
	rate := functions["rate"].(func(float64) string)
	for v, want := range map[float64]string{0: "0.0", 0.05: "<0.1", 0.1: "0.1", 99.94: "99.9", 100: "100", 1234.5: "1234"} {
		if got := rate(v); got != want {
			t.Errorf("%g: %s, want %s", v, got, want)
		}
	}
	w := newWorld(t, "limits: [{name: a, rate: 1/s}]")
	if body := w.get("/ui/members").Body.String(); !strings.Contains(body, "has no others") {
		t.Error("it does not say that there are no members")
	}
	if body := w.get("/ui/bans").Body.String(); !strings.Contains(body, "Nobody is banned") {
		t.Error("it does not say that nobody is banned")
	}
}
