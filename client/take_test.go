package client

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/limit"
)

// What an answer says of the time in which a lease fills agrees with the next refusal:
// when nothing remains, the time until all is there, without that in which the limit
// grants all but one, is what the refusal says to wait.
func TestResetAgreesWithTheNextRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHub(t, link20)
		h.terms["m"] = rateOf(60, 60)
		var ls []*Limiter
		for _, name := range []string{"one", "two", "three"} {
			ls = append(ls, openLimit(t, h.run(t, name), "m", LimitOptions{Ask: -1}))
		}
		emptied := 0
		for range 4000 {
			for _, l := range ls {
				d, err := l.Take(t.Context(), limit.Request{})
				if err != nil {
					t.Fatal(err)
				}
				if r := d.Results[0]; d.Allowed && r.Remaining == 0 {
					next, err := l.Take(t.Context(), limit.Request{})
					if err != nil {
						t.Fatal(err)
					}
					if next.Allowed {
						continue
					}
					emptied++
					rest := r.Window / time.Duration(r.Quota) * time.Duration(r.Quota-1)
					if got, want := r.ResetAfter-rest, next.Results[0].RetryAfter; (got - want).Abs() > time.Microsecond {
						t.Fatalf("as new in %v, the next token in %v; then it says to retry after %v: %+v", r.ResetAfter, got, want, r)
					}
				}
			}
			time.Sleep(5 * time.Millisecond)
		}
		if emptied < 100 {
			t.Fatalf("emptied %d times only", emptied)
		}
	})
}
