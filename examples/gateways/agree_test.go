//go:build linux

package gateways_test

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"net/url"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/dunglas/httpsfv"

	"github.com/stint-io/stint/internal/gatewaytest"
)

// TestGatewaysAgreeWithTake: requests that come through each gateway get the same decisions, and the same figures, as
// the same attributes in POST /v1/take of another stint, whatever else their clients send. Of several fields of one name
// the first counts. The limits of an hour stand still meanwhile.
func TestGatewaysAgreeWithTake(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	writeFile(t, limits, `
limits:
  - {name: client, key: [ip], rate: 20/h, soft: 50%, algorithm: fixed_window}
  - {name: key, key: ["header:x-api-key"], rate: 5/h, algorithm: sliding_window_log}
  - {name: orders, match: {method: POST, path: /orders/*}, key: [ip], rate: 3/h, algorithm: sliding_window_log, on_exceed: {reject: 403}}
  - {name: site, match: {path: /site}, key: [host], rate: 6/h, algorithm: sliding_window_log, on_exceed: {redirect: /busy.html}}
  - {name: less, match: {path: /less}, key: [ip], rate: 2/h, algorithm: sliding_window_log, on_exceed: tag}
`)
	for _, g := range gateways() {
		t.Run(g.name, func(t *testing.T) { g.agreesWithTake(t, limits, rand.New(rand.NewPCG(seed, 0))) })
	}
}

func (g *gateway) agreesWithTake(t *testing.T, limits string, random *rand.Rand) {
	app := gatewaytest.StartApplication(t)
	asked, told := startStint(t, limits), startStint(t, limits)
	asked.Timeout = "5s" // a decision is wanted, however busy the machine is
	j := g.journey(t, asked, app)
	direct := &http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	const requests = 120
	refused, warned := 0, 0
	for i := range requests {
		client := fmt.Sprintf("127.0.0.%d", 2+random.IntN(6))
		method := []string{"GET", "POST"}[random.IntN(2)]
		path := []string{"/", "/orders/7", "/orders/8?x=1", "/site", "/less", "/%6frders/a/../9"}[random.IntN(6)]
		attributes := map[string]string{"ip": client, "method": method, "path": strings.NewReplacer("?x=1", "", "/%6frders/a/../9", "/orders/9").Replace(path), "host": "127.0.0.1"}
		header := http.Header{}
		for n := range random.IntN(4) {
			key := fmt.Sprint("k", random.IntN(9))
			if random.IntN(4) == 0 {
				key += ", " + fmt.Sprint("k", random.IntN(9))
			}
			if n == 0 {
				attributes["header:x-api-key"] = key
			}
			header.Add("X-Api-Key", key)
		}
		for _, forged := range [][2]string{
			{"X-Forwarded-For", "203.0.113.9"},
			{"X-Forwarded-Method", "OPTIONS"},
			{"X-Forwarded-Uri", "/free"},
			{"X-Original-Uri", "/free"},
			{"X-Forwarded-Host", "elsewhere.example"},
			{"Forwarded", "for=203.0.113.9;host=elsewhere.example"},
			{"X-Real-Ip", "203.0.113.9"},
			{"X-Ratelimit-Degraded", "forged"},
			{"X-Ratelimit-Warning", `"forged"`},
			{"Ratelimit", `"forged";r=9`},
			{"X-Stint-Decision", "allow"},
		} {
			if random.IntN(8) == 0 {
				header.Set(forged[0], forged[1])
			}
		}
		body, err := json.Marshal(map[string]any{"attributes": attributes})
		if err != nil {
			t.Fatal(err)
		}
		from := fmt.Sprintf("request %d, %s with %v", i, body, header)
		before := app.Count(attributes["path"])
		got := j.send(client, method, path, header, nil)
		want, err := direct.Post("http://"+told.HTTP+"/v1/take", "application/json", strings.NewReader(string(body)))
		if err != nil {
			t.Fatal(err)
		}
		var decision struct {
			Tags []struct{ Name, Value string }
		}
		err = json.NewDecoder(want.Body).Decode(&decision)
		want.Body.Close()
		if err != nil {
			t.Fatal(err)
		}
		tag := ""
		if len(decision.Tags) > 0 {
			tag = decision.Tags[0].Value
		}
		if status, err := strconv.Atoi(want.Header.Get("X-Stint-Status")); err == nil {
			want.StatusCode = status // a client of /v1/take does not follow a redirect
		}
		if want.StatusCode != http.StatusOK {
			want.StatusCode = g.status(want.StatusCode)
		}
		if got.status != want.StatusCode {
			t.Fatalf("%s: %v through the gateway, %d by /v1/take", from, got, want.StatusCode)
		}
		if want.StatusCode != http.StatusOK {
			refused++
			if n := app.Count(attributes["path"]) - before; n != 0 {
				t.Fatalf("%s: the refused request reached the application", from)
			}
		} else if got.header.Get("X-Seen-Degraded") != tag {
			t.Fatalf("%s: the application was told %q, want %q", from, got.header.Get("X-Seen-Degraded"), tag)
		}
		if want.StatusCode == http.StatusFound {
			to, err := url.Parse(j.url + path)
			if err == nil {
				to, err = to.Parse(got.header.Get("Location"))
			}
			if err != nil || to.String() != j.url+"/busy.html" {
				t.Fatalf("%s: sent to %v, %v, want the client's own site", from, got.header.Get("Location"), err)
			}
		}
		if j.silent && want.StatusCode == http.StatusOK {
			continue
		}
		if want.Header.Get("X-RateLimit-Warning") != "" {
			warned++
		}
		if g.own { // of the limit with the least left
			if left, most := got.remaining(t), leastLeft(t, want.Header); left != most {
				t.Fatalf("%s: %d are left through the gateway, %d by /v1/take", from, left, most)
			}
			want.Header.Del("RateLimit")
			want.Header.Del("RateLimit-Policy")
		}
		// The times differ by when the two were asked.
		for _, field := range []string{"RateLimit", "RateLimit-Policy", "X-RateLimit-Warning"} {
			if a, b := withoutTimes(got.header.Get(field)), withoutTimes(want.Header.Get(field)); a != b {
				t.Fatalf("%s: %s is %s through the gateway, %s by /v1/take", from, field, a, b)
			}
		}
	}
	if refused < requests/8 || refused > requests*7/8 || warned == 0 && !j.silent {
		t.Errorf("%d of %d were refused, %d warned: too few or too many to tell decisions apart", refused, requests, warned)
	}
	t.Logf("%d requests, %d refused and %d warned by both", requests, refused, warned)
}

// leastLeft returns what is left of the limit of which the least is.
func leastLeft(t *testing.T, h http.Header) int64 {
	t.Helper()
	list, err := httpsfv.UnmarshalList(h.Values("RateLimit"))
	if err != nil {
		t.Fatal(err)
	}
	left := int64(math.MaxInt64)
	for _, member := range list {
		if item, ok := member.(httpsfv.Item); ok {
			if n, ok := item.Params.Get("r"); ok {
				left = min(left, n.(int64))
			}
		}
	}
	return left
}

func withoutTimes(field string) string {
	members := strings.Split(field, ", ")
	for i, m := range members {
		members[i], _, _ = strings.Cut(m, ";t=")
	}
	return strings.Join(members, ", ")
}
