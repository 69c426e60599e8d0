package proxy_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/proxy"
)

// A file with a throttle alone starts the proxy, and the throttle holds. One with neither limits nor a throttle does not,
// and the error names no flag that the proxy lacks.
func TestThrottleAlone(t *testing.T) {
	u := upstream(t, func(http.ResponseWriter, *http.Request) {})
	p := start(t, "throttle: {concurrency: 3}\n", proxy.Options{Upstreams: []string{u}})
	if res, _ := get(t, p.url); res.StatusCode != http.StatusOK {
		t.Error(res.Status)
	}
	if m := p.metrics(t); !strings.Contains(m, "stint_proxy_throttle_limit 3\n") {
		t.Error("the throttle is not in force")
	}
	o := proxy.Options{Upstreams: []string{u}}
	o.Decide.ConfigPaths = []string{write(t, "defaults: {key: [ip]}\n")}
	if _, err := proxy.New(o); err == nil || !strings.Contains(err.Error(), "neither limits nor a throttle") || strings.Contains(err.Error(), "--allow-empty") {
		t.Errorf("a file without both: %v", err)
	}
}

// Clients that hang up at random moments do not get more work done than the limit says: the server behind has at most as
// many requests in progress as there are places, and none is lost.
func TestClientsThatHangUp(t *testing.T) {
	const places = 2
	for name, limits := range map[string]string{
		"limit":    fmt.Sprintf("limits: [{name: places, algorithm: concurrency, max_in_flight: %d}]\n", places),
		"throttle": fmt.Sprintf("throttle: {concurrency: %d, queue: {max: 100, max_wait: 50ms}}\n", places),
	} {
		for _, mode := range []string{"--config", "--service"} {
			if name == "throttle" && mode == "--service" {
				continue
			}
			t.Run(name+" "+mode, func(t *testing.T) {
				seed := rand.Uint64()
				t.Logf("seed %d", seed)
				r := rand.New(rand.NewPCG(seed, 1))
				var now, most, served atomic.Int64
				release := make(chan struct{})
				u := upstream(t, func(w http.ResponseWriter, r *http.Request) {
					if n := now.Add(1); n > most.Load() {
						most.Store(n)
					}
					defer now.Add(-1)
					served.Add(1)
					_, _ = io.Copy(io.Discard, r.Body)
					<-release // and does not look whether its client is there
				})
				o := proxy.Options{Upstreams: []string{u}, Grace: time.Second}
				if mode == "--service" {
					a, _ := service(t, limits)
					o.Service = proxy.Service{URL: "http://" + a.HTTP.String(), Timeout: 5 * time.Second, OnFailure: proxy.FailureReject}
				}
				config := limits
				if mode == "--service" {
					config = ""
				}
				p := start(t, config, o)
				var all sync.WaitGroup
				for range 20 {
					patience := time.Duration(1+r.IntN(30)) * time.Millisecond
					method, body := http.MethodGet, ""
					if r.IntN(2) == 0 {
						method, body = http.MethodPost, "body"
					}
					all.Go(func() {
						ctx, cancel := context.WithTimeout(context.Background(), patience)
						defer cancel()
						q, err := http.NewRequestWithContext(ctx, method, p.url, strings.NewReader(body))
						if err != nil {
							t.Error(err)
							return
						}
						if res, err := http.DefaultClient.Do(q); err == nil {
							res.Body.Close()
						}
					})
					if r.IntN(3) == 0 {
						all.Wait()
					}
				}
				all.Wait()
				eventually(t, "requests at the server", func() bool { return now.Load() > 0 })
				if now.Load() > places || most.Load() > places {
					t.Errorf("%d, at most %d requests run at the server, which has %d places", now.Load(), most.Load(), places)
				}
				close(release)
				eventually(t, "the places", func() bool {
					_, inFlight := p.Totals()
					return now.Load() == 0 && inFlight == 0
				})
				eventually(t, "an answer", func() bool {
					res, _ := get(t, p.url)
					return res.StatusCode == http.StatusOK
				})
			})
		}
	}
}

// Without a place to keep, the server behind learns at once that a client has gone.
func TestHangUpIsPassedOn(t *testing.T) {
	came, gone := make(chan struct{}, 1), make(chan struct{})
	u := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		came <- struct{}{}
		<-r.Context().Done()
		close(gone)
	})
	p := start(t, generous, proxy.Options{Upstreams: []string{u}})
	ctx, cancel := context.WithCancel(context.Background())
	q, err := http.NewRequestWithContext(ctx, http.MethodGet, p.url, nil)
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		<-came
		cancel()
	}()
	if res, err := http.DefaultClient.Do(q); err == nil {
		res.Body.Close()
	}
	<-gone
}

// An event stream counts in the throttle until it has begun, whatever its class; a class can say otherwise, and can say
// so of other answers.
func TestOpenStreamsLeaveTheThrottle(t *testing.T) {
	end := make(chan struct{})
	u := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		switch {
		case strings.HasPrefix(r.URL.Path, "/sse"):
			w.Header().Set("Content-Type", "Text/Event-Stream; charset=utf-8")
		case r.URL.Path == "/fast":
			return
		}
		fmt.Fprint(w, "data: 1\n\n")
		_ = http.NewResponseController(w).Flush()
		select {
		case <-end:
		case <-r.Context().Done():
			t.Error("a stream was cut: ", r.URL.Path)
		}
	})
	p := start(t, `
throttle:
  concurrency: 2
  queue: {max: 10, max_wait: 20ms}
  classes:
    - {match: {path: /sse/work}, criticality: sheddable, counts_until: end}
    - {match: {path: /sse*}, criticality: sheddable}
    - {match: {path: /poll}, criticality: sheddable, counts_until: answer}
    - {match: {path: /fast*}, criticality: critical_plus}
`, proxy.Options{Upstreams: []string{u}})
	var streams []*bufio.Reader
	open := func(path string) int {
		res, err := http.Get(p.url + path)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { res.Body.Close() })
		if res.StatusCode == http.StatusOK {
			in := bufio.NewReader(res.Body)
			if line, err := in.ReadString('\n'); err != nil || line != "data: 1\n" {
				t.Errorf("%s: %q, %v", path, line, err)
			}
			streams = append(streams, in)
		}
		return res.StatusCode
	}
	for range 3 {
		for _, path := range []string{"/sse", "/poll"} {
			if got := open(path); got != http.StatusOK {
				t.Errorf("%s beside %d open streams: %d", path, len(streams), got)
			}
		}
	}
	fast := func() int {
		res, _ := get(t, p.url+"/fast")
		return res.StatusCode
	}
	if got := fast(); got != http.StatusOK {
		t.Errorf("a request beside open streams: %d", got)
	}
	for _, path := range []string{"/sse/work", "/long"} {
		if got := open(path); got != http.StatusOK {
			t.Errorf("%s: %d", path, got)
		}
	}
	if got := fast(); got != http.StatusServiceUnavailable {
		t.Errorf("a request beside two streams that keep their places: %d", got)
	}
	close(end)
	for _, in := range streams {
		if rest, err := io.ReadAll(in); err != nil || string(rest) != "\n" {
			t.Errorf("a stream ends with %q, %v", rest, err)
		}
	}
	eventually(t, "places", func() bool { return fast() == http.StatusOK })
}

// A WebSocket that is open for longer than the time-out of its limit keeps its permit, whoever decides.
func TestOpenSocketsKeepTheirPermits(t *testing.T) {
	const limits = "limits: [{name: sockets, key: [ip], algorithm: concurrency, max_in_flight: 2, timeout: 300ms}]\n"
	a, _ := service(t, limits)
	u := echo(t)
	for name, p := range map[string]*running{
		"--config": start(t, limits, proxy.Options{Upstreams: []string{u}, Grace: time.Second}),
		"--service": start(t, "", proxy.Options{Upstreams: []string{u}, Grace: time.Second, Service: proxy.Service{
			URL: "http://" + a.HTTP.String(), OnFailure: proxy.FailureReject, Timeout: 5 * time.Second,
		}}),
	} {
		one, in := upgrade(t, p)
		two, _ := upgrade(t, p)
		for begun := time.Now(); time.Since(begun) < time.Second; {
			if res, _ := get(t, p.url); res.StatusCode != http.StatusTooManyRequests {
				t.Fatalf("%s: a third request beside two sockets, %v after they were opened: %d", name, time.Since(begun), res.StatusCode)
			}
		}
		say(t, one, in, "hello")
		two.Close()
		eventually(t, "a place", func() bool {
			res, _ := get(t, p.url)
			return res.StatusCode != http.StatusTooManyRequests
		})
	}
}
