package rls

import (
	"errors"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/encoding/protojson"
)

const jsonRules = `
domain: edge
descriptors:
  - {key: k, rate_limit: {unit: year, requests_per_unit: 2, name: two}}
  - {key: never, rate_limit: {unit: year, requests_per_unit: 0}}
`

func post(s *Service, method, body string) *httptest.ResponseRecorder {
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(method, "/json", strings.NewReader(body)))
	return w
}

// /json answers as Envoy's service does: 200 and 429 with the response as JSON on one
// line, whatever the method; the header fields that Envoy would add are there as well.
func TestJSON(t *testing.T) {
	s := newServiceOf(t, Options{Headers: true}, jsonRules)
	ask := `{"domain":"edge","descriptors":[{"entries":[{"key":"k","value":"v"}]}],"hitsAddend":2}`
	w := post(s, http.MethodGet, ask)
	var resp pb.RateLimitResponse
	if err := protojson.Unmarshal(w.Body.Bytes(), &resp); err != nil {
		t.Fatal(err)
	}
	reset := resp.Statuses[0].DurationUntilReset.Seconds
	if reset < 1 || reset > 365*86400 || w.Code != 200 {
		t.Fatalf("%d, resets in %d s", w.Code, reset)
	}
	text := w.Body.String()
	if !strings.HasPrefix(text, `{"overallCode":"OK","statuses":[{"code":"OK","currentLimit":{"name":"two","requestsPerUnit":2,"unit":"YEAR"},"durationUntilReset":"`) {
		t.Errorf("the body is %s", text)
	}
	if got := fields(w.Header()); got != "Content-Type=application/json Ratelimit-Limit=2 Ratelimit-Remaining=0 Ratelimit-Reset=*" {
		t.Errorf("header fields %s", got)
	}
	w = post(s, http.MethodPost, ask)
	if got := fields(w.Header()); w.Code != 429 || got != "Cache-Control=no-store Content-Type=application/json Ratelimit-Limit=2 Ratelimit-Remaining=0 Ratelimit-Reset=* Retry-After=*" {
		t.Errorf("%d, header fields %s", w.Code, got)
	}
	if !strings.HasPrefix(w.Body.String(), `{"overallCode":"OVER_LIMIT","statuses":[{"code":"OVER_LIMIT",`) {
		t.Errorf("the body is %s", w.Body)
	}
	// No wait mends this one.
	if w = post(s, http.MethodPost, strings.Replace(ask, `"k"`, `"never"`, 1)); w.Code != 429 || w.Header().Get("Retry-After") != "" {
		t.Errorf("%d, Retry-After %q", w.Code, w.Header().Get("Retry-After"))
	}
	if ok, over, bad := s.Counts().OK.Load(), s.Counts().OverLimit.Load(), s.Counts().Errors.Load(); ok != 1 || over != 2 || bad != 0 {
		t.Errorf("counted %d OK, %d over the limit, %d errors", ok, over, bad)
	}
}

func fields(h http.Header) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(h)) {
		v := h.Get(k)
		if k == "Ratelimit-Reset" || k == "Retry-After" {
			v = "*"
		}
		out = append(out, k+"="+v)
	}
	return strings.Join(out, " ")
}

// Every error is the same short text, as Envoy's service has it; a header field says
// what it is, in printable ASCII and in bounds.
func TestJSONErrors(t *testing.T) {
	s := newServiceOf(t, Options{}, jsonRules)
	long := strings.Repeat("x", 400)
	for body, c := range map[string]struct {
		code  int
		field string
	}{
		"":                  {400, "*"},
		"{":                 {400, "*"},
		`{"domian":"edge"}`: {400, "*"},
		`{"descriptors":[{"entries":[{"key":"k"}]}]}`:                                    {400, "rls: rate limit domain must not be empty"},
		`{"domain":"edge","descriptors":[{"limit":{"requestsPerUnit":1}}]}`:              {400, "rls: the limit override of descriptor 0 has the unit UNKNOWN, set unit to one of SECOND, MINUTE, HOUR, DAY, MONTH, YEAR"},
		`{"domain":"` + strings.Repeat(" ", MaxBodyBytes) + `"}`:                         {413, "*"},
		`{"domain":"edge","descriptors":[{"` + "é\u0000" + long + `":1}]}`:               {400, "*"},
		`{"domain":"edge","descriptors":[{"` + strings.Repeat("b", MaxBodyBytes) + `":1`: {413, "*"},
	} {
		w := post(s, http.MethodPost, body)
		if want := http.StatusText(c.code) + "\n"; w.Code != c.code || w.Body.String() != want {
			t.Errorf("%.60s: %d %q, want %d %q", body, w.Code, w.Body, c.code, want)
		}
		field := w.Header().Get("X-Stint-Error")
		if field == "" || len(field) > 300 || strings.ContainsFunc(field, func(r rune) bool { return r < ' ' || r > '~' }) || c.field != "*" && field != c.field {
			t.Errorf("%.60s: X-Stint-Error %q, want %q", body, field, c.field)
		}
	}
	w := httptest.NewRecorder()
	s.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/json", io.MultiReader(strings.NewReader("{"), broken{})))
	if w.Code != 400 || w.Header().Get("X-Stint-Error") != "the line is cut" {
		t.Errorf("a body that breaks off: %d %q", w.Code, w.Header().Get("X-Stint-Error"))
	}
	// The largest body is taken whole.
	body := `{"domain":"edge","descriptors":[{"entries":[{"key":"k","value":"v"}]}]}`
	if w := post(s, http.MethodPost, body+strings.Repeat(" ", MaxBodyBytes-len(body))); w.Code != 200 {
		t.Errorf("a body of %d bytes: %d", MaxBodyBytes, w.Code)
	}
	if w := post(s, http.MethodPost, body+strings.Repeat(" ", MaxBodyBytes-len(body)+1)); w.Code != 413 {
		t.Errorf("a body of %d bytes: %d", MaxBodyBytes+1, w.Code)
	}
}

type broken struct{}

func (broken) Read([]byte) (int, error) { return 0, errors.New("the line is cut") }

func TestPrintable(t *testing.T) {
	for in, want := range map[string]string{
		"a\nb": "a b", " ~": " ~", "é\x7f\x1f": "   ", strings.Repeat("x", 300): strings.Repeat("x", 300), strings.Repeat("y", 301): strings.Repeat("y", 300),
	} {
		if got := printable(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
