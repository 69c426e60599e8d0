package rest_test

import (
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/server/internal/rest"
	"github.com/stint-io/stint/store/memory"
)

// TestLimitIsAwaited: a question with the tag of the answer before it waits for another answer: for as long as
// it asks, for five seconds at most, until the server drains, and not at all without a tag or a wait.
func TestLimitIsAwaited(t *testing.T) {
	parse := func(t *testing.T, rate string) *rules.Set {
		set, err := rules.Parse("f", []byte("limits: [{name: a, rate: "+rate+"}]\n"))
		if err != nil {
			t.Fatal(err)
		}
		return set
	}
	for name, c := range map[string]struct {
		query       string
		after       time.Duration // of the change; 0 = none
		drain       time.Duration // 0 = never
		other       bool          // the change is of something else
		code        int
		answerAfter time.Duration
	}{
		"a change":              {"?wait=4s", time.Second, 0, false, 200, time.Second},
		"no change":             {"?wait=4s", 0, 0, false, 304, 4 * time.Second},
		"a change of others":    {"?wait=4s", time.Second, 0, true, 304, 4 * time.Second},
		"longer than it may be": {"?wait=1h", 0, 0, false, 304, 5 * time.Second},
		"a drain":               {"?wait=4s", 0, 2 * time.Second, false, 304, 2 * time.Second},
		"no wait":               {"", time.Second, 0, false, 304, 0},
		"a wrong wait":          {"?wait=-1s", 0, 0, false, 400, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st := memory.New(memory.Options{})
				e, err := engine.New(st, parse(t, "5/s"), engine.Options{})
				if err != nil {
					t.Fatal(err)
				}
				changed, done := make(chan struct{}), make(chan struct{})
				var over atomic.Bool
				h := rest.New(e, rest.Options{Done: done, Changed: func() <-chan struct{} {
					if over.Load() {
						return nil // there is no other change
					}
					return changed
				}})
				first := httptest.NewRecorder()
				h.ServeHTTP(first, httptest.NewRequest("GET", "/v1/limits/a", nil))
				if first.Code != 200 {
					t.Fatalf("%d %s", first.Code, first.Body)
				}
				if c.after > 0 {
					time.AfterFunc(c.after, func() {
						rate := "6/s"
						if c.other {
							rate = "5/s"
						}
						if err := e.Swap(parse(t, rate)); err != nil {
							t.Error(err)
						}
						over.Store(true)
						close(changed)
					})
				}
				if c.drain > 0 {
					time.AfterFunc(c.drain, func() { close(done) })
				}
				begun, second := time.Now(), httptest.NewRecorder()
				r := httptest.NewRequest("GET", "/v1/limits/a"+c.query, nil)
				r.Header.Set("If-None-Match", first.Header().Get("ETag"))
				h.ServeHTTP(second, r)
				if took := time.Since(begun); second.Code != c.code || took != c.answerAfter {
					t.Errorf("%d after %v, want %d after %v", second.Code, took, c.code, c.answerAfter)
				}
				if c.code == 200 && second.Header().Get("ETag") == first.Header().Get("ETag") {
					t.Error("another answer has the same tag")
				}
			})
		})
	}
}
