//go:build linux

package gateways_test

import (
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/gatewaytest"
)

// startBare starts HAProxy with the published configuration without all that asks stint.
func startBare(t *testing.T, s *service, app *application) string {
	listen := gatewaytest.FreeAddrs(t, 1)[0]
	dir := gatewaytest.Render(t, "haproxy", map[string]string{"127.0.0.1:9000": app.Addr, "127.0.0.1:8000": listen})
	name := filepath.Join(dir, "haproxy-spoe.cfg")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, name, regexp.MustCompile(`(?m)^    .*stint.*$|(?s)backend stint-spoe.*`).ReplaceAllString(string(text), ""))
	gatewaytest.Start(t, syscall.SIGTERM, "haproxy", "-db", "-C", dir, "-f", "haproxy-spoe.cfg").Await(t, listen)
	return listen
}

// TestWhatAskingCosts times requests of one client through HAProxy without stint, with stint by Lua and with stint by
// SPOE. They take turns, so that whatever else the machine does meets all alike. REQUESTS is how many each gets.
func TestWhatAskingCosts(t *testing.T) {
	n := 100
	if text := os.Getenv("REQUESTS"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 {
			t.Fatalf("REQUESTS is %q, want a number", text)
		}
	}
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	writeFile(t, limits, "limits: [{name: many, key: [ip], rate: 1000000/s}]\n")
	app, s := gatewaytest.StartApplication(t), startStint(t, limits)
	s.Timeout = "5s"
	ways := []struct {
		name, url string
		took      []time.Duration
	}{
		{name: "without", url: "http://" + startBare(t, s, app)},
		{name: "by Lua", url: "http://" + gatewaytest.StartHAProxy(t, "haproxy", s, app)},
		{name: "by SPOE", url: "http://" + startSPOE(false)(t, s, app)},
	}
	client := &http.Client{Timeout: gatewaytest.Patience}
	defer client.CloseIdleConnections()
	for i := range n + 20 {
		for w := range ways {
			begin := time.Now()
			res, err := client.Get(ways[w].url + "/timed")
			if err != nil {
				t.Fatal(err)
			}
			_, _ = io.Copy(io.Discard, res.Body)
			res.Body.Close()
			took := time.Since(begin)
			if asked := res.Header.Get("RateLimit") != ""; res.StatusCode != http.StatusOK || asked != (w > 0) {
				t.Fatalf("%s: %d, %v", ways[w].name, res.StatusCode, res.Header)
			}
			if i >= 20 { // connections are open by then
				ways[w].took = append(ways[w].took, took)
			}
		}
	}
	for _, w := range ways {
		slices.Sort(w.took)
		t.Logf("%-8s %d requests: p50 %v, p99 %v", w.name, n, w.took[n/2], w.took[n*99/100])
	}
}
