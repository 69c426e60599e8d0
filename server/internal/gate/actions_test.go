package gate

import (
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// TestActions: what gateways are told of each kind of on_exceed.
func TestActions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set, err := rules.Parse("l.yaml", []byte(`
limits:
  - {name: own, match: {path: /own}, rate: 1/h, on_exceed: {reject: {status: 503, body: later, header: {X-Reason: quota}}}}
  - {name: away, match: {path: /away}, rate: 1/h, on_exceed: {redirect: {location: /busy, status: 307}}}
  - {name: less, match: {path: /less}, rate: 1/h, on_exceed: tag}
  - {name: slow, match: {path: /slow}, rate: 5/s, burst: 1, on_exceed: {queue: {max_wait: 2s}}}
`))
		if err != nil {
			t.Fatal(err)
		}
		e, err := engine.New(memory.New(memory.Options{}), set, engine.Options{})
		if err != nil {
			t.Fatal(err)
		}
		h := New(e, Options{Trusted: loopback(t)})
		// Not a real client, which would follow a redirect.
		ask := func(mode, path string) (*http.Response, string) {
			r := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/v1/gate/"+mode, http.NoBody)
			r.RemoteAddr = "127.0.0.1:1"
			r.Header.Set("X-Forwarded-Uri", path)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, r)
			return w.Result(), w.Body.String()
		}
		for _, path := range []string{"/own", "/away", "/less", "/slow"} {
			if r, _ := ask("forward-auth", path); r.StatusCode != 200 || r.Header.Get(limit.DegradedHeader) != "" {
				t.Errorf("%s: %d %v", path, r.StatusCode, r.Header)
			}
		}
		if r, body := ask("forward-auth", "/own"); r.StatusCode != 503 || body != "later" || r.Header.Get("X-Reason") != "quota" || r.Header.Get(decisionField) != decidedReject {
			t.Errorf("own: %d %q %v", r.StatusCode, body, r.Header)
		}
		if r, body := ask("forward-auth/refuse=4xx", "/own"); r.StatusCode != 429 || body != "later" || r.Header.Get("X-Reason") != "quota" || r.Header.Get(statusField) != "503" || r.Header.Get(decisionField) != decidedReject {
			t.Errorf("own, by 4xx only: %d %q %v", r.StatusCode, body, r.Header)
		}
		if r, _ := ask("forward-auth/refuse=4xx", "/away"); r.StatusCode != 307 || r.Header.Get(statusField) != "" {
			t.Errorf("away, by 4xx only: %d %v", r.StatusCode, r.Header)
		}
		if r, _ := ask("forward-auth", "/away"); r.StatusCode != 307 || r.Header.Get("Location") != "/busy" || r.Header.Get(decisionField) != decidedReject {
			t.Errorf("away: %d %v", r.StatusCode, r.Header)
		}
		if r, _ := ask("nginx", "/away"); r.StatusCode != 403 || r.Header.Get(statusField) != "307" || r.Header.Get("Location") != "/busy" {
			t.Errorf("away for nginx: %d %v", r.StatusCode, r.Header)
		}
		if r, _ := ask("nginx", "/less"); r.StatusCode != 204 || r.Header.Get(limit.DegradedHeader) != "less" || r.Header.Get(decisionField) != decidedAllow {
			t.Errorf("less: %d %v", r.StatusCode, r.Header)
		}
		// A gateway that does not say how long it waits is answered at once.
		if r, _ := ask("nginx", "/slow"); r.StatusCode != 403 {
			t.Errorf("slow without wait: %d", r.StatusCode)
		}
		start := time.Now()
		if r, _ := ask("forward-auth/wait=1s", "/slow"); r.StatusCode != 200 || time.Since(start) != 200*time.Millisecond {
			t.Errorf("slow: %d after %v", r.StatusCode, time.Since(start))
		}
		for _, bad := range []string{"wait=1h", "wait=-1s", "wait=x", "wait=1s/wait=1s", "refuse=5xx", "refuse=4xx/refuse=4xx"} {
			if r, _ := ask("nginx/"+bad, "/slow"); r.StatusCode != 400 {
				t.Errorf("%s: %d", bad, r.StatusCode)
			}
		}
	})
}
