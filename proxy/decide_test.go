package proxy_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/seeding"

	"github.com/stint-io/stint/proxy"
	"github.com/stint-io/stint/server"
	"github.com/stint-io/stint/throttle"
)

// service runs a stint service until the test ends, or until stop.
func service(t testing.TB, limits string) (a server.Addrs, stop func()) {
	t.Helper()
	s, err := server.New(server.Options{
		HTTPAddr: "127.0.0.1:0", GRPCAddr: "127.0.0.1:0", AdminAddr: "127.0.0.1:0",
		ConfigPaths: []string{write(t, limits)}, Logger: slog.New(slog.DiscardHandler), StateDir: t.TempDir(), FirstStart: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			cancel()
			if err := <-done; err != nil {
				t.Error(err)
			}
		})
	}
	t.Cleanup(stop)
	<-s.Ready()
	return s.Addrs(), stop
}

// Two proxies that ask one service hold to one limit, by the attributes that they were told to send, and
// permits are given back.
func TestService(t *testing.T) {
	a, _ := service(t, "limits:\n  - {name: per-key, key: [\"header:x-api-key\"], rate: 4/hour}\n  - {name: places, algorithm: concurrency, max_in_flight: 1}\n")
	u := upstream(t, func(http.ResponseWriter, *http.Request) {})
	o := proxy.Options{Upstreams: []string{u}, Service: proxy.Service{
		URL: "http://" + a.HTTP.String(), Timeout: 5 * time.Second, OnFailure: proxy.FailureReject, Attributes: []string{"header:x-api-key"},
	}}
	proxies := []*running{start(t, "", o), start(t, "", o)}
	for i := range 12 {
		r, err := http.NewRequest("GET", proxies[i%2].url, nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("X-Api-Key", fmt.Sprint(i/6))
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(res.Body)
		res.Body.Close()
		want := 200
		if i%6 >= 4 {
			want = 429
		}
		if res.StatusCode != want || want == 429 && (!strings.Contains(string(body), `"violated-policies":["per-key"],"reason":"rate_exceeded"`) || res.Header.Get("Retry-After") == "") {
			t.Errorf("request %d: %d, want %d: %v %s", i, res.StatusCode, want, res.Header, body)
		}
		if want == 200 && !strings.Contains(res.Header.Get("RateLimit"), `"per-key";r=`) {
			t.Errorf("request %d: RateLimit is %q", i, res.Header.Get("RateLimit"))
		}
	}
}

// A service that does not answer, or hangs, costs a request the time-out at most and then nothing, and what
// was chosen decides meanwhile.
func TestServiceFails(t *testing.T) {
	hung, err := net.Listen("tcp", "127.0.0.1:0") // nobody accepts
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { hung.Close() })
	u := upstream(t, func(http.ResponseWriter, *http.Request) {})
	for _, url := range []string{"http://127.0.0.1:1", "http://" + hung.Addr().String(), u} {
		for choice, want := range map[proxy.OnFailure]string{
			proxy.FailureAllow: "[200 200 200]", proxy.FailureReject: "[503 503 503]", proxy.FailureLocal: "[200 200 429]",
		} {
			limits := ""
			if choice == proxy.FailureLocal {
				limits = "limits: [{name: own, rate: 2/hour}]\n"
			}
			p := start(t, limits, proxy.Options{Upstreams: []string{u}, Service: proxy.Service{URL: url, Timeout: 20 * time.Millisecond, OnFailure: choice}})
			var got []int
			for range 3 {
				res, _ := get(t, p.url)
				got = append(got, res.StatusCode)
			}
			if fmt.Sprint(got) != want {
				t.Errorf("%s, %v: %v, want %s", url, choice, got, want)
			}
			if m := p.metrics(t); !strings.Contains(m, `stint_proxy_service_calls_total{outcome="answered"} 0`) || !strings.Contains(m, "stint_proxy_service_up 0") {
				t.Errorf("%s, %v: the metrics do not say that the service is out", url, choice)
			}
			admitted := strings.Count(want, "200")
			if line := fmt.Sprintf("\nstint_unlimited_total{limit=\"\",reason=\"no_service\"} %d\n", admitted); strings.Contains(p.metrics(t), line) != (admitted > 0) {
				t.Errorf("%s, %v: %d are admitted without the service, and the metrics say otherwise", url, choice, admitted)
			}
			p.end(t)
		}
	}
}

// Proxies on leases hold to the limit of the coordinator together, decide without it once they have theirs,
// and answer as on_store_failure says where there never was one.
func TestLeases(t *testing.T) {
	const limits = "limits: [{name: all, key: [path], rate: 1/hour, burst: 40, sharing: leased, on_store_failure: reject}]\n"
	a, _ := service(t, limits)
	u := upstream(t, func(http.ResponseWriter, *http.Request) {})
	o := proxy.Options{Upstreams: []string{u}, Coordinators: []string{a.GRPC.String()}}
	one, two := start(t, limits, o), start(t, limits, o)
	admitted := 0
	for deadline := time.Now().Add(20 * time.Second); admitted < 40 && time.Now().Before(deadline); {
		for _, p := range []*running{one, two} {
			if res, _ := get(t, p.url+"/a"); res.StatusCode == 200 {
				admitted++
			}
		}
	}
	for _, p := range []*running{one, two} {
		for range 20 {
			if res, _ := get(t, p.url+"/a"); res.StatusCode == 200 {
				admitted++
			}
		}
	}
	if admitted != 40 {
		t.Errorf("%d requests were admitted, want 40", admitted)
	}
	if res, _ := get(t, start(t, limits, proxy.Options{Upstreams: []string{u}}).url); res.StatusCode != 503 {
		t.Errorf("without a coordinator: %d, want 503", res.StatusCode)
	}
}

// The throttle of the file holds requests back, serves the more important first, lets nobody be more important
// than its class, and tells the server behind.
func TestThrottle(t *testing.T) {
	hold, seen := make(chan struct{}), make(chan string, 100)
	var most, now atomic.Int64
	u := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		if n := now.Add(1); n > most.Load() {
			most.Store(n)
		}
		defer now.Add(-1)
		seen <- r.URL.Path + " " + r.Header.Get("X-Criticality")
		w.Header().Set("Endpoint-Load-Metrics", "TEXT request_cost.cpu=3")
		<-hold
	})
	p := start(t, "throttle:\n  concurrency: 1\n  queue: {max: 2, max_wait: 20s}\n  classes:\n    - {match: {path: /checkout*}, criticality: critical_plus}\n    - {match: {path: /batch}, criticality: sheddable}\n"+generous, proxy.Options{Upstreams: []string{u}})
	type answer struct {
		path   string
		status int
		text   string
		header http.Header
	}
	answers := make(chan answer, 10)
	ask := func(path string, claims ...string) {
		go func() {
			r, _ := http.NewRequest("GET", p.url+path, nil)
			for _, c := range claims {
				r.Header.Add("X-Criticality", c)
			}
			res, err := http.DefaultClient.Do(r)
			if err != nil {
				answers <- answer{path: path, text: err.Error()}
				return
			}
			defer res.Body.Close()
			body, _ := io.ReadAll(res.Body)
			answers <- answer{path, res.StatusCode, string(body), res.Header}
		}()
	}
	waits := func(n int) {
		t.Helper()
		for deadline := time.Now().Add(10 * time.Second); !strings.Contains(p.metrics(t), fmt.Sprintf("stint_proxy_throttle_waiting %d\n", n)); {
			if time.Now().After(deadline) {
				t.Fatalf("there are not %d requests that wait", n)
			}
		}
	}
	ask("/first")
	if got := <-seen; got != fmt.Sprintf("/first sheddable_plus;level=%d", throttle.LevelOf("127.0.0.1")) {
		t.Errorf("the server saw %q", got)
	}
	ask("/batch", "critical_plus") // a stranger's word does not count
	waits(1)
	ask("/other")
	waits(2)
	ask("/checkout/1") // evicts /batch
	if a := <-answers; a.path != "/batch" || a.status != 503 || !strings.Contains(a.text, `"reason":"evicted"`) || a.header.Get("Retry-After") == "" {
		t.Errorf("evicted: %+v", a)
	}
	ask("/batch")
	if a := <-answers; a.path != "/batch" || a.status != 503 || !strings.Contains(a.text, `"reason":"queue_full"`) {
		t.Errorf("refused: %+v", a)
	}
	close(hold)
	for range 3 {
		if a := <-answers; a.status != 200 || a.header.Get("Endpoint-Load-Metrics") != "" {
			t.Errorf("%+v", a)
		}
	}
	if one, two := <-seen, <-seen; !strings.HasPrefix(one, "/checkout/1 critical_plus") || !strings.HasPrefix(two, "/other ") || most.Load() != 1 {
		t.Errorf("the server saw %q, then %q, and %d at a time", one, two, most.Load())
	}
}

// A WebSocket leaves the throttle when it is open: it may be there for days.
func TestThrottleAndWebSockets(t *testing.T) {
	p := start(t, "throttle: {concurrency: 1, queue: {max: 1, max_wait: 20s}}\n"+generous, proxy.Options{Upstreams: []string{echo(t)}, Grace: time.Second})
	for range 3 {
		c, in := upgrade(t, p)
		say(t, c, in, "hello")
	}
}

// A reload changes the throttle.
func TestThrottleReload(t *testing.T) {
	p := start(t, "throttle: {concurrency: 3}\n"+generous, proxy.Options{Upstreams: []string{record(t, okAnswer).url}})
	for _, want := range []int{3, 5} {
		if want != 3 {
			if err := os.WriteFile(p.config, []byte(fmt.Sprintf("throttle: {concurrency: %d}\n", want)+generous), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := p.Reload(); err != nil {
				t.Fatal(err)
			}
		}
		for deadline := time.Now().Add(10 * time.Second); !strings.Contains(p.metrics(t), fmt.Sprintf("stint_proxy_throttle_limit %d\n", want)); {
			if time.Now().After(deadline) {
				t.Fatalf("the limit is not %d", want)
			}
		}
	}
}

// Whatever becomes of requests, each is answered once, with its reason, and counted once: admitted, refused by
// a limit, full queue, evicted, expired, cut by the server behind, or left by its client. Drawn at random.
func TestEachAnsweredOnce(t *testing.T) {
	n := 400
	if s := os.Getenv("STINT_REQUESTS"); s != "" {
		n, _ = strconv.Atoi(s)
	}
	u := upstream(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, r.Header.Get("X-Number"))
		http.NewResponseController(w).Flush()
		if r.URL.Path == "/cut" {
			panic(http.ErrAbortHandler)
		}
		wait, _ := time.ParseDuration(r.Header.Get("X-Wait"))
		select {
		case <-time.After(wait):
		case <-r.Context().Done():
		}
	})
	p := start(t, `
throttle:
  concurrency: 6
  queue: {max: 6, max_wait: 5ms}
  classes:
    - {match: {path: /critical}, criticality: critical}
limits:
  - {name: few, match: {path: /few}, rate: 20/hour}
`, proxy.Options{Upstreams: []string{u}})
	paths := []string{"/critical", "/critical", "/plain", "/plain", "/few", "/cut"}
	var mu sync.Mutex
	outcomes := map[string]int{}
	var all sync.WaitGroup
	room := make(chan struct{}, 16)
	draw := seeding.Rand(t)
	for i := range n {
		path, wait, leaves := paths[draw.IntN(len(paths))], time.Duration(draw.IntN(5))*time.Millisecond, draw.IntN(20) == 0
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			ctx := context.Background()
			if leaves {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, time.Millisecond)
				defer cancel()
			}
			outcome := ask(t, ctx, p.url+path, fmt.Sprint(i), wait)
			mu.Lock()
			defer mu.Unlock()
			outcomes[outcome]++
		})
	}
	all.Wait()
	p.end(t)
	total := 0
	for _, count := range outcomes {
		total += count
	}
	t.Logf("%v", outcomes)
	if total != n || outcomes["lost"] > 0 {
		t.Errorf("%d of %d requests have an outcome: %v", total, n, outcomes)
	}
	// A client that leaves may do so before or after its request has come to the proxy.
	seen, inFlight := p.Totals()
	if seen > n || seen < n-outcomes["left"] {
		t.Errorf("the proxy counted %d requests, the clients sent %d and left %d", seen, n, outcomes["left"])
	}
	if inFlight != 0 {
		t.Errorf("%d requests are in progress at the end", inFlight)
	}
}

// ask sends one request and says what became of it.
func ask(t testing.TB, ctx context.Context, url, number string, wait time.Duration) string {
	r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
	if err != nil {
		t.Error(err)
		return "lost"
	}
	r.Header.Set("X-Number", number)
	r.Header.Set("X-Wait", wait.String())
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		if ctx.Err() != nil {
			return "left"
		}
		t.Error(err)
		return "lost"
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	reason := regexp.MustCompile(`"reason":"(\w+)"`).FindSubmatch(body)
	switch {
	case ctx.Err() != nil:
		return "left"
	case err != nil && strings.HasSuffix(url, "/cut"):
		return "cut"
	case err == nil && res.StatusCode == 200 && string(body) == number && !strings.HasSuffix(url, "/cut"):
		return "served"
	case err == nil && (res.StatusCode == 429 || res.StatusCode == 503) && reason != nil:
		return string(reason[1])
	}
	t.Errorf("%s: %d %q, %v", url, res.StatusCode, body, err)
	return "lost"
}
