package stint_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stint-io/stint"
	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/httplimit"
)

// TestTwoTiers: a rate of each process in its own memory, in front of a budget of all processes at the shared store.
// What the near limit refuses takes nothing of the far one, and does not ask for it.
func TestTwoTiers(t *testing.T) {
	r := redistest.Start(t)
	far := fmt.Sprintf(`
store: redis://%s?timeout=10s
limits: [{name: month, key: ["header:x-customer"], algorithm: fixed_window, rate: 8/month, on_store_failure: reject}]
`, r.Addr())
	const near = `limits: [{name: near, key: ["header:x-customer"], rate: 5/h, burst: 5}]`
	process := func() http.Handler {
		open := func(text string) *stint.Limiter {
			l, err := stint.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = l.Close() })
			return l
		}
		short, long := open(near), open(far)
		awaitStore(t, func() bool {
			d, err := long.Take(t.Context(), limit.Request{Attributes: []limit.Attribute{{Name: "header:x-customer", Value: "x"}}, Peek: true})
			return err == nil && !d.Results[0].StoreFailed
		})
		ok := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
		return httplimit.New(short)(httplimit.New(long)(ok))
	}
	ask := func(h http.Handler) (int, string) {
		req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
		req.Header.Set("X-Customer", "acme")
		w := httptest.NewRecorder()
		h.ServeHTTP(w, req)
		return w.Code, w.Body.String()
	}
	for _, want := range []struct {
		admitted int
		refusal  string
	}{{5, "near"}, {3, "month"}, {0, "month"}} {
		h, admitted, refusal := process(), 0, ""
		for range 20 {
			code, body := ask(h)
			if code == http.StatusOK {
				admitted++
			} else if refusal == "" {
				refusal = body
			}
		}
		if admitted != want.admitted || !strings.Contains(refusal, want.refusal) {
			t.Errorf("%d were admitted, want %d, then %s refuses: %s", admitted, want.admitted, want.refusal, refusal)
		}
	}
	h := process()
	for range 5 {
		ask(h)
	}
	r.Kill()
	if code, body := ask(h); code != http.StatusTooManyRequests || !strings.Contains(body, "near") {
		t.Errorf("a refusal by the near limit asks the far store: %d %s", code, body)
	}
}
