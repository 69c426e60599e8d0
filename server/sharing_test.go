package server_test

import (
	"net/http"
	"strings"
	"testing"
	"time"
)

const sharingConfig = `limits:
  - {name: loud, match: {kind: loud}, rate: 50/s, burst: 10, sharing: suppressed}
  - {name: quarter, match: {kind: split}, rate: 80/s, burst: 20, sharing: split, split: {instances: 4}}
  - {name: own, match: {kind: loud}, key: [user], rate: 1000000/s}
`

// Over the ports of the service: what is above a suppressed limit is refused by part, with
// a reason, whatever other limits are met, and operators see it; what is split has its
// part.
func TestSharing(t *testing.T) {
	s := start(t, sharingConfig, stateIn(t.TempDir()))
	ask := func(kind string, d time.Duration) (admitted, asked int, reasons map[string]int) {
		reasons = map[string]int{}
		for end := time.Now().Add(d); time.Now().Before(end); asked++ {
			a := s.post("/v1/take", `{"attributes":{"kind":"`+kind+`","user":"u"}}`)
			switch {
			case a.status == 200:
				admitted++
			case a.status == 429:
				_, reason, _ := strings.Cut(a.body, `"reason":"`)
				reason, _, _ = strings.Cut(reason, `"`)
				reasons[reason]++
			default:
				t.Fatalf("%d %s", a.status, a.body)
			}
		}
		return admitted, asked, reasons
	}
	ask("loud", time.Second)
	admitted, asked, reasons := ask("loud", 2*time.Second)
	if asked < 400 {
		t.Logf("only %d asked in 2 s: a slow machine", asked)
	}
	if admitted < 70 || admitted > 125 || reasons["suppressed"] < (asked-admitted)*9/10 {
		t.Errorf("%d of %d admitted in 2 s, of 50 in a second; refused for %v", admitted, asked, reasons)
	}
	a := s.do(http.MethodGet, s.admin+"/v1/leases?limit=loud", "")
	for _, part := range []string{`"sharing": "suppressed"`, `"reject": 0.`, `"attempted_total": `, `"admitted_total": `} {
		if !strings.Contains(a.body, part) {
			t.Errorf("no %s in %s", part, a.body)
		}
	}
	ask("split", time.Second)
	if admitted, asked, _ := ask("split", 2*time.Second); admitted < 28 || admitted > 50 {
		t.Errorf("%d of %d admitted in 2 s, of a quarter of 80 in a second", admitted, asked)
	}
	a = s.do(http.MethodGet, s.admin+"/v1/leases?limit=quarter", "")
	for _, part := range []string{`"sharing": "split"`, `"capacity": 20`, `"burst": 5`} {
		if !strings.Contains(a.body, part) {
			t.Errorf("no %s in %s", part, a.body)
		}
	}
	late := time.After(20 * time.Second)
	for metrics := ""; !strings.Contains(metrics, `stint_suppression_reject_fraction{limit="loud"}`); {
		select {
		case <-late:
			t.Fatalf("metrics: %s", metrics)
		default:
			metrics = s.do(http.MethodGet, s.admin+"/metrics", "").body
		}
	}
	write(t, s.path, strings.Replace(strings.Replace(sharingConfig, "50/s", "100/s", 1), "80/s", "160/s", 1))
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	ask("loud", time.Second)
	if admitted, asked, _ := ask("loud", 2*time.Second); admitted < 140 || admitted > 245 {
		t.Errorf("%d of %d admitted in 2 s, of 100 in a second", admitted, asked)
	}
}
