package server_test

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"
)

// A reservation of a leased limit is charged what it has cost: what is under comes back, what is over is debt that
// refuses whoever asks the server, and what is wrong changes nothing.
func TestReserveLeased(t *testing.T) {
	for _, text := range []string{
		"limits: [{name: tokens, rate: 100/hour, sharing: leased}]\n",
		"limits: [{name: tokens, key: [tenant], rate: 100/hour, sharing: leased}]\n",
	} {
		s := leasing(t, text)
		call := func(path, body string, status int) (out reservationAnswer) {
			t.Helper()
			got := s.post(path, body)
			if got.status != status {
				t.Fatalf("%s %s: %d %s, want %d", path, body, got.status, got.body, status)
			}
			if status == http.StatusOK {
				if err := json.Unmarshal([]byte(got.body), &out); err != nil {
					t.Fatal(err)
				}
			}
			return out
		}
		const acme = `{"attributes":{"tenant":"acme"}`
		under := call("/v1/reserve", acme+`,"cost":90}`, http.StatusOK)
		call("/v1/reserve", acme+`,"cost":30}`, http.StatusTooManyRequests)
		for _, bad := range []string{`-1`, `NaN`, `1.5`, `9223372036854775808`, `"1"`, `null`} {
			call("/v1/commit", `{"id":"`+under.ID+`","actual":`+bad+`}`, http.StatusBadRequest)
			call("/v1/renew", `{"id":"`+under.ID+`","used":`+bad+`}`, http.StatusBadRequest)
		}
		call("/v1/commit", `{"id":"stranger","actual":1000}`, http.StatusNotFound)
		call("/v1/commit", `{"id":"`+under.ID+`","actual":10}`, http.StatusOK)
		over := call("/v1/reserve", acme+`,"cost":80}`, http.StatusOK)
		for range 2 { // the same again changes nothing
			call("/v1/commit", `{"id":"`+over.ID+`","actual":280}`, http.StatusOK)
		}
		call("/v1/commit", `{"id":"`+over.ID+`","actual":281}`, http.StatusConflict)
		// 10 and 280 of 100: 190 of debt, which is 114 minutes, and one more is 36 seconds.
		refused := s.post("/v1/take", acme+`,"cost":1}`)
		var problem struct {
			Violated []string `json:"violated-policies"`
		}
		if err := json.Unmarshal([]byte(refused.body), &problem); err != nil || refused.status != http.StatusTooManyRequests || len(problem.Violated) != 1 {
			t.Errorf("%d %s %v", refused.status, refused.body, err)
		}
		if wait, err := time.ParseDuration(refused.header.Get("Retry-After") + "s"); err != nil || wait < 113*time.Minute || wait > 116*time.Minute {
			t.Errorf("retry after %v, %v, want 1h54m36s", wait, err)
		}
		call("/v1/reserve", acme+`,"cost":1}`, http.StatusTooManyRequests)
	}
}
