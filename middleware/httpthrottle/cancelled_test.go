package httpthrottle

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stint-io/stint/throttle"
)

// cancelDearest cancels the running request.
func cancelDearest(t *testing.T, th *throttle.Throttle) {
	t.Helper()
	running := th.Running(1)
	if len(running) != 1 || !th.Cancel(running[0].ID) {
		t.Errorf("nothing to cancel in %+v", running)
	}
}

// TestCancelledBeforeItsAnswer: whatever the handler of a cancelled request does, its client gets
// one answer: 503 with the reason.
func TestCancelledBeforeItsAnswer(t *testing.T) {
	for name, after := range map[string]func(w http.ResponseWriter, r *http.Request){
		"it returns": func(http.ResponseWriter, *http.Request) {},
		"it answers 500": func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Set-Cookie", "a=b")
			w.Header().Set("Content-Length", "3")
			w.WriteHeader(http.StatusInternalServerError)
			w.WriteHeader(http.StatusOK)
			if _, err := io.WriteString(w, "bad"); !errors.Is(err, throttle.ErrCancelled) {
				t.Errorf("a write after the cancellation: %v", err)
			}
		},
		"it writes":  func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "result") },
		"it copies":  func(w http.ResponseWriter, _ *http.Request) { _, _ = io.Copy(w, strings.NewReader("result")) },
		"it flushes": func(w http.ResponseWriter, _ *http.Request) { w.(http.Flusher).Flush() },
	} {
		th := newThrottle(t, throttle.Options{Concurrency: 1})
		server := serve(t, th, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusEarlyHints)
			cancelDearest(t, th)
			<-r.Context().Done()
			if err := context.Cause(r.Context()); !errors.Is(err, throttle.ErrCancelled) {
				t.Errorf("%s: the cause is %v", name, err)
			}
			after(w, r)
		}))
		resp, body := answerOf(t, "GET", server.URL)
		if resp.StatusCode != 503 || !strings.Contains(body, `"reason":"cancelled"`) || resp.Header.Get("Retry-After") != "" ||
			resp.Header.Get("Set-Cookie") != "" || !strings.HasSuffix(body, "}\n") {
			t.Errorf("%s: %s, %q, %v", name, resp.Status, body, resp.Header)
		}
		if s := th.Stats(); s.Running != 0 || s.Cancelled != 1 {
			t.Errorf("%s: %+v", name, s)
		}
	}
}

// TestCancelledAfterItsAnswerBegan: a client never takes a part of an answer for the whole.
func TestCancelledAfterItsAnswerBegan(t *testing.T) {
	for _, length := range []string{"", "4", "100"} {
		th := newThrottle(t, throttle.Options{Concurrency: 1})
		server := serve(t, th, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if length != "" {
				w.Header().Set("Content-Length", length)
			}
			fmt.Fprint(w, "part")
			_ = http.NewResponseController(w).Flush()
			cancelDearest(t, th)
			<-r.Context().Done()
		}))
		resp, err := http.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body.Close()
		if whole := length == "4"; string(body) != "part" || whole != (err == nil) {
			t.Errorf("length %q: %q, %v", length, body, err)
		}
	}
}
