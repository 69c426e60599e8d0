//go:build linux

package gateways_test

import (
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
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

// startBareEnvoy starts Envoy with the published configuration without the filter that asks stint.
func startBareEnvoy(t *testing.T, s *service, app *application) string {
	listen := gatewaytest.FreeAddrs(t, 1)[0]
	dir := gatewaytest.Render(t, "envoy", map[string]string{
		"port_value: 9000": "port_value: " + port(t, app.Addr), "port_value: 8000": "port_value: " + port(t, listen), "port_value: 8081": "port_value: " + port(t, s.GRPC),
	})
	name := filepath.Join(dir, "envoy.yaml")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	filter := regexp.MustCompile(`(?s)( +- name: envoy\.filters\.http\.ratelimit\n.*?)( +- name: envoy\.filters\.http\.router\n)`)
	if !filter.Match(text) {
		t.Fatal("the published file has another form")
	}
	writeFile(t, name, string(filter.ReplaceAll(text, []byte("$2"))))
	gatewaytest.RunEnvoy(t, envoyBinary, name, listen)
	return listen
}

func port(t *testing.T, addr string) string {
	t.Helper()
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// TestWhatAskingCosts times requests of one client through HAProxy without stint, with stint by Lua and with stint by
// SPOE, and through Envoy without it and with its filters ratelimit and ext_authz. They take turns, so that whatever else the machine does meets all alike. REQUESTS is how many each gets.
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
		{name: "HAProxy without", url: "http://" + startBare(t, s, app)},
		{name: "HAProxy by Lua", url: "http://" + gatewaytest.StartHAProxy(t, "haproxy", s, app)},
		{name: "HAProxy by SPOE", url: "http://" + startSPOE(false)(t, s, app)},
		{name: "Envoy without", url: "http://" + startBareEnvoy(t, s, app)},
		{name: "Envoy by ratelimit", url: "http://" + startEnvoy("envoy.yaml")(t, s, app)},
		{name: "Envoy by ext_authz", url: "http://" + startEnvoy("ext-authz.yaml")(t, s, app)},
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
			if asked := res.Header.Get("RateLimit")+res.Header.Get("X-RateLimit-Remaining") != ""; res.StatusCode != http.StatusOK || asked == strings.HasSuffix(ways[w].name, "without") {
				t.Fatalf("%s: %d, %v", ways[w].name, res.StatusCode, res.Header)
			}
			if i >= 20 { // connections are open by then
				ways[w].took = append(ways[w].took, took)
			}
		}
	}
	for _, w := range ways {
		slices.Sort(w.took)
		t.Logf("%-18s %d requests: p50 %.3f ms, p99 %.3f ms", w.name, n, 1e3*w.took[n/2].Seconds(), 1e3*w.took[n*99/100].Seconds())
	}
}
