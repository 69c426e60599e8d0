package server_test

import (
	"net/http"
	"strings"
	"testing"
)

// TestKeyThatNeverArrives: a limit that is skipped by ten requests and has never applied is logged, once, with what the
// request has in place of its key. One that applies to another descriptor of the request is not skipped.
func TestKeyThatNeverArrives(t *testing.T) {
	s := start(t, `
limits:
  - {name: per-client, key: [user_id], rate: 1M/h}
  - {name: sometimes, key: [plan_name], rate: 1M/h}
  - {name: second, key: [tenant], rate: 1M/h}
`)
	ask := func(more ...string) {
		s.should(request("edge", 1, descriptor("remote_address=192.0.2.7"), descriptor(append([]string{"user_ids=u", "tenant=acme"}, more...)...)))
	}
	lines := func() int { return strings.Count(s.log.String(), "has applied to none") }
	ask("plan_name=pro")
	for range 8 {
		ask()
	}
	if n := lines(); n != 0 {
		t.Errorf("%d lines after 9 requests:\n%s", n, s.log)
	}
	for range 30 {
		ask()
	}
	if n := lines(); n != 1 || !strings.Contains(s.log.String(), "limit=per-client key=user_id") {
		t.Errorf("%d lines after 39 requests, want one about per-client:\n%s", n, s.log)
	}
	for name, want := range map[string]int{"per-client": 39, "sometimes": 38} {
		if n := metric(t, s, `stint_unlimited_total{limit="`+name+`",reason="missing_key"}`); n != want {
			t.Errorf("%s: %d, want %d", name, n, want)
		}
	}
	if text := s.do(http.MethodGet, s.admin+"/metrics", "").body; strings.Contains(text, `stint_unlimited_total{limit="second"`) {
		t.Error("a limit that applies to the second descriptor is counted as skipped")
	}
}
