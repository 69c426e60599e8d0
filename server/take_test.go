package server_test

import (
	"net/http"
	"strings"
	"testing"
)

// A caller says how long it waits for a queue: with 0 it gets the refusal at once, and nothing stays in the queue.
func TestTakePrefersNotToWait(t *testing.T) {
	s := start(t, "limits: [{name: slow, rate: 1/hour, on_exceed: {queue: {max_wait: 1m}}}]\n")
	for i, want := range []int{200, 429, 429} {
		r, err := http.NewRequest(http.MethodPost, s.http+"/v1/take", strings.NewReader(`{"attributes":{}}`))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Prefer", `respond-async, Wait=0`)
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != want {
			t.Errorf("take %d: %d, want %d", i, res.StatusCode, want)
		}
	}
}
