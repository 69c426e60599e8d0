package gate

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"
)

// What is at a bound is taken, and what is one above it is not.
func TestBounds(t *testing.T) {
	b := &budget{size: 1000}
	h := New(b, Options{Trusted: loopback(t)})
	call := func(path string, ids ...string) (code, charged int) {
		t.Helper()
		r := httptest.NewRequest("GET", path, nil)
		r.RemoteAddr = "127.0.0.1:1"
		for _, id := range ids {
			r.Header.Add("X-Request-Id", id)
		}
		before, w := b.calls, httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, b.calls - before
	}
	const once = "/v1/gate/nginx/once=x-request-id"
	for _, tt := range []struct {
		name    string
		ids     []string
		charged int // by two calls
	}{
		{"the longest id", []string{strings.Repeat("x", maxID)}, 1},
		{"one that is longer", []string{strings.Repeat("x", maxID+1)}, 2},
		{"two lines", []string{"a", "a"}, 2},
		{"no line", nil, 2},
	} {
		total := 0
		for range 2 {
			code, n := call(once, tt.ids...)
			if code != 204 {
				t.Errorf("%s: %d", tt.name, code)
			}
			total += n
		}
		if total != tt.charged {
			t.Errorf("%s: two calls are charged %d times, want %d", tt.name, total, tt.charged)
		}
	}
	path := "/v1/gate/nginx/attr.a="
	path += strings.Repeat("x", maxPath-len(path))
	if code, _ := call(path); code != 204 {
		t.Errorf("the longest path: %d", code)
	}
	if code, n := call(path + "x"); code != 400 || n != 0 {
		t.Errorf("a longer path: %d, charged %d", code, n)
	}
	path = "/v1/gate/nginx"
	for i := range maxAttributes {
		path += fmt.Sprintf("/attr.a%d=x", i)
	}
	if code, _ := call(path); code != 204 {
		t.Errorf("%d attributes: %d", maxAttributes, code)
	}
	if code, n := call(path + "/attr.more=x"); code != 400 || n != 0 {
		t.Errorf("%d attributes: %d, charged %d", maxAttributes+1, code, n)
	}
}
