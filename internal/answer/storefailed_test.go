package answer

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
)

func failed(r limit.Result) limit.Result {
	r.StoreFailed = true
	return r
}

// What a limit has left that could not reach its store is not invented; the other
// limits are shown as ever.
func TestHeaderOfStoreFailures(t *testing.T) {
	known := admitted("known", 100, time.Minute, 40, 36*time.Second)
	soft := failed(admitted("soft", 10, time.Minute, 0, 0))
	soft.Soft = true
	closed := failed(refused("closed", 10, time.Minute, limit.ReasonStoreFailure, 1500*time.Millisecond))
	for _, tt := range []struct {
		name string
		d    *limit.Decision
		o    Options
		want string
	}{
		{"admitted", allow(failed(admitted("open", 10, time.Minute, 0, 0)), soft), Options{XRateLimit: true}, ""},
		{"admitted beside a known limit", allow(failed(admitted("open", 10, time.Minute, 0, 0)), known), Options{XRateLimit: true}, `
Ratelimit: "known";r=40;t=36
Ratelimit-Policy: "known";q=100;w=60
X-Ratelimit-Limit: 100
X-Ratelimit-Remaining: 40
X-Ratelimit-Reset: 36`},
		{"refused", refuse(closed), Options{XRateLimit: true}, `
Retry-After: 2
X-Ratelimit-Retry-After: 2`},
		{"refused, marked for gateways", refuse(closed), Options{MarkRefusals: true}, `
Ratelimit: "closed";r=0;t=2
Ratelimit-Policy: "closed";q=10;w=60
Retry-After: 2`},
		{"marks refusals only", allow(soft), Options{MarkRefusals: true}, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			h := http.Header{}
			Header(h, tt.d, tt.o)
			if got, want := text(h), strings.TrimPrefix(tt.want, "\n"); got != want {
				t.Errorf("got\n%s\nwant\n%s", got, want)
			}
		})
	}
}

// A refusal for a store failure is a 503 that says when to come again.
func TestRefusalOfAStoreFailure(t *testing.T) {
	d := refuse(failed(refused("closed", 10, time.Minute, limit.ReasonStoreFailure, time.Second)))
	d.Status = http.StatusServiceUnavailable
	rec := httptest.NewRecorder()
	WriteRefusal(rec, d, Options{})
	if rec.Code != 503 || rec.Header().Get("Retry-After") != "1" {
		t.Errorf("%d %v", rec.Code, rec.Header())
	}
	for _, want := range []string{"#temporary-reduced-capacity", `"reason":"store_failure"`, `"violated-policies":["closed"]`, "its store does not answer"} {
		if !strings.Contains(rec.Body.String(), want) {
			t.Errorf("no %s in %s", want, rec.Body)
		}
	}
}

// The statuses that a limit may ask for are 400 to 599, both included; names keep what
// is printable, and nothing else.
func TestBoundsOfAnswers(t *testing.T) {
	for asked, want := range map[int]int{0: 429, 200: 429, 399: 429, 400: 400, 401: 401, 598: 598, 599: 599, 600: 429} {
		if got := Status(&limit.Decision{Status: asked}); got != want {
			t.Errorf("a limit that asks for %d is answered %d, want %d", asked, got, want)
		}
	}
	soft := allow()
	for range maxMembers + 2 {
		r := admitted("s", 5, time.Second, 1, 0)
		r.Soft = true
		soft.Results = append(soft.Results, r)
	}
	h := http.Header{}
	Header(h, soft, Options{})
	if n := strings.Count(h.Get("X-RateLimit-Warning"), `"s"`); n != maxMembers {
		t.Errorf("%d limits in X-RateLimit-Warning, want %d", n, maxMembers)
	}
	h = http.Header{}
	Header(h, allow(admitted(" ~\x1f\x7f", 5, time.Second, 1, 0)), Options{})
	if got := h.Get("RateLimit-Policy"); got != `" ~??";q=5;w=1` {
		t.Errorf("RateLimit-Policy is %s", got)
	}
}

// Figures at a bound: what remains is paced exactly, and a part of a nanosecond counts.
func TestBoundsOfFigures(t *testing.T) {
	cheaper := refused("a", 1000, 100*time.Second, limit.ReasonRate, 5*time.Second)
	for want, remaining := range map[string]int64{`"a";r=50;t=5`: 50, `"a";r=51`: 51} {
		cheaper.Remaining = remaining
		h := http.Header{}
		if Header(h, refuse(cheaper), Options{}); h.Get("RateLimit") != want {
			t.Errorf("RateLimit is %s, want %s", h.Get("RateLimit"), want)
		}
	}
	h := http.Header{}
	if Header(h, allow(admitted("a", 3, 3*time.Second+1, 1, 0)), Options{}); h.Get("RateLimit") != `"a";r=1;t=2` {
		t.Errorf("RateLimit is %s", h.Get("RateLimit"))
	}
	late := refused("a", 5, time.Second, limit.ReasonBanned, time.Minute)
	late.ResetAfter = time.Second
	h = http.Header{}
	if Header(h, refuse(late), Options{XRateLimit: true}); h.Get("X-RateLimit-Reset") != "60" {
		t.Errorf("X-RateLimit-Reset is %s, before Retry-After", h.Get("X-RateLimit-Reset"))
	}
}
