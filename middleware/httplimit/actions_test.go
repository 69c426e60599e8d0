package httplimit_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/httplimit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// protected is a handler behind limits; it says which marks it got.
func protected(t *testing.T, yaml string) http.Handler {
	t.Helper()
	set, err := rules.Parse("l.yaml", []byte(yaml))
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(memory.New(memory.Options{}), set, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return httplimit.New(e)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header()["Marks"] = append(r.Header.Values(limit.DegradedHeader), r.Header.Values("X-Serve")...)
	}))
}

func visit(h http.Handler, path string, fields ...string) *httptest.ResponseRecorder {
	r := httptest.NewRequestWithContext(context.Background(), http.MethodGet, path, http.NoBody)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w
}

// TestActions: a handler behind each kind of on_exceed.
func TestActions(t *testing.T) {
	h := protected(t, `
limits:
  - {name: own, match: {path: /own}, rate: 1/h, on_exceed: {reject: {status: 503, body: "<p>later", header: {X-Reason: quota}}}}
  - {name: away, match: {path: /away}, rate: 1/h, on_exceed: {redirect: "https://example.com/busy"}}
  - {name: less, match: {path: /less}, rate: 1/h, on_exceed: tag}
  - {name: two, match: {path: /less}, rate: 2/h, on_exceed: {tag: {name: X-Serve, value: cache}}}
  - {name: ban, match: {path: /ban}, rate: 1/h, on_exceed: {ban: {for: 1h, after: 2/h}, reject: 403}}
`)
	for _, path := range []string{"/own", "/away", "/less", "/ban"} {
		if w := visit(h, path, limit.DegradedHeader, "forged"); w.Code != 200 || len(w.Header()["Marks"]) > 0 {
			t.Errorf("%s: the first request: %d, %v", path, w.Code, w.Header())
		}
	}
	if w := visit(h, "/own"); w.Code != 503 || w.Body.String() != "<p>later" || w.Header().Get("X-Reason") != "quota" ||
		w.Header().Get("Content-Type") != "text/html; charset=utf-8" || w.Header().Get("Retry-After") == "" {
		t.Errorf("own: %d %q %v", w.Code, w.Body, w.Header())
	}
	if w := visit(h, "/away"); w.Code != 302 || w.Header().Get("Location") != "https://example.com/busy" {
		t.Errorf("away: %d %v", w.Code, w.Header())
	}
	r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/less", http.NoBody)
	r.Header.Set(limit.DegradedHeader, "forged")
	for _, want := range [][]string{{"less"}, {"less", "cache"}} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got := w.Header()["Marks"]; w.Code != 200 || len(got) != len(want) || got[0] != want[0] || got[len(got)-1] != want[len(want)-1] {
			t.Errorf("less: %d %q, want %q", w.Code, got, want)
		}
	}
	if r.Header.Get(limit.DegradedHeader) != "forged" {
		t.Error("the request of the caller was changed")
	}
	for range 3 {
		if w := visit(h, "/ban"); w.Code != 403 {
			t.Errorf("ban: %d", w.Code)
		}
	}
}

// A request that waits in a queue is served when its turn comes.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := protected(t, "limits: [{name: slow, rate: 1/s, on_exceed: {queue: {max_wait: 1500ms}}}]")
		start := time.Now()
		for i, want := range []time.Duration{0, time.Second, 2 * time.Second} {
			if w := visit(h, "/"); w.Code != 200 || time.Since(start) != want {
				t.Errorf("request %d: %d after %v, want after %v", i, w.Code, time.Since(start), want)
			}
		}
	})
}
