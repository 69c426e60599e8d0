package rest_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/rest"
	"github.com/stint-io/stint/store"
	"github.com/stint-io/stint/store/memory"
)

// What comes in wrong is answered with its status and what is wrong, and takes nothing.
func TestBadCalls(t *testing.T) {
	s := newService(t, "limits: [{name: a, rate: 5/hour}]\n")
	for _, tt := range []struct {
		method, path, body string
		code               int
		detail             string
	}{
		{"GET", "/v1/take", "", 405, "use POST"},
		{"PUT", "/v1/finish", "{}", 405, "use POST"},
		{"POST", "/v1/nothing", "{}", 404, "/v1/take, /v1/explain, /v1/finish, /v1/reserve, /v1/renew, /v1/commit and /v1/release"},
		{"POST", "/", "{}", 404, "no such call"},
		{"POST", "/take", "{}", 404, "did you mean POST /v1/take?"},
		{"POST", "/v1/explian", "{}", 404, "did you mean POST /v1/explain?"},
		{"POST", "/v1/take", "ip=192.0.2.1", 400, "a form is not read, write {"},
		{"POST", "/v1/take", "{'cost':1}", 400, "write double quotes"},
		{"POST", "/v1/take", "{cost:1}", 400, "put each name in double quotes"},
		{"POST", "/v1/take", `{"cost":1,}`, 400, "leave out the comma before it"},
		{"POST", "/v1/take", `{"limit":"a"}`, 400, "the attributes choose the limits"},
		{"POST", "/v1/take", `{"key":"a"}`, 400, "a key is the attributes of the request"},
		{"POST", "/v1/take", `{"hits":1}`, 400, `the number is "cost"`},
		{"POST", "/v1/take", `{"atributes":{}}`, 400, `did you mean "attributes"?`},
		{"POST", "/v1/take", `{"ip":"192.0.2.1"}`, 400, `an attribute goes into {"attributes":{"ip":...}}`},
		{"POST", "/v1/take", "", 400, "the body is empty"},
		{"POST", "/v1/take", " \n", 400, "the body is empty"},
		{"POST", "/v1/take", "[]", 400, "line 1, column 1: found a list, want an object"},
		{"POST", "/v1/take", "7", 400, "found a number"},
		{"POST", "/v1/take", "null", 400, "found null"},
		{"POST", "/v1/take", `"x"`, 400, "found a string"},
		{"POST", "/v1/take", "{} {}", 400, "goes on after its end"},
		{"POST", "/v1/take", "{", 400, "ends too early"},
		{"POST", "/v1/take", "{]", 400, "not JSON"},
		{"POST", "/v1/take", "{\"a\xff\":1}", 400, "column 4: the body is not valid UTF-8"},
		{"POST", "/v1/take", `{"permit":1}`, 400, `unknown field "permit"`},
		{"POST", "/v1/take", `{"cost":1,"cost":1}`, 400, `"cost" stands here twice`},
		{"POST", "/v1/take", `{"attributes":{"a":"1","a":"2"}}`, 400, `"a" stands here twice`},
		{"POST", "/v1/take", `{"attributes":{"a":true}}`, 400, `the attribute "a" is true`},
		{"POST", "/v1/take", `{"attributes":{"a":{}}}`, 400, "is an object"},
		{"POST", "/v1/take", `{"attributes":{"":"x"}}`, 400, "no name"},
		{"POST", "/v1/take", `{"attributes":{"` + strings.Repeat("n", rest.MaxNameLength+1) + `":"x"}}`, 400, "257 characters, at most 256"},
		{"POST", "/v1/take", `{"attributes":[]}`, 400, "found a list"},
		{"POST", "/v1/take", `{"cost":1.5}`, 400, "cost is 1.5"},
		{"POST", "/v1/take", `{"cost":"1"}`, 400, "cost is a string"},
		{"POST", "/v1/take", `{"cost":4611686018427387905}`, 400, "cost is 4611686018427387905"},
		{"POST", "/v1/take", `{"cost":-1}`, 400, "cost is -1"},
		{"POST", "/v1/explain", `{"x":1}`, 400, `unknown field "x"`},
		{"POST", "/v1/finish", `{}`, 400, `"permit" is missing`},
		{"POST", "/v1/finish", `{"permit":-1}`, 400, "permit is -1"},
		{"POST", "/v1/finish", `{"permit":1,"cost":1}`, 400, `unknown field "cost"`},
		{"POST", "/v1/commit", `{"id":"x","actual":1.5}`, 400, `"actual" cannot be a number 1.5`},
		{"POST", "/v1/commit", `{"id":"x","actual":"1"}`, 400, `"actual" cannot be a string`},
		{"POST", "/v1/take", `{"attributes":{"a":"` + strings.Repeat("x", rest.MaxBodyBytes) + `"}}`, 413, "512 KiB"},
	} {
		w := httptest.NewRecorder()
		s.ServeHTTP(w, httptest.NewRequest(tt.method, tt.path, strings.NewReader(tt.body)))
		if w.Code != tt.code || !strings.Contains(w.Body.String(), strings.ReplaceAll(tt.detail, `"`, `\"`)) || w.Header().Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s %s %.60s: %d %s, want %d with %s", tt.method, tt.path, tt.body, w.Code, w.Body, tt.code, tt.detail)
		}
		if (w.Code == 405) != (w.Header().Get("Allow") == "POST") {
			t.Errorf("%s %s: Allow is %q", tt.method, tt.path, w.Header().Get("Allow"))
		}
	}
	// As many attributes as may be, with names as long as may be.
	var b strings.Builder
	for i := range rest.MaxAttributes {
		b.WriteString(fmt.Sprintf(`,"%03d%s":"x"`, i, strings.Repeat("n", rest.MaxNameLength-3)))
	}
	if a := s.call("/v1/take", `{"attributes":{`+b.String()[1:]+`}}`); a.code != 200 || a.Limits[0].Remaining != 4 {
		t.Errorf("%d %+v", a.code, a)
	}
	if a := s.call("/v1/take", `{"attributes":{"more":"x"`+b.String()+`}}`); a.code != 400 || !strings.Contains(a.Detail, "more than 512 attributes") {
		t.Errorf("%d %+v", a.code, a)
	}
}

type torn struct{}

func (torn) Read([]byte) (int, error) { return 0, errors.New("torn") }

func TestTornBodyAndOtherOrigins(t *testing.T) {
	s := newService(t, "limits: [{name: a, rate: 5/hour}]\n")
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/take", io.NopCloser(torn{})))
	if w.Code != 400 || !strings.Contains(w.Body.String(), "cannot be read") {
		t.Errorf("a torn body: %d %s", w.Code, w.Body)
	}
	for _, path := range []string{"/v1/take", "/v1/explain", "/v1/finish"} {
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader(`{}`))
		r.Header.Set("Origin", "https://evil.example")
		w = httptest.NewRecorder()
		if s.ServeHTTP(w, r); w.Code != 403 || !strings.Contains(w.Body.String(), "other origins") {
			t.Errorf("%s from another origin: %d %s", path, w.Code, w.Body)
		}
	}
	if a := s.call("/v1/take", `{"cost":0}`); a.Limits[0].Remaining != 5 {
		t.Errorf("%d remaining, want 5", a.Limits[0].Remaining)
	}
}

// A place in flight is named by its permit and given back by it, once.
func TestFinish(t *testing.T) {
	s := newService(t, "limits: [{name: places, key: [user], algorithm: concurrency, max_in_flight: 1, timeout: 1m}]\n")
	const user = `"attributes":{"user":"u"}`
	a := s.call("/v1/take", `{`+user+`}`)
	if a.code != 200 || a.Permit == 0 || a.Limits[0].ResetAfter != nil {
		t.Fatalf("%+v", a)
	}
	if b := s.call("/v1/take", `{`+user+`}`); b.code != 429 || b.Reason != "concurrency_exceeded" || b.Permit != 0 || b.header.Get("Retry-After") != "1" {
		t.Fatalf("%+v", b)
	}
	permit := `,"permit":` + itoa(int64(a.Permit))
	if b := s.call("/v1/finish", `{"attributes":{"user":"v"}`+permit+`}`); b.code != 204 {
		t.Fatalf("%+v", b)
	}
	if b := s.call("/v1/take", `{"cost":0,`+user+`}`); b.code != 429 {
		t.Fatalf("another user's finish gave the place back: %+v", b)
	}
	for range 2 {
		if b := s.call("/v1/finish", `{`+user+permit+`}`); b.code != 204 {
			t.Fatalf("%+v", b)
		}
	}
	if b := s.call("/v1/take", `{`+user+`}`); b.code != 200 || b.Permit == a.Permit {
		t.Fatalf("%+v", b)
	}
}

// Explain says of each limit why, where, by what key and how full, and of each that does
// not apply why not.
func TestExplain(t *testing.T) {
	s := newService(t, `limits:
  - {name: user, key: [user], match: {path: /api/*}, rate: 10/hour, soft: 50%, overrides: [{when: {user: vip}, rate: 20/hour}]}
  - {name: all, rate: 100/hour, algorithm: fixed_window, shadow: true}
  - {name: free, unlimited: true}
  - {name: login, match: {path: /login}, key: [ip], rate: 1/hour}
  - {name: tenant, key: [tenant, user], rate: 1/hour}
  - {name: places, algorithm: concurrency, max_in_flight: 2}
`)
	const body = `{"attributes":{"user":"vip","path":"/api/x"}}`
	for range 3 {
		if a := s.call("/v1/take", body); a.code != 200 && a.code != 429 {
			t.Fatalf("%+v", a)
		}
	}
	a := s.call("/v1/explain", body)
	if a.code != 200 || a.Allowed || a.UnmatchedCount != 2 || a.Status != 429 || a.RetryAfter == nil || len(a.Limits) != 4 {
		t.Fatalf("%+v", a)
	}
	user, all, free, places := a.Limits[0], a.Limits[1], a.Limits[2], a.Limits[3]
	if user.Used != 2 || user.Quota != 20 || user.Remaining != 18 || user.File != "test.yaml" || user.Line != 2 || user.Key["user"] != "vip" || user.Rate != "20/h" || user.Algorithm != "token_bucket" ||
		user.Why != "the request fulfils path=/api/*; one bucket for each user; override when user=vip; 2 of 20 used, 1 asked: fits" {
		t.Errorf("%+v", user)
	}
	if all.Used != 2 || !all.Shadow || all.Why != "applies to every request; all such requests share one bucket; 2 of 100 used, 1 asked: fits; shadow, not enforced" || len(all.Key) != 0 {
		t.Errorf("%+v", all)
	}
	if !free.Unlimited || free.Quota != 0 || free.Remaining != 0 || !strings.HasSuffix(free.Why, "; unlimited") || free.Rate != "" {
		t.Errorf("%+v", free)
	}
	if places.Allowed || places.Reason != "concurrency_exceeded" || places.Rate != "" || !strings.HasSuffix(places.Why, "2 of 2 used, 1 asked: concurrency_exceeded") {
		t.Errorf("%+v", places)
	}
	if a.WhyNot["login"] != "path is /api/x, and match wants /login" || a.WhyNot["tenant"] != "the request has no tenant, which is part of the key (missing: skip)" {
		t.Errorf("%+v", a.WhyNot)
	}
}

// A limit that refuses who lacks its key, a leaky bucket's delay and a soft threshold
// are told.
func TestWhatAnswersTell(t *testing.T) {
	s := newService(t, `limits:
  - {name: named, key: [user, tenant], missing: reject, rate: 10/hour, match: {path: /named}}
  - {name: paced, rate: 1/s, burst: 5, algorithm: leaky_bucket, match: {path: /paced}}
  - {name: soft, rate: 4/hour, soft: 50%, match: {path: /soft}}
`)
	if a := s.call("/v1/explain", `{"attributes":{"path":"/named"}}`); a.Allowed || a.RetryAfter != nil || !strings.Contains(a.Limits[0].Why, "one bucket for each user, tenant; the request lacks a part of the key") {
		t.Errorf("%+v", a)
	}
	if a := s.call("/v1/take", `{"attributes":{"path":"/named"}}`); a.code != 429 || a.header.Get("Retry-After") != "" || a.Reason != "missing_key" {
		t.Errorf("%+v", a)
	}
	s.call("/v1/take", `{"attributes":{"path":"/paced"}}`)
	if a := s.call("/v1/take", `{"attributes":{"path":"/paced"}}`); a.code != 200 || a.Delay == nil || *a.Delay != "1" {
		t.Errorf("%+v", a)
	}
	for i, soft := range []bool{false, false, true, true} {
		a := s.call("/v1/take", `{"attributes":{"path":"/soft"}}`)
		if a.Limits[0].Soft != soft || (a.header.Get("X-RateLimit-Warning") == `"soft"`) != soft {
			t.Errorf("request %d: %+v %v", i, a, a.header)
		}
	}
	s.advance(time.Hour)
	if a := s.call("/v1/take", `{"attributes":{"path":"/elsewhere"}}`); a.code != 200 || !a.Allowed || a.Limits == nil || len(a.Limits) != 0 || a.header.Get("Cache-Control") != "no-store" || a.header.Get("Content-Type") != "application/json" {
		t.Errorf("%+v %v", a, a.header)
	}
}

// lost is a store that fails in the way it is told.
type lost struct {
	store.Store
	err error
}

func (l *lost) Take(context.Context, []store.Charge) (bool, error) { return false, l.err }
func (l *lost) Peek(context.Context, []store.Charge) (bool, error) { return false, l.err }
func (l *lost) Finish(context.Context, []store.Charge) error       { return l.err }

// Where no decision could be made the answer is 503, and does not say why.
func TestNoDecision(t *testing.T) {
	set, err := rules.Parse("f", []byte("limits: [{name: places, algorithm: concurrency, max_in_flight: 1}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(&lost{memory.New(memory.Options{}), errors.New("host 10.9.8.7 is gone")}, set, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := &service{t: t, Handler: rest.New(e, rest.Options{})}
	for path, body := range map[string]string{"/v1/take": "{}", "/v1/explain": "{}", "/v1/finish": `{"permit":1}`} {
		if a := s.call(path, body); a.code != 503 || a.Detail != "the rate limiter could not decide" || a.Violated != nil || a.header.Get("Retry-After") != "1" {
			t.Errorf("%s: %+v", path, a)
		}
	}
}

// A key for which a limit is not enforced yet is told so, and which part of the keys it is.
func TestExplainEnforce(t *testing.T) {
	s := newService(t, "limits:\n  - {name: some, key: [user], rate: 10/hour, enforce: 0%}\n  - {name: half, key: [user], rate: 10/hour, enforce: 12.5%}\n")
	for user, half := 0, 0; half == 0; user++ {
		a := s.call("/v1/explain", `{"attributes":{"user":"u`+strconv.Itoa(user)+`"}}`)
		if a.code != 200 || len(a.Limits) != 2 {
			t.Fatalf("%+v", a)
		}
		const why = "applies to every request; one bucket for each user; 0 of 10 used, 1 asked: fits"
		if got, want := a.Limits[0].Why, why+"; not enforced for this key, for enforce is 0%"; got != want {
			t.Fatalf("got  %s\nwant %s", got, want)
		}
		switch got := a.Limits[1].Why; got {
		case why:
			half++
		case why + "; not enforced for this key, for enforce is 12.5%":
		default:
			t.Fatalf("of half: %s", got)
		}
	}
}
