package rest_test

import (
	"fmt"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/rest"
	"github.com/stint-io/stint/store/memory"
)

// TestTakeInLine: requests that ask for it wait for their turn at a limit that refuses others, in the order in
// which they came, up to five seconds.
func TestTakeInLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		set, err := rules.Parse("test.yaml", []byte("limits: [{name: a, key: [user], rate: 5/6s, burst: 1}]"))
		if err != nil {
			t.Fatal(err)
		}
		e, err := engine.New(memory.New(memory.Options{}), set, engine.Options{})
		if err != nil {
			t.Fatal(err)
		}
		h := rest.New(e, rest.Options{})
		ask := func(body string) (int, string) {
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, httptest.NewRequestWithContext(t.Context(), "POST", "/v1/take", strings.NewReader(body)))
			return rec.Code, rec.Body.String()
		}
		start := time.Now()
		var mu sync.Mutex
		var got []string
		var wg sync.WaitGroup
		for i := range 8 {
			wg.Go(func() {
				code, _ := ask(`{"attributes":{"user":"u"},"queue":true}`)
				mu.Lock()
				defer mu.Unlock()
				got = append(got, fmt.Sprint(i, " ", code, " at ", time.Since(start)))
			})
			synctest.Wait()
		}
		if code, body := ask(`{"attributes":{"user":"u"}}`); code != 429 || !strings.Contains(body, `"retry_after":1.2,`) {
			t.Errorf("who does not wait is answered %d %s", code, body)
		}
		if code, body := ask(`{"attributes":{"user":"u"},"queue":true}`); code != 429 || !strings.Contains(body, `"retry_after":6,`) {
			t.Errorf("who would wait for longer is answered %d %s", code, body)
		}
		wg.Wait()
		want := "0 200 at 0s, 5 429 at 0s, 6 429 at 0s, 7 429 at 0s, 1 200 at 1.2s, 2 200 at 2.4s, 3 200 at 3.6s, 4 200 at 4.8s"
		if text := strings.Join(got, ", "); text != want {
			t.Errorf("got %s\nwant %s", text, want)
		}
		if code, body := ask(`{"domain":"d","attributes":{"user":"u"},"queue":true}`); code != 400 || !strings.Contains(body, "leave out") {
			t.Errorf("with a domain: %d %s", code, body)
		}
	})
}
