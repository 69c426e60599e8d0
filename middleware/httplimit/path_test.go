package httplimit_test

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stint-io/stint"
	"github.com/stint-io/stint/middleware/httplimit"
)

// What net/http's ServeMux, or a router that goes by the path as it was sent, routes to a handler meets the limit that
// names the handler's path, however the client writes it.
func TestNoPathGetsAroundALimit(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 10))
	l, err := stint.Parse(`
limits:
  - {name: search, match: {path: /search/*}, rate: 0/s}
  - {name: reset, match: {path: /users/*/reset}, rate: 0/s}
  - {name: admin, when: 'path.startsWith("/admin/")', rate: 0/s}
  - {name: rest, match: {method: DELETE}, rate: 0/s, overrides: [{when: {path: /open/*}, unlimited: true}]}
`)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	served := ""
	mux := http.NewServeMux()
	for _, pattern := range []string{"/search/{rest...}", "/users/{id}/reset", "/admin/", "/open/", "/"} {
		mux.HandleFunc(pattern, func(http.ResponseWriter, *http.Request) { served = pattern })
	}
	limited := httplimit.New(l)(mux)
	// ask sends the path as it stands, as a client of its own making does.
	ask := func(method, path string) (code int, r *http.Request) {
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n\r\n")))
		if err != nil {
			return 0, nil
		}
		r.RemoteAddr = "192.0.2.7:1"
		w := httptest.NewRecorder()
		served = ""
		limited.ServeHTTP(w, r)
		return w.Code, r
	}
	// Limits take an escaped slash for a slash, so that /open%2fx is open, too.
	open := func(r *http.Request) bool {
		return strings.HasPrefix(r.URL.Path, "/open/") && (served == "/open/" || served == "/")
	}
	pieces := []string{"/", "/", "//", "search", "users", "admin", "open", "7", "reset", "x", ".", "..", "/..", "%2f", "%2F", "%2e", "%2E%2e", "..%2f", "%2f..%2f..%2f", "%41", "%zz", "%252f", ";", "a b%20", "\\", "%5c"}
	random := func() string {
		path := []string{"/search/", "/users/", "/admin/", "/open/", "/"}[r.IntN(5)]
		for range r.IntN(8) {
			path += pieces[r.IntN(len(pieces))]
		}
		return strings.ReplaceAll(path, " ", "")
	}
	paths := []string{"/search/cats%2f..%2f..%2fz", "/search/%2e%2e%2fz", "/users/7%2f..%2f..%2fx/reset", "/search/cats", "/open/..%2fx", "/open/%2e%2e%2fx"}
	for range 20_000 {
		paths = append(paths, random())
	}
	met := map[string]int{}
	for _, path := range paths {
		for _, method := range []string{"GET", "DELETE"} {
			code, r := ask(method, path)
			if r == nil || served == "" && code != 429 {
				continue // not HTTP, or a redirect to the clean path
			}
			if code != 429 && (served == "/search/{rest...}" || served == "/users/{id}/reset" || served == "/admin/" || method == "DELETE" && !open(r)) {
				t.Fatalf("%s %s is served by %s: %d", method, path, served, code)
			}
			// A router that neither decodes nor cleans.
			if sent, _, _ := strings.Cut(path, "?"); code != 429 && (strings.HasPrefix(sent, "/search/") || strings.HasPrefix(sent, "/admin/")) {
				t.Fatalf("%s %s passes with %d", method, path, code)
			}
			if code == 429 {
				met["refused"]++
			} else {
				met[served]++
			}
		}
	}
	if met["refused"] < 1000 || met["/"] < 100 || met["/open/"] < 100 {
		t.Errorf("too few were met: %v", met)
	}
}

// A path with one reading has one attribute; a limit that does not go by the path is charged once, however many it has.
func TestReadingsAreChargedOnce(t *testing.T) {
	l, err := stint.Parse(`limits: [{name: a, key: [ip], rate: 3/h}, {name: b, match: {path: ["/x/*", /z]}, key: [path], rate: 3/h}]`)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	h := httplimit.New(l)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	var got []int
	for i := range 4 {
		r := httptest.NewRequest("GET", "/x/..%2fz", nil)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		got = append(got, w.Code)
		if fields := w.Header()["Ratelimit"]; i == 0 && (len(fields) != 1 || strings.Count(fields[0], `"b"`) == 0) {
			t.Errorf("%q", fields)
		}
	}
	if fmt.Sprint(got) != "[200 200 200 429]" {
		t.Errorf("%v", got)
	}
}
