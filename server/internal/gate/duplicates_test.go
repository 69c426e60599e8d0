package gate

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/store/memory"
)

// With duplicates=refuse a request that has what limits read more than once is refused in the gateway's terms.
func TestDuplicates(t *testing.T) {
	set, err := rules.Parse("l.yaml", []byte("limits: [{name: a, key: ['header:x-key', 'query:q'], rate: 100/hour}]\n"))
	if err != nil {
		t.Fatal(err)
	}
	e, err := engine.New(memory.New(memory.Options{}), set, engine.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := New(e, Options{Trusted: loopback(t)})
	for _, tt := range []struct {
		path string
		keys []string
		uri  string
		want int
	}{
		{"/v1/gate/forward-auth", []string{"a", "b"}, "/?q=1&q=2", 200},
		{"/v1/gate/forward-auth/duplicates=refuse", []string{"a"}, "/?q=1", 200},
		{"/v1/gate/forward-auth/duplicates=refuse", []string{"a", "b"}, "/?q=1", 400},
		{"/v1/gate/forward-auth/duplicates=refuse", []string{"a"}, "/?q=1&q=2", 400},
		{"/v1/gate/nginx/duplicates=refuse", []string{"a"}, "/?q=1&q=2", 403},
		{"/v1/gate/forward-auth/duplicates=allow", []string{"a"}, "/?q=1", 400},
	} {
		r := httptest.NewRequest(http.MethodGet, tt.path, nil)
		r.RemoteAddr = "127.0.0.1:1"
		r.Header["X-Key"] = tt.keys
		r.Header.Set("X-Forwarded-Uri", tt.uri)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != tt.want {
			t.Errorf("%s %q %s: %d %s, want %d", tt.path, tt.keys, tt.uri, w.Code, w.Body, tt.want)
		}
		if refused := w.Header().Get("X-Stint-Decision") == "reject"; refused != (tt.want != 200 && tt.path != "/v1/gate/forward-auth/duplicates=allow") {
			t.Errorf("%s: X-Stint-Decision is %q", tt.path, w.Header().Get("X-Stint-Decision"))
		}
	}
}
