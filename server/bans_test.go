package server_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/server"
)

// banPage is an answer of GET /v1/bans.
type banPage struct {
	Bans []struct {
		Limit string
		ID    string
		Key   map[string]string
		Exact bool
		Ends  string
	}
	Next string
}

func (s *service) bans(query string) (page banPage) {
	s.t.Helper()
	a := s.do(http.MethodGet, s.admin+"/v1/bans?"+query, "")
	if err := json.Unmarshal([]byte(a.body), &page); err != nil || a.status != 200 {
		s.t.Fatalf("bans: %d %s: %v", a.status, a.body, err)
	}
	return page
}

func (s *service) lift(query string) string {
	s.t.Helper()
	a := s.do(http.MethodDelete, s.admin+"/v1/bans?"+query, "")
	return fmt.Sprintf("%d %s", a.status, strings.TrimSpace(a.body))
}

func (s *service) attempt(key string) int {
	s.t.Helper()
	text, err := json.Marshal(map[string]any{"attributes": map[string]string{"user": key}})
	if err != nil {
		s.t.Fatal(err)
	}
	return s.post("/v1/take", string(text)).status
}

const banLimits = "limits: [{name: login, key: [user], rate: 1/minute, on_exceed: {reject: 403, ban: {for: 1h, after: 1/minute, from: now}}}]"

// TestBansAreListedAndLifted: over the admin port, with its token, whatever the keys are.
func TestBansAreListedAndLifted(t *testing.T) {
	s := start(t, banLimits)
	strange := "\x00\r\n\x1b[31m\u202e<script>\"&%{}"
	for _, key := range []string{"u1", strange, strings.Repeat("long", 100)} {
		if a, b := s.attempt(key), s.attempt(key); a != 200 || b != 403 {
			t.Fatalf("%q: %d, %d", key, a, b)
		}
	}
	page := s.bans("limit=login")
	if len(page.Bans) != 3 || page.Next != "" {
		t.Fatalf("%+v", page)
	}
	keys := map[string]bool{}
	for _, b := range page.Bans {
		keys[b.Key["user"]] = b.Exact
		if b.Limit != "login" || b.Ends == "" || b.ID == "" {
			t.Errorf("%+v", b)
		}
	}
	if !keys["u1"] || !keys[strange] || len(keys) != 3 {
		t.Errorf("keys: %v", keys)
	}
	if a := s.do(http.MethodGet, s.admin+"/v1/bans", ""); strings.ContainsAny(a.body, "\x1b\u202e\r") {
		t.Errorf("control characters in %q", a.body)
	}
	// A reload keeps them, one to no limits is refused.
	write(t, s.path, strings.Replace(banLimits, "rate: 1/minute", "rate: 2/minute", 1))
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	write(t, s.path, "limits: []")
	await(t, "the watcher to refuse it too", func() bool { return strings.Contains(s.log.String(), "--allow-empty") })
	if n := len(s.bans("").Bans); n != 3 || s.attempt("u1") != 403 {
		t.Errorf("%d bans after the reload", n)
	}
	for query, want := range map[string]string{
		"limit=login&key=user%3Du1&all=true": "400 ", "limit=login&kee=user%3Du1": "400 ", "": "400 ", "all=false": "400 ",
		"limit=logn&key=user%3Du1": "404 ", "limit=login&key=ip%3Du1": "400 ", "limit=login&id=x": "400 ", "limit=login": "400 ",
		"limit=login&key=user%3Dnobody":                      `200 {"lifted":0,"more":false}`,
		"limit=login&key=user%3Du1":                          `200 {"lifted":1,"more":false}`,
		"limit=login&key=user%3D" + url.QueryEscape(strange): `200 {"lifted":1,"more":false}`,
	} {
		if got := s.lift(query); !strings.HasPrefix(got, want) {
			t.Errorf("DELETE %s: %s, want %s", query, got, want)
		}
	}
	if s.attempt("u1") != 200 {
		t.Error("refused after its ban was lifted")
	}
	if got := s.lift("limit=login&id=" + s.bans("").Bans[0].ID); got != `200 {"lifted":1,"more":false}` {
		t.Errorf("by ID: %s", got)
	}
	metrics := s.do(http.MethodGet, s.admin+"/metrics", "").body
	for _, want := range []string{`stint_bans_active{limit="login"} 0`, `stint_bans_begun_total{limit="login"} 3`} {
		if !strings.Contains(metrics, want+"\n") {
			t.Errorf("no %s", want)
		}
	}
	// The refused configuration was never in force: no request was without a limit, until one has no key.
	const unlimited = "\nstint_unlimited_total{"
	if i := strings.Index(metrics, unlimited); i >= 0 {
		t.Errorf("%.80s", metrics[i+1:])
	}
	s.post("/v1/take", `{"attributes": {"path": "/"}}`)
	if metrics := s.do(http.MethodGet, s.admin+"/metrics", "").body; !strings.Contains(metrics, unlimited+`limit="login",reason="missing_key"} 1`+"\n") || strings.Count(metrics, unlimited) != 1 {
		t.Error("a request without a key is not counted alone")
	}
	for _, bad := range []string{"max=0", "max=1001", "max=x", "after=x", "after=%00", "limit=a&limit=b", "x=y"} {
		if a := s.do(http.MethodGet, s.admin+"/v1/bans?"+bad, ""); a.status != 400 {
			t.Errorf("GET %s: %d %s", bad, a.status, a.body)
		}
	}
	guarded := start(t, banLimits, func(o *server.Options) { o.AdminToken = "secret-of-sixteen-bytes" })
	for _, method := range []string{http.MethodGet, http.MethodDelete} {
		if a := guarded.do(method, guarded.admin+"/v1/bans?all=true", ""); a.status != http.StatusUnauthorized {
			t.Errorf("%s without the token: %d", method, a.status)
		}
	}
}

// TestBansAreStateInRedis: two services share bans and lifts, and they outlive both.
func TestBansAreStateInRedis(t *testing.T) {
	r := redistest.Start(t)
	shared := func(o *server.Options) { o.Store = "redis://" + r.Addr() + "?timeout=10s" }
	a, b := start(t, banLimits, shared), start(t, banLimits, shared)
	for _, s := range []*service{a, b} {
		await(t, "Redis to answer", func() bool { ok, _ := s.Readiness(); return ok })
	}
	a.attempt("u1")
	a.attempt("u1")
	b.attempt("u2")
	b.attempt("u2")
	for _, s := range []*service{a, b} {
		await(t, "the list to have both", func() bool { return len(s.bans("").Bans) == 2 })
	}
	if got := b.lift("limit=login&key=user%3Du1"); got != `200 {"lifted":1,"more":false}` {
		t.Error(got)
	}
	await(t, "the other service to hear of it", func() bool { return a.attempt("u1") != 403 || len(a.bans("").Bans) == 1 })
	if err := a.stop(); err != nil {
		t.Fatal(err)
	}
	if err := b.stop(); err != nil {
		t.Fatal(err)
	}
	c := start(t, banLimits, shared)
	await(t, "Redis to answer", func() bool { ok, _ := c.Readiness(); return ok })
	if page := c.bans("limit=login"); c.attempt("u2") != 403 || len(page.Bans) < 1 {
		t.Errorf("after a restart: %+v", page)
	}
	if got := c.lift("all=true"); !strings.HasPrefix(got, `200 {"lifted":`) || len(c.bans("").Bans) != 0 {
		t.Errorf("lift all: %s", got)
	}
}

const actionLimits = `limits:
- {name: login, key: [user], match: {kind: login}, rate: 100/minute, on_exceed: {reject: 403, ban: {for: 2h, after: 3/minute, from: now}}}
- {name: search, key: [user], match: {kind: search}, algorithm: fixed_window, rate: 2/day, on_exceed: tag}
- {name: report, key: [user], match: {kind: report}, algorithm: fixed_window, rate: 2/day, on_exceed: {redirect: /busy}}
- {name: api, key: [user], match: {kind: api}, algorithm: fixed_window, rate: 100/day, soft: 2%}
`

// TestActionsOutliveRestarts: what is banned, tagged, redirected or warned stays so over restarts, with a file, with
// Redis and with a Redis Cluster; the list, the metrics and the lift of bans are complete.
func TestActionsOutliveRestarts(t *testing.T) {
	if testing.Short() {
		t.Skip("one request after another: nothing for the race detector")
	}
	for name, adjust := range map[string]func() func(*server.Options){
		"file": func() func(*server.Options) { dir := t.TempDir(); return func(o *server.Options) { o.StateDir = dir } },
		"redis": func() func(*server.Options) {
			url := redistest.Start(t).URL() + "?timeout=10s"
			return func(o *server.Options) { o.Store = url }
		},
		"cluster": func() func(*server.Options) {
			url := redistest.StartCluster(t).URL() + "?timeout=10s"
			return func(o *server.Options) { o.Store = url }
		},
	} {
		t.Run(name, func(t *testing.T) {
			with := adjust()
			ask := func(s *service, kind, user string) string {
				a := s.post("/v1/take", fmt.Sprintf(`{"attributes":{"kind":%q,"user":%q}}`, kind, user))
				text := fmt.Sprint(a.status, " ", a.header.Get("X-Stint-Status"), a.header.Get("X-Stint-Location"), a.header.Get("X-RateLimit-Warning"))
				if strings.Contains(a.body, `"tags"`) {
					text += "tagged"
				}
				return text
			}
			want := map[string]string{"login": "403 ", "search": "200 tagged", "report": "429 302/busy", "api": `200 "api"`}
			for round := range 3 {
				s := start(t, actionLimits, with)
				await(t, "the service to be ready", func() bool { ok, _ := s.Readiness(); return ok })
				for range 4 * (1 - min(round, 1)) {
					for kind := range want {
						ask(s, kind, "u1")
					}
				}
				for kind, want := range want {
					if got := ask(s, kind, "u1"); got != want {
						t.Errorf("start %d, %s: %q, want %q", round, kind, got, want)
					}
					if got := ask(s, kind, fmt.Sprint("new", round)); got != "200 " {
						t.Errorf("start %d, %s: another is answered %q", round, kind, got)
					}
				}
				await(t, "the ban to be listed", func() bool { return len(s.bans("").Bans) == 1 })
				await(t, "the ban in the metrics", func() bool {
					return strings.Contains(s.do(http.MethodGet, s.admin+"/metrics", "").body, "stint_bans_active{limit=\"login\"} 1\n")
				})
				if round == 2 {
					if got := s.lift("all=true"); got != `200 {"lifted":1,"more":false}` || ask(s, "login", "u1") != "200 " {
						t.Errorf("lifted: %s", got)
					}
				}
				if err := s.stop(); err != nil {
					t.Fatal(err)
				}
			}
			s := start(t, actionLimits, with)
			await(t, "the service to be ready", func() bool { ok, _ := s.Readiness(); return ok })
			if got := ask(s, "login", "u1"); got != "200 " || len(s.bans("").Bans) != 0 {
				t.Errorf("the ban that was lifted is back: %q, %+v", got, s.bans(""))
			}
		})
	}
}
