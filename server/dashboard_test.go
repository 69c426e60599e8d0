package server_test

import (
	"bufio"
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/server"
)

const boardLimits = `
limits:
  - {name: api, match: {path: /api}, key: [user], rate: 1/h, burst: 2}
  - {name: login, match: {path: /login}, key: [user], rate: 1/h, on_exceed: {ban: {for: 1h, after: 1/h, from: now}}}
`

// Keys that clients choose stand on each page as text, and pages may run nothing, be framed by nobody and be kept by nobody.
func TestDashboardShowsKeysAsText(t *testing.T) {
	s := start(t, boardLimits)
	hostile := []string{"<script>alert(1)</script>", `"><img src=x onerror=alert(1)>`, `' onclick='alert(1)`, "\u202e\u2066gnp", "{{.}}", "\x00\x1b[31m", "<b>" + strings.Repeat("x", 50_000)}
	for _, user := range hostile {
		for _, path := range []string{"/api", "/login"} {
			body, err := json.Marshal(map[string]any{"attributes": map[string]string{"path": path, "user": user}})
			if err != nil {
				t.Fatal(err)
			}
			for range 4 {
				s.do("POST", s.http+"/v1/take", string(body))
			}
		}
	}
	seen := ""
	for _, path := range []string{"/ui", "/ui/limit?name=api", "/ui/limit?name=" + url.QueryEscape(hostile[0]), "/ui/limit?name=api&rate=%3Cscript%3E", "/ui/limit?name=api&rate=10/s&burst=x", "/ui?find=" + url.QueryEscape(hostile[1]), "/ui/bans", "/ui/bans?said=" + url.QueryEscape(hostile[0]), "/ui/leases", "/ui/members", "/ui/explain"} {
		a := s.do("GET", s.admin+path, "")
		if a.status != 200 && a.status != 404 {
			t.Errorf("%s: %d", path, a.status)
		}
		for _, never := range []string{"<script>alert", "<img", "onclick='alert", "\u202e", "\u2066", "\x1b", "\x00", "<b>xx", strings.Repeat("x", 5000)} {
			if strings.Contains(a.body, never) {
				t.Errorf("%s has %.20q", path, never)
			}
		}
		csp := a.header.Get("Content-Security-Policy")
		if !strings.Contains(csp, "default-src 'none'; script-src 'self'") || strings.Contains(csp, "unsafe") || !strings.Contains(csp, "frame-ancestors 'none'") || a.header.Get("X-Frame-Options") != "DENY" || a.header.Get("Cache-Control") != "no-store" {
			t.Errorf("%s: %v", path, a.header)
		}
		seen += a.body
	}
	for _, want := range []string{"&lt;script&gt;alert(1)&lt;/script&gt;", `\u202e`, "sha256:", "Lift"} {
		if !strings.Contains(seen, want) {
			t.Errorf("no page has %q", want)
		}
	}
	form := []string{"Content-Type", "application/x-www-form-urlencoded"}
	for text, want := range map[string]string{
		"curl https://a.example/api -H 'X: <script>alert(1)</script>'": "api",
		"curl '<script>alert(1)</script>'":                             "&lt;script&gt;",
		"curl \xff\xfe 'https://a.example":                             "a quote is not closed",
	} {
		a := s.do("POST", s.admin+"/ui/explain", url.Values{"curl": {text}, "ip": {"192.0.2.1"}}.Encode(), form...)
		if a.status != 200 || !strings.Contains(a.body, want) || strings.Contains(a.body, "<script>alert") {
			t.Errorf("%q: %d, no %q", text, a.status, want)
		}
	}
}

// A ban is lifted with the token alone: by a form of the dashboard, not by a stranger, another site or a GET.
func TestDashboardLiftsBans(t *testing.T) {
	s := start(t, boardLimits, func(o *server.Options) { o.AdminToken = "open sesame" })
	for range 3 {
		s.do("POST", s.http+"/v1/take", `{"attributes": {"path": "/login", "user": "u1"}}`)
	}
	token := []string{"Authorization", "Bearer open sesame"}
	page := s.do("GET", s.admin+"/ui/bans", "", token...).body
	_, rest, ok := strings.Cut(page, `name="id" value="`)
	id, _, _ := strings.Cut(rest, `"`)
	if !ok || id == "" {
		t.Fatalf("no ban on the page\n%s", page)
	}
	body := url.Values{"limit": {"login"}, "id": {id}}.Encode()
	form := []string{"Content-Type", "application/x-www-form-urlencoded"}
	for _, one := range []struct {
		method, body string
		header       []string
		status       int
	}{
		{"POST", body, form, 401},
		{"POST", body, append(append(form, token...), "Origin", "https://evil.example"), 403},
		{"GET", "", token, 405},
		{"POST", "limit=login", append(form, token...), 400},
		{"POST", "limit=nope&id=x", append(form, token...), 400},
	} {
		if a := s.do(one.method, s.admin+"/ui/bans/lift", one.body, one.header...); a.status != one.status {
			t.Errorf("%s %q %v: %d, want %d", one.method, one.body, one.header, a.status, one.status)
		}
	}
	if a := s.do("GET", s.admin+"/v1/bans", "", token...); !strings.Contains(a.body, id) {
		t.Fatalf("the ban is gone before it was lifted: %s", a.body)
	}
	if a := s.do("POST", s.admin+"/ui/bans/lift", body, append(form, token...)...); a.status != 200 && a.status != 303 {
		t.Errorf("%d %s", a.status, a.body)
	}
	if a := s.do("GET", s.admin+"/v1/bans", "", token...); strings.Contains(a.body, id) {
		t.Errorf("the ban stands: %s", a.body)
	}
}

// A page of another site may link to the dashboard, and cannot hold its streams or have it work.
func TestDashboardIsNotEmbedded(t *testing.T) {
	s := start(t, boardLimits)
	for _, one := range []struct {
		path, site, dest string
		status           int
	}{
		{"/ui/events?of=/ui", "cross-site", "empty", 403},
		{"/ui/events?of=/ui", "same-site", "image", 403}, // another port of this machine
		{"/ui/limit?name=login&rate=1/s", "cross-site", "iframe", 403},
		{"/ui", "cross-site", "document", 200},
		{"/ui", "same-origin", "empty", 200},
		{"/ui", "none", "document", 200},
	} {
		if a := s.do("GET", s.admin+one.path, "", "Sec-Fetch-Site", one.site, "Sec-Fetch-Dest", one.dest); a.status != one.status {
			t.Errorf("%+v: %d %.200s", one, a.status, a.body)
		}
	}
}

// Changes are streamed, and only what has changed.
func TestDashboardStreams(t *testing.T) {
	s := start(t, boardLimits)
	for _, bad := range []string{"", "of=/v1/bans", "of=https://evil.example/ui", "of=%zz"} {
		if a := s.do("GET", s.admin+"/ui/events?"+bad, ""); a.status != 400 {
			t.Errorf("%s: %d", bad, a.status)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.admin+"/ui/events?of=/ui", http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, 1<<20)
	taken := false
	for n := 0; lines.Scan(); {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		n++
		var c struct {
			Order map[string][]string `json:"order"`
			HTML  map[string]string   `json:"html"`
		}
		if err := json.Unmarshal([]byte(data), &c); err != nil {
			t.Fatal(err)
		}
		switch {
		case n == 1 && len(c.Order["rows"]) != 2:
			t.Fatalf("at first %s", data)
		case n == 1:
			for range 3 {
				s.do("POST", s.http+"/v1/take", `{"attributes": {"path": "/api", "user": "u7"}}`)
			}
			taken = true
		case taken && strings.Contains(data, "u7"):
			for _, html := range c.HTML {
				if strings.Contains(html, ">login<") {
					t.Errorf("a row that has not changed was sent: %s", html)
				}
			}
			return
		}
	}
	t.Fatalf("the stream ended without the change: %v", lines.Err())
}

// A refusal links the page of its limit, if the service knows where people find it.
func TestDashboardIsLinked(t *testing.T) {
	s := start(t, `limits: [{name: "a b", rate: 1/h}]`, func(o *server.Options) { o.DashboardURL = "https://stint.internal.example/" })
	s.do("POST", s.http+"/v1/take", `{"attributes": {}}`)
	if a := s.do("POST", s.http+"/v1/gate/forward-auth", "", "X-Forwarded-For", "192.0.2.7"); a.status != 429 || !strings.Contains(a.body, `"limit-page":"https://stint.internal.example/ui/limit?name=a+b"`) {
		t.Errorf("%d %s", a.status, a.body)
	}
	for _, bad := range []string{"stint.internal", "ftp://x", "https://", "https://x?a=1"} {
		if _, err := server.New(server.Options{DashboardURL: bad}); err == nil || !strings.Contains(err.Error(), "URL of the dashboard") {
			t.Errorf("%s: %v", bad, err)
		}
	}
}
