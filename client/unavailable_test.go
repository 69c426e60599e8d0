package client_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/httplimit"
)

// TestUnavailable: a limit whose coordinator does not answer refuses requests by 503, whatever its kind and options. What is a
// fault of the request stays 429.
func TestUnavailable(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	c, err := client.New(client.Options{Address: "127.0.0.1:1"})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 50 {
		o := client.LimitOptions{Expiry: []client.Expiry{client.Pessimistic, client.Safe, client.Optimistic}[r.IntN(3)], Silent: r.IntN(2) == 0, Ask: time.Millisecond}
		kind := []string{"limit", "semaphore", "keyed"}[r.IntN(3)]
		var taker limit.Taker
		switch name := fmt.Sprint("limit", i); kind {
		case "limit":
			l, err := c.Limit(name, o)
			if err != nil {
				t.Fatal(err)
			}
			taker = l
		case "semaphore":
			s, err := c.Semaphore(name, o)
			if err != nil {
				t.Fatal(err)
			}
			taker = s
		default:
			k, err := c.Keyed(name, []string{"header:x-user"}, client.KeyedOptions{LimitOptions: o, Semaphore: r.IntN(2) == 0, RefuseMissing: true})
			if err != nil {
				t.Fatal(err)
			}
			defer k.Close()
			taker = k
		}
		h := httplimit.New(taker)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		ask := func(user string) (int, string, http.Header) {
			req := httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/", nil)
			if user != "" {
				req.Header.Set("X-User", user)
			}
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, req)
			var problem struct{ Type, Reason string }
			if err := json.Unmarshal(rec.Body.Bytes(), &problem); err != nil {
				t.Fatalf("%s: %v", rec.Body, err)
			}
			return rec.Code, problem.Type + " " + problem.Reason, rec.Header()
		}
		const capacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity store_failure"
		if code, problem, header := ask("acme"); code != 503 || problem != capacity || header.Get("Retry-After") == "" {
			t.Errorf("%s %+v: %d %s %v", kind, o, code, problem, header)
		}
		if code, problem, _ := ask(""); kind == "keyed" && (code != 429 || !strings.HasSuffix(problem, "missing_key")) {
			t.Errorf("without the key: %d %s", code, problem)
		}
	}
}
