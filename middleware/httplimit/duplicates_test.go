package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stint-io/stint"
	"github.com/stint-io/stint/middleware/httplimit"
)

// With WithoutDuplicates what limits read is there once, or the request is refused.
func TestWithoutDuplicates(t *testing.T) {
	limiter, err := stint.Parse("limits: [{name: a, key: ['header:x-key'], rate: 100/hour}]\n")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = limiter.Close() })
	served := 0
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ })
	strict := httplimit.New(limiter, httplimit.WithoutDuplicates(), httplimit.WithRequestAttributes("query:q"))(handler)
	lax := httplimit.New(limiter)(handler)
	for _, tt := range []struct {
		h    http.Handler
		keys []string
		path string
		want int
	}{
		{strict, []string{"a"}, "/?q=1", 200},
		{strict, []string{"a", "b"}, "/", 400},
		{strict, []string{"a"}, "/?q=1&q=2", 400},
		{lax, []string{"a", "b"}, "/?q=1&q=2", 200},
	} {
		r := httptest.NewRequest(http.MethodGet, tt.path, nil)
		r.Header["X-Key"] = tt.keys
		w := httptest.NewRecorder()
		if tt.h.ServeHTTP(w, r); w.Code != tt.want {
			t.Errorf("%q %s: %d, want %d", tt.keys, tt.path, w.Code, tt.want)
		}
	}
	if served != 2 {
		t.Errorf("%d requests were served, want 2", served)
	}
}
