package frameworks_test

import (
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"

	"github.com/stint-io/stint/examples/frameworks"
)

// server serves one request.
type server func(*http.Request) (status int, body string, header http.Header)

func standard(t *testing.T, build func() (http.Handler, error)) server {
	t.Helper()
	h, err := build()
	if err != nil {
		t.Fatal(err)
	}
	return func(r *http.Request) (int, string, http.Header) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code, w.Body.String(), w.Header()
	}
}

func fiberServer(t *testing.T) server {
	t.Helper()
	app, err := frameworks.Fiber()
	if err != nil {
		t.Fatal(err)
	}
	return func(r *http.Request) (int, string, http.Header) {
		answer, err := app.Test(r)
		if err != nil {
			t.Fatal(err)
		}
		defer answer.Body.Close()
		body, err := io.ReadAll(answer.Body)
		if err != nil {
			t.Fatal(err)
		}
		return answer.StatusCode, string(body), answer.Header
	}
}

// TestFrameworks: a user has three requests, one of them to the route /export/{id}, whatever its id; the handler of a refused
// request does not run; users are independent.
func TestFrameworks(t *testing.T) {
	for name, serve := range map[string]server{
		"chi": standard(t, frameworks.Chi), "echo": standard(t, frameworks.Echo), "gin": standard(t, frameworks.Gin), "fiber": fiberServer(t),
	} {
		t.Run(name, func(t *testing.T) {
			for _, user := range []string{"ada", "bob"} {
				for i, step := range []struct {
					path, body string
					status     int
				}{
					{"/export/1", "1", 200},
					{"/export/2", "", 429},
					{"/hello", "hello", 200},
					{"/hello", "hello", 200},
					{"/hello", "", 429},
				} {
					r := httptest.NewRequest(http.MethodGet, "http://example.com"+step.path, http.NoBody)
					r.SetBasicAuth(user, "secret")
					status, body, header := serve(r)
					if status != step.status || status == 200 && body != step.body || status == 429 && !json.Valid([]byte(body)) {
						t.Errorf("%s, step %d, %s: %d %q, want %d %q", user, i, step.path, status, body, step.status, step.body)
					}
					if header.Get("RateLimit") == "" || (header.Get("Retry-After") != "") != (status == 429) {
						t.Errorf("%s, step %d: header %v", user, i, header)
					}
				}
			}
		})
	}
}

// TestReadmeShowsTheCode: each block of Go on the page stands in a file, line by line.
func TestReadmeShowsTheCode(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, file := range []string{"chi.go", "echo.go", "gin.go", "fiber.go", "doc.go"} {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		code.Write(text)
	}
	blocks := strings.Split(string(page), "```go\n")[1:]
	if len(blocks) != 5 {
		t.Errorf("%d blocks, want 5", len(blocks))
	}
	for _, block := range blocks {
		block, _, _ = strings.Cut(block, "```")
		for line := range strings.Lines(block) {
			if !strings.Contains(code.String(), strings.TrimSpace(line)) {
				t.Errorf("no file has the line %q", line)
			}
		}
	}
}
