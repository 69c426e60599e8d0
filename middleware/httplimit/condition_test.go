package httplimit_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/stint-io/stint"
	"github.com/stint-io/stint/middleware/httplimit"
)

// No request that fulfils a condition passes a limit that refuses, however long its path, how many its header fields and
// how unknown its size: a condition that cannot be evaluated matches. Requests of a usual size that do not fulfil it pass.
func TestNoConditionIsMadeToFail(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 11))
	const expression = "^/api/(v1|v2|v3)/(users|orders|invoices|payments|search|reports|exports|imports|uploads|sessions|accounts|members|groups)/[^/]+$"
	api := regexp.MustCompile(expression)
	for name, c := range map[string]struct {
		when  string
		holds func(r *http.Request, size int) bool
	}{
		"path":   {`path.matches("` + expression + `")`, func(r *http.Request, _ int) bool { return api.MatchString(r.URL.Path) }},
		"exists": {`request.headers.exists(h, h.startsWith("x-scan"))`, func(r *http.Request, _ int) bool { return r.Header.Get("X-Scan-Id") != "" }},
		"many":   {`size(request.headers) > 70`, func(r *http.Request, _ int) bool { return len(r.Header) > 70 }},
		"all":    {`attributes.exists(a, a == "header:x-scan-id")`, func(r *http.Request, _ int) bool { return r.Header.Get("X-Scan-Id") != "" }},
		"size":   {`request.size > 1000`, func(_ *http.Request, size int) bool { return size > 1000 }},
		"armor": {`has(request.headers.x_scan) || request.headers["user-agent"].contains("scan") && path.contains("/v1/")`, func(r *http.Request, _ int) bool {
			return strings.Contains(r.UserAgent(), "scan") && strings.Contains(r.URL.Path, "/v1/")
		}},
	} {
		l, err := stint.Parse("limits:\n  - name: a\n    rate: 0/s\n    when: '" + c.when + "'\n")
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		h := httplimit.New(l)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		refused, passed := 0, 0
		for range 300 {
			large := r.IntN(2) == 0
			path := []string{"/api/v1/search/", "/api/v2/users/x/", "/api/v9/users/", "/"}[r.IntN(4)] + strings.Repeat("a", r.IntN(20))
			headers, size := r.IntN(20), r.IntN(2000)
			var body io.Reader = strings.NewReader(strings.Repeat("x", size))
			if large {
				path += strings.Repeat("a", r.IntN(60_000))
				headers = r.IntN(400)
				if r.IntN(2) == 0 {
					body = io.MultiReader(body) // of unknown length
				}
			}
			q := httptest.NewRequest("POST", path, body)
			q.Header.Set("User-Agent", []string{"scanner", "browser"}[r.IntN(2)])
			for i := range headers {
				q.Header.Set(fmt.Sprintf("A-%03d", i), strings.Repeat("v", r.IntN(50)))
			}
			if r.IntN(2) == 0 {
				q.Header.Set("X-Scan-Id", "1")
			}
			w := httptest.NewRecorder()
			h.ServeHTTP(w, q)
			switch holds := c.holds(q, size); {
			case holds && w.Code != 429:
				t.Errorf("%s: a request that fulfils it passes: path of %d bytes, %d header fields, %d bytes, length %d", name, len(path), len(q.Header), size, q.ContentLength)
			case !holds && !large && w.Code != 200:
				t.Errorf("%s: a request that does not fulfil it is answered %d: %.80s, %d header fields, %d bytes", name, w.Code, path, len(q.Header), size)
			case holds:
				refused++
			case w.Code == 200:
				passed++
			}
		}
		if refused == 0 || passed == 0 {
			t.Errorf("%s: %d are refused and %d pass", name, refused, passed)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	}
}
