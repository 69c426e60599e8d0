//go:build linux

package gateways_test

import (
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
)

// TestSPOEAgreesWithTake: requests that come through HAProxy's filter get the same decisions, and the same figures, as
// the same attributes in POST /v1/take of another stint. The limits of an hour stand still meanwhile.
func TestSPOEAgreesWithTake(t *testing.T) {
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	writeFile(t, limits, `
limits:
  - {name: client, key: [ip], rate: 40/h, algorithm: fixed_window}
  - {name: key, key: ["header:x-api-key"], rate: 25/h, algorithm: sliding_window_log}
  - {name: orders, match: {method: POST, path: /orders/*}, key: [ip], rate: 9/h, algorithm: sliding_window_log, on_exceed: {reject: 403}}
  - {name: site, match: {path: /site}, key: [host], rate: 6/h, algorithm: sliding_window_log}
`)
	app := startApplication(t)
	asked, told := startStint(t, limits), startStint(t, limits)
	asked.timeout = "5s" // a decision is wanted, however busy the machine is
	j := &journey{t: t, app: app, url: "http://" + startSPOE(true)(t, asked, app)}
	random := rand.New(rand.NewPCG(1, 2))
	refused := 0
	for i := range 300 {
		client := fmt.Sprintf("127.0.0.%d", 2+random.IntN(6))
		method, path := []string{"GET", "POST"}[random.IntN(2)], []string{"/", "/orders/7", "/orders/8?x=1", "/site", "/%6frders/a/../9"}[random.IntN(5)]
		attributes := map[string]string{"ip": client, "method": method, "path": strings.NewReplacer("?x=1", "", "/%6frders/a/../9", "/orders/9").Replace(path), "host": "127.0.0.1"}
		header := http.Header{}
		if n := random.IntN(5); n > 0 {
			attributes["header:x-api-key"] = fmt.Sprint("k", n)
			header.Set("X-Api-Key", fmt.Sprint("k", n))
		}
		got := j.send(client, method, path, header, nil)
		body, err := json.Marshal(map[string]any{"attributes": attributes})
		if err != nil {
			t.Fatal(err)
		}
		want, err := http.Post("http://"+told.http+"/v1/take", "application/json", strings.NewReader(string(body)))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, want.Body)
		want.Body.Close()
		if got.status != want.StatusCode {
			t.Fatalf("request %d, %s: %d through HAProxy, %d by /v1/take", i, body, got.status, want.StatusCode)
		}
		if got.status != http.StatusOK {
			refused++
		}
		// The times differ by when the two were asked.
		for _, field := range []string{"RateLimit", "RateLimit-Policy"} {
			if a, b := withoutTimes(got.header.Get(field)), withoutTimes(want.Header.Get(field)); a != b {
				t.Fatalf("request %d, %s: %s is %s through HAProxy, %s by /v1/take", i, body, field, a, b)
			}
		}
	}
	if refused < 50 || refused > 280 {
		t.Errorf("%d of 300 were refused: too few or too many to tell decisions apart", refused)
	}
	t.Logf("300 requests, %d refused by both", refused)
}

func withoutTimes(field string) string {
	members := strings.Split(field, ", ")
	for i, m := range members {
		members[i], _, _ = strings.Cut(m, ";t=")
	}
	return strings.Join(members, ", ")
}
