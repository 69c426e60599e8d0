package proxy_test

import (
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/proxy"
	"github.com/stint-io/stint/server"
)

// running is a proxy that a test has started.
type running struct {
	*proxy.Proxy
	url    string
	config string // its limits file
	stop   context.CancelFunc
	done   chan error
}

// start runs a proxy in front of the upstreams until the test ends.
func start(t testing.TB, limits string, o proxy.Options) *running {
	t.Helper()
	o.HTTPAddr, o.Decide.AdminAddr = "127.0.0.1:0", "127.0.0.1:0"
	if limits != "" {
		o.Decide.ConfigPaths = []string{write(t, limits)}
	}
	if o.Decide.Logger == nil {
		o.Decide.Logger = slog.New(slog.DiscardHandler)
	}
	p, err := proxy.New(o)
	if err != nil {
		t.Fatal(err)
	}
	config := ""
	if len(o.Decide.ConfigPaths) > 0 {
		config = o.Decide.ConfigPaths[0]
	}
	ctx, stop := context.WithCancel(context.Background())
	r := &running{Proxy: p, config: config, stop: stop, done: make(chan error, 1)}
	go func() { r.done <- p.Run(ctx) }()
	t.Cleanup(func() { r.end(t) })
	select {
	case <-p.Ready():
	case err := <-r.done:
		t.Fatal("the proxy ended: ", err)
	}
	r.url = "http://" + p.Addr().String()
	return r
}

// end stops the proxy, and waits.
func (r *running) end(t testing.TB) {
	t.Helper()
	r.stop()
	select {
	case err := <-r.done:
		if err != nil {
			t.Error(err)
		}
		r.done <- nil // for who asks again
	case <-time.After(30 * time.Second):
		t.Error("the proxy does not end")
	}
}

// metrics returns the page of metrics.
func (r *running) metrics(t testing.TB) string {
	t.Helper()
	_, body := get(t, "http://"+r.AdminAddr().String()+"/metrics")
	return body
}

func write(t testing.TB, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "stint.yaml")
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func get(t testing.TB, url string) (*http.Response, string) {
	t.Helper()
	res, err := http.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res, string(body)
}

const generous = "limits: [{name: per-ip, key: [ip], rate: 1000000/s}]\n"

func upstream(t testing.TB, h http.HandlerFunc) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

// A limit of the file refuses at the proxy, and the server behind sees only what was admitted.
func TestLimits(t *testing.T) {
	seen := 0
	u := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		seen++
		io.WriteString(w, "path "+r.URL.Path)
	})
	p := start(t, "limits: [{name: per-ip, key: [ip], rate: 2/hour}]\n", proxy.Options{Upstreams: []string{u}})
	for i, want := range []int{200, 200, 429} {
		res, body := get(t, p.url+"/a")
		if res.StatusCode != want || want == 200 && body != "path /a" {
			t.Errorf("request %d: %d %q, want %d", i, res.StatusCode, body, want)
		}
		if res.Header.Get("RateLimit") == "" || (res.Header.Get("Retry-After") != "") != (want == 429) {
			t.Errorf("request %d: header %v", i, res.Header)
		}
	}
	if seen != 2 {
		t.Errorf("the server saw %d requests, want 2", seen)
	}
	m := p.metrics(t)
	for _, want := range []string{
		`stint_proxy_requests_total{by="upstream",status="2xx"} 2`, `stint_proxy_requests_total{by="proxy",status="4xx"} 1`,
		`stint_decisions_total{limit="per-ip",outcome="refused",reason="rate_exceeded"} 1`,
	} {
		if !strings.Contains(m, want) {
			t.Errorf("no %s in the metrics", want)
		}
	}
}

func TestOptionsThatAreWrong(t *testing.T) {
	limits := write(t, generous)
	for want, o := range map[string]proxy.Options{
		"no upstream":               {},
		"want a URL of scheme":      {Upstreams: []string{"127.0.0.1:3000"}},
		"such as http://127.0.0.1":  {Upstreams: []string{"http://127.0.0.1:3000/base"}},
		"there are no limits":       {Upstreams: []string{"http://127.0.0.1:3000"}},
		"both decide":               {Upstreams: []string{"http://127.0.0.1:3000"}, Service: proxy.Service{URL: "http://a"}, Coordinators: []string{"b"}},
		"without limits of its own": {Upstreams: []string{"http://127.0.0.1:3000"}, Service: proxy.Service{URL: "http://a"}},
		"is negative":               {Upstreams: []string{"http://127.0.0.1:3000"}, MaxBody: -1, Decide: server.Options{ConfigPaths: []string{limits}}},
		"trusted proxy":             {Upstreams: []string{"http://127.0.0.1:3000"}, Decide: server.Options{ConfigPaths: []string{limits}, TrustedProxies: []string{"x"}}},
	} {
		if _, err := proxy.New(o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v, want %q", o, err, want)
		}
	}
}
