package httplimit_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/httplimit"
)

// budget admits size for each value of the attribute ip, and places in flight.
type budget struct {
	size, places int64
	delay        time.Duration
	err          error
	keep         bool // remember what was asked

	mu       sync.Mutex
	used     map[string]int64
	inFlight int64
	seen     limit.Request
	room     []limit.Result // for results, where one request follows the other
}

func (b *budget) Take(_ context.Context, req limit.Request) (limit.Decision, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.keep {
		b.seen = req
		b.seen.Attributes = slices.Clone(req.Attributes)
	}
	if req.Cost < 0 {
		return limit.Decision{}, fmt.Errorf("budget: cost is %d, want at least 0", req.Cost)
	}
	if b.err != nil {
		return limit.Decision{}, b.err
	}
	if b.used == nil {
		b.used = map[string]int64{}
	}
	cost := req.Cost
	if cost == 0 {
		cost = 1
	}
	ip, _ := req.Get("ip")
	v := limit.Verdict{Allowed: b.used[ip]+cost <= b.size, ResetAfter: time.Minute}
	if !v.Allowed {
		v.Reason, v.RetryAfter = limit.ReasonRate, 6500*time.Millisecond
	} else if b.places > 0 && b.inFlight == b.places {
		v.Allowed, v.Reason = false, limit.ReasonConcurrency
	}
	d := limit.Decision{Allowed: v.Allowed, Delay: b.delay}
	if v.Allowed && !req.Peek {
		b.used[ip] += cost
		if b.places > 0 {
			b.inFlight++
			d.Permit = 7
		}
	}
	if !v.Allowed {
		d.Status, d.Delay = http.StatusTooManyRequests, 0
	}
	v.Remaining = b.size - b.used[ip]
	if d.Results = b.room[:0]; b.room == nil {
		d.Results = make([]limit.Result, 0, 1)
	}
	d.Results = append(d.Results, limit.Result{Limit: "per-ip", Algorithm: limit.FixedWindow, Quota: b.size, Window: time.Minute, Cost: cost, Verdict: v})
	return d, nil
}

// holding is a budget that holds places in flight.
type holding struct {
	*budget
	ended chan string
}

func (h holding) Finish(ctx context.Context, req limit.Request, permit uint64) error {
	h.mu.Lock()
	h.inFlight--
	h.mu.Unlock()
	ip, _ := req.Get("ip")
	h.ended <- fmt.Sprint(ip, " ", permit, " ", ctx.Err())
	return nil
}

var okHandler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })

func get(t *testing.T, h http.Handler, r *http.Request) *httptest.ResponseRecorder {
	t.Helper()
	if r == nil {
		r = httptest.NewRequest("GET", "/", nil)
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	return rec
}

func TestServer(t *testing.T) {
	srv := httptest.NewServer(httplimit.New(&budget{size: 2})(okHandler))
	defer srv.Close()
	for i, want := range []string{
		`200 "per-ip";r=1;t=60 "per-ip";q=2;w=60  ok`, `200 "per-ip";r=0;t=60 "per-ip";q=2;w=60  ok`,
		`429 "per-ip";r=0;t=7 "per-ip";q=2;w=60 7 application/problem+json`,
	} {
		resp, err := srv.Client().Get(srv.URL)
		if err != nil {
			t.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		last := string(body)
		if resp.StatusCode == 429 {
			last = resp.Header.Get("Content-Type")
		}
		h := resp.Header
		if got := fmt.Sprint(resp.StatusCode, " ", h.Get("RateLimit"), " ", h.Get("RateLimit-Policy"), " ", h.Get("Retry-After"), " ", last); got != want {
			t.Errorf("request %d: got %s\nwant %s", i, got, want)
		}
	}
}

func TestAttributes(t *testing.T) {
	b := &budget{size: 100, keep: true}
	proxies := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	h := httplimit.New(b,
		httplimit.WithTrustedProxies(proxies...),
		httplimit.WithIPv6Prefix(48),
		httplimit.WithAttributes(func(r *http.Request) []limit.Attribute {
			user, _, _ := r.BasicAuth()
			return []limit.Attribute{{Name: "user", Value: user}}
		}),
		httplimit.WithKey(func(r *http.Request) string { return r.Header.Get("X-Api-Key") }),
		httplimit.WithRequestAttributes("header:x-api-key", "cookie:s", "query:tenant", "header:absent", "size", "user"))(okHandler)
	r := httptest.NewRequest("POST", "http://API.example:8080/a%2Fb//../c/?tenant=t", strings.NewReader("12345"))
	r.RemoteAddr = "10.0.0.1:1"
	r.Header.Set("X-Forwarded-For", "evil, 2001:db8:1:2::3")
	r.Header.Set("X-Api-Key", "k")
	r.Header.Set("Cookie", "s=1")
	r.SetBasicAuth("u1", "secret")
	get(t, h, r)
	want := []limit.Attribute{
		{Name: "user", Value: "u1"},
		{Name: "key", Value: "k"},
		{Name: "ip", Value: "2001:db8:1::/48"},
		{Name: "method", Value: "POST"},
		{Name: "path", Value: "/a/c/"},
		{Name: "path:cleaned", Value: "/c/"},
		{Name: "path:sent", Value: "/a/b//../c/"},
		{Name: "host", Value: "api.example"},
		{Name: "size", Value: "5"},
		{Name: "header:x-api-key", Value: "k"},
		{Name: "cookie:s", Value: "1"},
		{Name: "query:tenant", Value: "t"},
	}
	if !slices.Equal(b.seen.Attributes, want) {
		t.Errorf("got  %v\nwant %v", b.seen.Attributes, want)
	}
	r.RemoteAddr = "203.0.113.9:1"
	get(t, h, r)
	if ip, _ := b.seen.Get("ip"); ip != "203.0.113.9" {
		t.Errorf("an untrusted peer is %s", ip)
	}
	r.Header.Del("X-Api-Key")
	get(t, h, r)
	if key, there := b.seen.Get("key"); there {
		t.Errorf("nobody has the key %q", key)
	}
}

func TestCost(t *testing.T) {
	b := &budget{size: 10, keep: true}
	h := httplimit.New(b, httplimit.WithCost(func(r *http.Request) int64 { return r.ContentLength }))(okHandler)
	for _, tt := range []struct {
		length     int64
		code       int
		used, cost int64
		peek       bool
	}{{7, 200, 7, 7, false}, {0, 200, 7, 0, true}, {4, 429, 7, 4, false}, {3, 200, 10, 3, false}, {-1, 503, 10, -1, false}, {0, 429, 10, 0, true}} {
		r := httptest.NewRequest("POST", "/", nil)
		r.ContentLength = tt.length
		rec := get(t, h, r)
		if rec.Code != tt.code || b.used["192.0.2.1"] != tt.used || b.seen.Cost != tt.cost || b.seen.Peek != tt.peek {
			t.Errorf("cost %d: %d, %d used, asked %+v, want %+v", tt.length, rec.Code, b.used["192.0.2.1"], b.seen, tt)
		}
	}
}

func TestOnError(t *testing.T) {
	b := &budget{err: errors.New("store at 10.9.8.7 is gone")}
	if rec := get(t, httplimit.New(b)(okHandler), nil); rec.Code != 503 || strings.Contains(rec.Body.String(), "10.9.8.7") {
		t.Errorf("the default answers %d %s", rec.Code, rec.Body)
	}
	if rec := get(t, httplimit.New(b, httplimit.WithOnError(httplimit.Allow))(okHandler), nil); rec.Code != 200 || rec.Body.String() != "ok" {
		t.Errorf("Allow answers %d %s", rec.Code, rec.Body)
	}
}

func TestDeniedAndHeaders(t *testing.T) {
	h := httplimit.New(&budget{}, httplimit.WithHeaders(httplimit.Off), httplimit.WithXRateLimit(),
		httplimit.WithDenied(func(w http.ResponseWriter, _ *http.Request, d *limit.Decision) {
			http.Error(w, "slow down: "+d.Refused().Limit, d.Status)
		}))(okHandler)
	rec := get(t, h, nil)
	if rec.Code != 429 || rec.Body.String() != "slow down: per-ip\n" || rec.Header().Get("Retry-After") != "7" ||
		rec.Header().Get("X-RateLimit-Retry-After") != "7" || rec.Header().Get("RateLimit") != "" {
		t.Errorf("%d %v %s", rec.Code, rec.Header(), rec.Body)
	}
}

func TestPlacesAreGivenBack(t *testing.T) {
	b := holding{&budget{size: 1000, places: 1}, make(chan string, 1)}
	inside := make(chan struct{})
	var leave chan struct{}
	h := httplimit.New(b)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/panic":
			panic(http.ErrAbortHandler)
		case "/stay":
			inside <- struct{}{}
			<-leave
		}
	}))
	const want = "192.0.2.1 7 <nil>"
	if get(t, h, nil); <-b.ended != want {
		t.Error("the place is not given back")
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic is swallowed")
			}
		}()
		get(t, h, httptest.NewRequest("GET", "/panic", nil))
	}()
	if got := <-b.ended; got != want {
		t.Errorf("after a panic: %s", got)
	}

	// A client that goes away: its context is done, the place comes back all the same.
	ctx, cancel := context.WithCancel(t.Context())
	leave = make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { get(t, h, httptest.NewRequest("GET", "/stay", nil).WithContext(ctx)) })
	<-inside
	if rec := get(t, h, nil); rec.Code != 429 || rec.Header().Get("Retry-After") != "1" {
		t.Errorf("a second request in flight: %d %v", rec.Code, rec.Header())
	}
	cancel()
	close(leave)
	if got := <-b.ended; got != want {
		t.Errorf("after a client went away: %s", got)
	}
	wg.Wait()
	if b.inFlight != 0 {
		t.Errorf("%d in flight at the end", b.inFlight)
	}
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := holding{&budget{size: 100, places: 9, delay: 2 * time.Second}, make(chan string, 9)}
		h := httplimit.New(b)(okHandler)
		start := time.Now()
		if rec := get(t, h, nil); rec.Code != 200 || time.Since(start) != 2*time.Second {
			t.Errorf("%d after %v", rec.Code, time.Since(start))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		start = time.Now()
		if rec := get(t, h, httptest.NewRequest("GET", "/", nil).WithContext(ctx)); rec.Code != 503 || time.Since(start) != time.Second {
			t.Errorf("a client that left: %d after %v", rec.Code, time.Since(start))
		}
		if b.inFlight != 0 {
			t.Errorf("%d in flight", b.inFlight)
		}
	})
}

// TestResponseWriterIsNotWrapped flushes, sets deadlines and hijacks over a real
// connection.
func TestResponseWriterIsNotWrapped(t *testing.T) {
	flushed := make(chan struct{})
	srv := httptest.NewServer(httplimit.New(&budget{size: 100})(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		rc := http.NewResponseController(w)
		if r.URL.Path == "/hijack" {
			conn, _, err := rc.Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			_, _ = io.WriteString(conn, "raw\n")
			conn.Close()
			return
		}
		_, _ = io.WriteString(w, "part\n")
		if err := errors.Join(rc.SetWriteDeadline(time.Now().Add(time.Minute)), rc.Flush()); err != nil {
			t.Error(err)
		}
		<-flushed
	})))
	defer srv.Close()
	resp, err := srv.Client().Get(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(resp.Body).ReadString('\n'); line != "part\n" || err != nil {
		t.Errorf("before the handler ended: %q, %v", line, err)
	}
	close(flushed)
	resp.Body.Close()

	conn, err := net.Dial("tcp", srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	fmt.Fprintf(conn, "GET /hijack HTTP/1.1\r\nHost: x\r\n\r\n")
	if raw, err := io.ReadAll(conn); string(raw) != "raw\n" || err != nil {
		t.Errorf("hijacked: %q, %v", raw, err)
	}
}

func TestConcurrent(t *testing.T) {
	b := &budget{size: 500}
	h := httplimit.New(b, httplimit.WithHeaders(httplimit.Off))(okHandler)
	var wg sync.WaitGroup
	var mu sync.Mutex
	codes := map[int]int{}
	for g := range 8 {
		wg.Go(func() {
			for range 250 {
				r := httptest.NewRequest("GET", "/", nil)
				r.RemoteAddr = fmt.Sprintf("192.0.2.%d:1", g%2)
				rec := httptest.NewRecorder()
				h.ServeHTTP(rec, r)
				mu.Lock()
				codes[rec.Code]++
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if codes[200] != 1000 || codes[429] != 1000 {
		t.Errorf("answers are %v, want 1000 of each", codes)
	}
}

// discard is a ResponseWriter that costs nothing.
type discard struct{ h http.Header }

func (d discard) Header() http.Header         { return d.h }
func (d discard) Write(p []byte) (int, error) { return len(p), nil }
func (d discard) WriteHeader(int)             {}

func TestAllocations(t *testing.T) {
	b := &budget{size: 1 << 40, room: make([]limit.Result, 1)}
	h := httplimit.New(b, httplimit.WithRequestAttributes("header:x-api-key"))(
		http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	r := httptest.NewRequest("GET", "/api/users/17", nil)
	r.Header.Set("X-Api-Key", "k")
	w := discard{http.Header{}}
	n := testing.AllocsPerRun(200, func() {
		clear(w.h)
		h.ServeHTTP(w, r)
	})
	// The address as text, and two for the header fields.
	if n > 3 {
		t.Errorf("%v allocations for an admitted request, want at most 3", n)
	}
}

// Hooks hear each decision, and each request about which none could be made.
func TestHooks(t *testing.T) {
	var allowed, refused, failed int
	hooks := limit.Hooks{
		OnDecision: func(_ context.Context, d *limit.Decision) {
			if d.Allowed {
				allowed++
			} else {
				refused++
			}
			if d.Results[0].Limit != "per-ip" {
				t.Errorf("%+v", d)
			}
		},
		OnError: func(_ context.Context, err error) {
			if err != nil {
				failed++
			}
		},
	}
	cost := int64(1)
	h := httplimit.New(&budget{size: 2}, httplimit.WithHooks(hooks), httplimit.WithCost(func(*http.Request) int64 { return cost }))(okHandler)
	for range 5 {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	}
	h = httplimit.New(&budget{err: errors.New("gone")}, httplimit.WithHooks(hooks))(okHandler)
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/", nil))
	if allowed != 2 || refused != 3 || failed != 1 {
		t.Errorf("%d allowed, %d refused, %d failed, want 2, 3 and 1", allowed, refused, failed)
	}
}

// TestNilTaker: a limiter whose error was not looked at is found when the middleware is made, not at the first request.
func TestNilTaker(t *testing.T) {
	defer func() {
		if text, _ := recover().(string); !strings.Contains(text, "the taker is nil") {
			t.Errorf("New(nil) panics with %q", text)
		}
	}()
	httplimit.New(nil)
}
