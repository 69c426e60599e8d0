package httpthrottle

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/throttle"
)

const ms = time.Millisecond

func newThrottle(t *testing.T, o throttle.Options) *throttle.Throttle {
	t.Helper()
	th, err := throttle.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return th
}

// serve starts a server with a throttled handler.
func serve(t *testing.T, th *throttle.Throttle, h http.Handler, opts ...Option) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(New(th, opts...)(h))
	t.Cleanup(server.Close)
	return server
}

// answerOf is the status and body of a request.
func answerOf(t *testing.T, method, url string, header ...string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Add(header[i], header[i+1])
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	body, _ := io.ReadAll(resp.Body)
	return resp, string(body)
}

// TestRoutes: requests that cost alike have one route, and clients cannot make up routes.
func TestRoutes(t *testing.T) {
	mux := http.NewServeMux()
	for _, pattern := range []string{"GET /users/{id}", "/files/{path...}", "example.com/{$}"} {
		mux.HandleFunc(pattern, func(http.ResponseWriter, *http.Request) {})
	}
	for _, tt := range []struct {
		method, url string
		opts        []Option
		next        http.Handler
		want        string
	}{
		{"GET", "/users/7", nil, mux, "GET /users/{id}"},
		{"HEAD", "/users/8", nil, mux, "GET /users/{id}"},
		{"POST", "/files/a/b", nil, mux, "POST /files/{path...}"},
		{"BREW", "/files/a/b", nil, mux, "OTHER /files/{path...}"},
		{"GET", "/unknown/7", nil, mux, "GET /unknown"},
		{"GET", "/a/7?b=/c", nil, http.NotFoundHandler(), "GET /a"},
		{"GET", "/" + strings.Repeat("x", 999), nil, http.NotFoundHandler(), "GET /" + strings.Repeat("x", 64)},
		{"GET", "/users/7?kind=full", []Option{WithRouteKeys("query:kind", "header:x-no")}, mux, "GET /users/{id} query:kind=full"},
		{"GET", "/users/7", []Option{WithRoute(func(r *http.Request) string { return "mine" })}, mux, "mine"},
	} {
		th := newThrottle(t, throttle.Options{Concurrency: 9})
		var got string
		h := New(th, tt.opts...)(observed{tt.next, func() { got = th.Running(1)[0].Route }})
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(tt.method, tt.url, nil))
		if got != tt.want {
			t.Errorf("%s %.40s is route %q, want %q", tt.method, tt.url, got, tt.want)
		}
	}
}

// observed calls see before a handler.
type observed struct {
	next http.Handler
	see  func()
}

func (o observed) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.see()
	o.next.ServeHTTP(w, r)
}

func (o observed) Handler(r *http.Request) (http.Handler, string) {
	if mux, ok := o.next.(*http.ServeMux); ok {
		return mux.Handler(r)
	}
	return o.next, ""
}

// TestStrangersOnlyLower: whatever a client sends, its class is at most the door's, unless the
// peer is trusted.
func TestStrangersOnlyLower(t *testing.T) {
	trusted := WithTrustedPeers(netip.MustParsePrefix("192.0.2.0/24")) // httptest's peer
	for _, tt := range []struct {
		field []string
		opts  []Option
		want  string
	}{
		{nil, nil, "sheddable_plus"},
		{[]string{"critical_plus;level=127"}, nil, "sheddable_plus"},
		{[]string{"sheddable;level=5"}, nil, "sheddable;level=5"},
		{[]string{"critical;level=5"}, []Option{trusted}, "critical;level=5"},
		{[]string{"critical"}, []Option{WithTrustedPeers(netip.MustParsePrefix("198.51.100.0/24"))}, "sheddable_plus"},
		{[]string{"critical"}, []Option{WithCriticality(throttle.Critical)}, "critical"},
		{[]string{"critical_plus"}, []Option{WithCriticality(throttle.Critical)}, "critical"},
		{[]string{"sheddable", "critical"}, nil, "sheddable_plus"},
		{[]string{"critical;level=999"}, []Option{trusted}, "sheddable_plus"},
		{[]string{strings.Repeat(" ", 300) + "sheddable"}, []Option{trusted}, "sheddable_plus"},
		{[]string{"critical"}, []Option{WithImportance(func(*http.Request) throttle.Importance {
			return throttle.Importance{Criticality: throttle.CriticalPlus, Level: 1, HasLevel: true}
		})}, "critical_plus;level=1"},
	} {
		th := newThrottle(t, throttle.Options{Concurrency: 1})
		var got throttle.Importance
		h := New(th, tt.opts...)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			got = throttle.FromContext(r.Context()).Importance()
		}))
		r := httptest.NewRequest("GET", "/", nil)
		r.Header[throttle.Header] = tt.field
		h.ServeHTTP(httptest.NewRecorder(), r)
		text := got.String()
		if !strings.Contains(tt.want, "level") {
			text, _, _ = strings.Cut(text, ";") // of the client's address
		}
		if text != tt.want {
			t.Errorf("%.40q: %s, want %s", tt.field, text, tt.want)
		}
	}
}

// TestUsersAndKeys: who is served fairly is the client, or what the options say.
func TestUsersAndKeys(t *testing.T) {
	request := func(opts ...Option) throttle.Request {
		m := newMiddleware(opts)
		r := httptest.NewRequest("GET", "/a", nil)
		r.RemoteAddr = "203.0.113.7:1234"
		r.Header.Set("X-Forwarded-For", "198.51.100.9")
		return m.describe(r, "/a")
	}
	name := func(s string) func(*http.Request) string { return func(*http.Request) string { return s } }
	for _, tt := range []struct {
		got       throttle.Request
		user, key string
	}{
		{request(), "203.0.113.7", ""},
		{request(WithTrustedProxies(netip.MustParsePrefix("203.0.113.0/24"))), "198.51.100.9", ""},
		{request(WithUser(name("ann"))), "ann", ""},
		{request(WithUser(name("ann")), WithKey(name("team"))), "ann", "team"},
		{request(ByRoute()), "203.0.113.7", "GET /a"},
	} {
		if tt.got.User != tt.user || tt.got.Key != tt.key {
			t.Errorf("%+v, want user %q and key %q", tt.got, tt.user, tt.key)
		}
	}
	if got := request(WithCost(func(*http.Request) time.Duration { return 7 * ms })); got.Cost != 7*ms {
		t.Errorf("cost %v", got.Cost)
	}
}

// TestActualCost: what the handler says comes before a report in its header or trailer, and that
// before what is measured; faulty reports count as none.
func TestActualCost(t *testing.T) {
	costs := make(chan time.Duration, 1)
	th := newThrottle(t, throttle.Options{
		Concurrency: 1, Meter: fixed(42 * ms),
		Hooks: throttle.Hooks{OnDone: func(_ throttle.Criticality, _, actual, _ time.Duration) { costs <- actual }},
	})
	field := "Endpoint-Load-Metrics"
	for _, tt := range []struct {
		name string
		h    http.HandlerFunc
		want time.Duration
	}{
		{"nothing is said", func(http.ResponseWriter, *http.Request) {}, 42 * ms},
		{"SetCost", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set(field, "TEXT request_cost.cpu=9")
			throttle.SetCost(r.Context(), 3*ms)
		}, 3 * ms},
		{"header", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(field, `JSON {"request_cost": {"cpu": 12.5}}`)
			fmt.Fprint(w, "hello")
		}, 12500 * time.Microsecond},
		{"trailer", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(field, "TEXT request_cost.cpu=1")
			fmt.Fprint(w, "hello")
			w.Header().Del(field)
			w.Header().Set(http.TrailerPrefix+field, "TEXT request_cost.cpu=7")
		}, 7 * ms},
		{"declared trailer", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Trailer", field)
			fmt.Fprint(w, "hello")
			w.Header().Set(field, "TEXT request_cost.cpu=8")
		}, 8 * ms},
		{"faulty", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(field, "TEXT request_cost.cpu=-8")
		}, 42 * ms},
		{"it panics", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set(field, "TEXT request_cost.cpu=5")
			panic(http.ErrAbortHandler)
		}, 5 * ms},
	} {
		server := serve(t, th, tt.h)
		resp, err := http.Get(server.URL)
		if err == nil {
			resp.Body.Close()
			if resp.Header.Get(field) == "" && tt.name == "header" {
				t.Errorf("%s: the report did not reach the client", tt.name)
			}
		}
		if got := <-costs; got != tt.want {
			t.Errorf("%s: it cost %v, want %v", tt.name, got, tt.want)
		}
		hidden := serve(t, th, tt.h, WithoutReports())
		resp, err = http.Get(hidden.URL)
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if resp.Header.Get(field)+resp.Trailer.Get(field) != "" {
				t.Errorf("%s: the report reached the client", tt.name)
			}
		}
		if got := <-costs; got != tt.want {
			t.Errorf("%s, hidden: it cost %v, want %v", tt.name, got, tt.want)
		}
	}
}

// fixed is a Meter by which all requests cost the same.
type fixed time.Duration

func (fixed) Begin() time.Duration                   { return 0 }
func (fixed) SoFar(time.Duration) time.Duration      { return 0 }
func (f fixed) End(_, _ time.Duration) time.Duration { return time.Duration(f) }

// TestEachIsAnsweredOnce: of many requests of all classes at a small queue each gets one answer,
// its handler's or a refusal with its reason, and the throttle counts the same.
func TestEachIsAnsweredOnce(t *testing.T) {
	th := newThrottle(t, throttle.Options{Concurrency: 2, MaxWaiting: 3, MaxWait: 3 * ms})
	server := serve(t, th, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for begin := time.Now(); time.Since(begin) < ms; { // a millisecond of CPU time
		}
		fmt.Fprint(w, "served")
	}), WithTrustedPeers(netip.MustParsePrefix("127.0.0.0/8")))
	classes := []string{"sheddable", "sheddable_plus", "critical", "critical_plus"}
	var mu sync.Mutex
	reasons := map[string]int{}
	var wg sync.WaitGroup
	const clients, each = 16, 40
	for i := range clients {
		wg.Go(func() {
			for j := range each {
				resp, body := answerOf(t, "GET", server.URL, throttle.Header, classes[(i+j)%4])
				reason := body
				if resp.StatusCode != http.StatusOK {
					var problem struct{ Reason string }
					if err := json.Unmarshal([]byte(body), &problem); err != nil || resp.StatusCode != 503 ||
						resp.Header.Get("Retry-After") == "" || resp.Header.Get("Content-Type") != "application/problem+json" {
						t.Errorf("%s: %q, %v", resp.Status, body, resp.Header)
					}
					reason = problem.Reason
				}
				mu.Lock()
				reasons[reason]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	var s throttle.ClassStats
	for _, c := range th.Stats().Classes {
		s.Admitted += c.Admitted
		s.Refused += c.Refused
		s.Evicted += c.Evicted
		s.Expired += c.Expired
		s.Left += c.Left
		s.Done += c.Done
	}
	t.Log(reasons)
	if int(s.Admitted) != reasons["served"] || int(s.Refused) != reasons["queue_full"] || int(s.Evicted) != reasons["evicted"] ||
		int(s.Expired) != reasons["queue_timeout"] || s.Left != 0 || s.Done != s.Admitted ||
		s.Admitted+s.Refused+s.Evicted+s.Expired != clients*each {
		t.Errorf("clients saw %v, the throttle counted %+v", reasons, s)
	}
}

// TestResponsesWorkAsBefore: flushing, copying, deadlines and hijacking reach the server's own
// writer.
func TestResponsesWorkAsBefore(t *testing.T) {
	th := newThrottle(t, throttle.Options{Concurrency: 9})
	release := make(chan struct{})
	mux := http.NewServeMux()
	mux.HandleFunc("/stream", func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "first")
		w.(http.Flusher).Flush()
		<-release
		if err := http.NewResponseController(w).SetWriteDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Error(err)
		}
		if _, err := w.(io.ReaderFrom).ReadFrom(strings.NewReader("second\n")); err != nil {
			t.Error(err)
		}
	})
	mux.HandleFunc("/hijack", func(w http.ResponseWriter, _ *http.Request) {
		conn, buffer, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		line, _ := buffer.ReadString('\n')
		fmt.Fprintf(conn, "echo %s", line)
	})
	server := serve(t, th, mux)

	resp, err := http.Get(server.URL + "/stream")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	lines := bufio.NewReader(resp.Body)
	if line, err := lines.ReadString('\n'); line != "first\n" || err != nil {
		t.Errorf("%q, %v before the handler has returned", line, err)
	}
	close(release)
	if rest, err := io.ReadAll(lines); string(rest) != "second\n" || err != nil {
		t.Errorf("%q, %v", rest, err)
	}

	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprint(conn, "GET /hijack HTTP/1.1\r\nHost: a\r\n\r\nhello\n")
	if line, err := bufio.NewReader(conn).ReadString('\n'); line != "echo hello\n" || err != nil {
		t.Errorf("%q, %v from a hijacked connection", line, err)
	}
}

// TestMuxInsideMux: the pattern of the inner mux names the route, as it says more.
func TestMuxInsideMux(t *testing.T) {
	th := newThrottle(t, throttle.Options{Concurrency: 1})
	var got string
	inner, outer := http.NewServeMux(), http.NewServeMux()
	inner.HandleFunc("GET /users/{id}", func(w http.ResponseWriter, r *http.Request) {
		got = th.Running(1)[0].Route + ", " + r.Pattern
	})
	outer.Handle("/", New(th)(inner))
	outer.Handle("/static/", New(th)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { got = th.Running(1)[0].Route })))
	for path, want := range map[string]string{"/users/7": "GET /users/{id}, GET /users/{id}", "/static/7": "GET /static/"} {
		outer.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", path, nil))
		if got != want {
			t.Errorf("%s is route %q, want %q", path, got, want)
		}
	}
}

func TestExemptAndRefused(t *testing.T) {
	th := newThrottle(t, throttle.Options{Concurrency: 1, MaxWait: ms})
	server := serve(t, th, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "served") }),
		WithExempt(func(r *http.Request) bool { return r.URL.Path == "/healthz" }),
		WithRefused(func(w http.ResponseWriter, _ *http.Request, d *limit.Decision) {
			w.WriteHeader(d.Status)
			fmt.Fprint(w, d.Results[0].Reason)
		}))
	busy, _, _ := th.Start(t.Context(), throttle.Request{})
	defer busy.Done()
	if resp, body := answerOf(t, "GET", server.URL+"/healthz"); resp.StatusCode != 200 || body != "served" {
		t.Errorf("health: %s, %q", resp.Status, body)
	}
	if resp, body := answerOf(t, "GET", server.URL+"/"); resp.StatusCode != 503 || body != "queue_timeout" || resp.Header.Get("Retry-After") == "" {
		t.Errorf("refused: %s, %q", resp.Status, body)
	}
}

// TestClientLeaves: a client that goes away while it waits takes its place in the queue with it.
func TestClientLeaves(t *testing.T) {
	th := newThrottle(t, throttle.Options{Concurrency: 1, MaxWait: time.Hour})
	busy, _, _ := th.Start(t.Context(), throttle.Request{})
	defer busy.Done()
	ctx, leave := context.WithCancel(t.Context())
	leave()
	w := httptest.NewRecorder()
	New(th)(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest("GET", "/", nil).WithContext(ctx))
	if w.Code != 503 || th.Stats().Waiting != 0 {
		t.Errorf("%d, %+v", w.Code, th.Stats())
	}
}
