package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
)

// Strangers who open reservations until there is no room for more take the room of nothing else: plans, grants and usage.
func TestReservationsFull(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	yaml := "limits:\n"
	for i := range 150 { // so that each is large
		yaml += fmt.Sprintf("  - {name: day%d, key: [tenant], rate: 100/day, algorithm: fixed_window}\n", i)
	}
	s := start(t, yaml)
	long := strings.Repeat("x", 120)
	for _, attribute := range []string{`"tenant":"` + long, `"other":"`} { // large ones, and what is left in small ones
		full := false
		for i := 0; i < 3000 && !full; i++ {
			got := s.post("/v1/reserve", fmt.Sprintf(`{"attributes":{%s%d"},"cost":1,"ttl":"1h"}`, attribute, i))
			if full = got.status == http.StatusServiceUnavailable; !full && got.status != http.StatusOK {
				t.Fatal(got.status, got.body)
			}
		}
		if !full {
			t.Fatal("there is room for all")
		}
	}
	if got := s.do(http.MethodPost, s.admin+"/v1/admin/keys/grant?limit=day0&key=tenant=acme&amount=5", "", "Idempotency-Key", "a"); got.status != http.StatusOK {
		t.Error(got.status, got.body)
	}
	if got := s.do(http.MethodGet, s.admin+"/v1/admin/audit", ""); !strings.Contains(got.body, "key.grant") {
		t.Error(got.body)
	}
}
