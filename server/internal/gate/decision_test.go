package gate

import (
	"context"
	"errors"
	"net/http"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/limit"
)

// verdict gives one decision, or one error, for ever.
type verdict struct {
	d   limit.Decision
	err error
}

func (v *verdict) Take(context.Context, limit.Request) (limit.Decision, error) { return v.d, v.err }

// A gateway that lets requests pass when there is no decision can tell that from a
// refusal, whatever the status and whether or not RateLimit fields are sent.
func TestDecisionsAreMarked(t *testing.T) {
	refusal := limit.Decision{Status: http.StatusServiceUnavailable, Results: []limit.Result{{
		Limit: "closed", Quota: 5, Window: time.Minute, Cost: 1, StoreFailed: true,
		Verdict: limit.Verdict{Reason: limit.ReasonStoreFailure, RetryAfter: time.Second},
	}}}
	for name, c := range map[string]struct {
		verdict verdict
		status  int
		mark    string
		field   bool // RateLimit, unless it is off
	}{
		"admitted":      {verdict{d: limit.Decision{Allowed: true}}, 200, "allow", false},
		"store failure": {verdict{d: refusal}, 503, "reject", true},
		"no decision":   {verdict{err: errors.New("no store")}, 503, "", false},
	} {
		for _, draft := range []answer.Draft{answer.Draft10, answer.Off} {
			call := serve(t, New(&c.verdict, Options{Trusted: loopback(t), Answer: answer.Options{RateLimitFields: draft}}))
			resp, _ := call("GET", "/v1/gate/forward-auth")
			if got := resp.Header.Get("X-Stint-Decision"); resp.StatusCode != c.status || got != c.mark {
				t.Errorf("%s, %s: %d with %q, want %d with %q", name, draft, resp.StatusCode, got, c.status, c.mark)
			}
			if got, want := resp.Header.Get("RateLimit") != "", c.field && draft != answer.Off; got != want {
				t.Errorf("%s, %s: RateLimit is sent: %v, want %v", name, draft, got, want)
			}
			resp, _ = call("GET", "/v1/gate/nginx")
			if got := resp.Header.Get("X-Stint-Decision"); got != c.mark {
				t.Errorf("%s, nginx: %q, want %q", name, got, c.mark)
			}
		}
	}
	call := serve(t, New(&verdict{d: limit.Decision{Allowed: true}}, Options{Trusted: loopback(t)}))
	resp, _ := call("GET", "/v1/gate/forward-auth", "X-Forwarded-Uri", "/a", "X-Original-URI", "/b")
	if got := resp.Header.Get("X-Stint-Decision"); resp.StatusCode != 400 || got != "reject" {
		t.Errorf("conflict: %d with %q", resp.StatusCode, got)
	}
}
