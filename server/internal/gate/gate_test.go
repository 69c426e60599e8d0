package gate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/forwarded"
	"github.com/stint-io/stint/limit"
)

// budget admits size for each value of the attribute ip, and never more.
type budget struct {
	mu    sync.Mutex
	size  int64
	used  map[string]int64
	seen  []limit.Attribute // of the last request
	calls int
	delay time.Duration
	err   error
	room  []limit.Result // given out again and again, as a pooling engine does
}

func (b *budget) Take(_ context.Context, req limit.Request) (limit.Decision, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.calls++
	b.seen = slices.Clone(req.Attributes)
	if b.err != nil {
		return limit.Decision{}, b.err
	}
	cost := req.Cost
	if cost == 0 {
		cost = 1
	}
	ip, _ := req.Get("ip")
	if b.used == nil {
		b.used = map[string]int64{}
	}
	allowed := b.used[ip]+cost <= b.size
	if allowed && !req.Peek {
		b.used[ip] += cost
	}
	v := limit.Verdict{Allowed: allowed, Remaining: b.size - b.used[ip], ResetAfter: time.Minute}
	d := limit.Decision{Allowed: allowed, Delay: b.delay}
	if !allowed {
		v.Reason, v.RetryAfter, d.Status = limit.ReasonRate, 6500*time.Millisecond, 429
	}
	b.room = append(b.room[:0], limit.Result{Limit: "per-ip", Algorithm: limit.FixedWindow, Quota: b.size, Window: time.Minute, Cost: cost, Verdict: v})
	d.Results = b.room
	return d, nil
}

func loopback(t testing.TB) *forwarded.Trusted {
	t.Helper()
	set, err := forwarded.ParseTrusted([]string{"127.0.0.0/8", "::1"})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

// serve starts a real server and returns a function that calls it.
func serve(t *testing.T, h http.Handler) func(method, path string, fields ...string) (*http.Response, string) {
	t.Helper()
	srv := httptest.NewServer(h)
	t.Cleanup(srv.Close)
	return func(method, path string, fields ...string) (*http.Response, string) {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), method, srv.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(fields); i += 2 {
			req.Header.Add(fields[i], fields[i+1])
		}
		resp, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp, string(body)
	}
}

func TestForwardAuth(t *testing.T) {
	call := serve(t, New(&budget{size: 3}, Options{Trusted: loopback(t)}))
	client := []string{"X-Forwarded-For", "192.0.2.7", "X-Forwarded-Uri", "/a", "X-Forwarded-Method", "GET"}
	for i, method := range []string{"GET", "POST", "DELETE"} {
		resp, body := call(method, "/v1/gate/forward-auth", client...)
		if resp.StatusCode != 200 || body != "" {
			t.Fatalf("request %d: %d %q", i, resp.StatusCode, body)
		}
		if got, want := resp.Header.Get("RateLimit"), fmt.Sprintf(`"per-ip";r=%d;t=60`, 2-i); got != want {
			t.Errorf("request %d: RateLimit is %s, want %s", i, got, want)
		}
	}
	resp, body := call("PROPFIND", "/v1/gate/forward-auth", client...)
	if resp.StatusCode != 429 || resp.Header.Get("Retry-After") != "7" || resp.Header.Get("Content-Type") != "application/problem+json" ||
		resp.Header.Get("Cache-Control") != "no-store" || resp.Header.Get("X-Stint-Status") != "" {
		t.Errorf("refusal is %d %v", resp.StatusCode, resp.Header)
	}
	var problem struct {
		Status   int
		Violated []string `json:"violated-policies"`
	}
	if err := json.Unmarshal([]byte(body), &problem); err != nil || problem.Status != 429 || !slices.Equal(problem.Violated, []string{"per-ip"}) {
		t.Errorf("problem is %s, %v", body, err)
	}
	if resp, _ := call("GET", "/v1/gate/forward-auth", "X-Forwarded-For", "192.0.2.8"); resp.StatusCode != 200 {
		t.Errorf("another client gets %d", resp.StatusCode)
	}
}

func TestNginx(t *testing.T) {
	call := serve(t, New(&budget{size: 1}, Options{Trusted: loopback(t), Answer: answer.Options{XRateLimit: true}}))
	resp, _ := call("GET", "/v1/gate/nginx", "X-Forwarded-For", "192.0.2.7")
	if resp.StatusCode != 204 || resp.Header.Get("X-RateLimit-Remaining") != "0" || resp.Header.Get("X-Stint-Status") != "" {
		t.Errorf("allowed: %d %v", resp.StatusCode, resp.Header)
	}
	resp, body := call("GET", "/v1/gate/nginx", "X-Forwarded-For", "192.0.2.7")
	if resp.StatusCode != 403 || resp.Header.Get("X-Stint-Status") != "429" || resp.Header.Get("Retry-After") != "7" ||
		!strings.Contains(body, `"status":429`) {
		t.Errorf("refused: %d %v %s", resp.StatusCode, resp.Header, body)
	}
}

// reading is a taker whose limits read the attributes named.
type reading struct {
	limit.Taker
	names []string
}

func (r reading) Attributes() []string { return r.names }

func TestAttributes(t *testing.T) {
	b := &budget{size: 1000}
	call := serve(t, New(reading{b, []string{"path", "header:x-api-key", "cookie:s", "query:tenant"}}, Options{Trusted: loopback(t)}))
	plain := serve(t, New(b, Options{}))
	type attributes = []limit.Attribute
	for _, tt := range []struct {
		name string
		call func(method, path string, fields ...string) (*http.Response, string)
		path string
		h    []string
		want attributes
	}{
		{
			"forwarded", call, "/v1/gate/forward-auth?ip=evil&cost=0",
			[]string{
				"X-Forwarded-For", "evil, 2001:db8::7", "X-Forwarded-Method", "POST",
				"X-Forwarded-Proto", "https", "X-Forwarded-Host", "Shop:443", "X-Forwarded-Uri", "//%6cogin?tenant=t1",
				"X-Api-Key", "k", "Cookie", "s=1", "X-Other", "o",
			},
			attributes{
				{Name: "ip", Value: "2001:db8::7"},
				{Name: "method", Value: "POST"},
				{Name: "path", Value: "/login"},
				{Name: "path:sent", Value: "//login"},
				{Name: "host", Value: "shop"},
				{Name: "proto", Value: "https"},
				{Name: "header:x-api-key", Value: "k"},
				{Name: "cookie:s", Value: "1"},
				{Name: "query:tenant", Value: "t1"},
			},
		},
		{
			"original", call, "/v1/gate/nginx/from=x-original/attr.route=a%2Fb/",
			[]string{
				"X-Real-Ip", "192.0.2.7", "X-Original-Method", "PUT",
				"X-Original-Uri", "/x", "X-Forwarded-Uri", "/free",
			},
			attributes{{Name: "route", Value: "a/b"}, {Name: "ip", Value: "192.0.2.7"}, {Name: "method", Value: "PUT"}, {Name: "path", Value: "/x"}, {Name: "host", Value: "127.0.0.1"}},
		},
		{
			"no trust", plain, "/v1/gate/forward-auth",
			[]string{"X-Forwarded-For", "192.0.2.7", "X-Forwarded-Uri", "/x", "X-Original-Uri", "/y", "X-Api-Key", "k"},
			attributes{{Name: "ip", Value: "127.0.0.1"}, {Name: "method", Value: "GET"}, {Name: "host", Value: "127.0.0.1"}},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if resp, body := tt.call("GET", tt.path, tt.h...); resp.StatusCode > 299 {
				t.Fatalf("%d %s", resp.StatusCode, body)
			}
			if !slices.Equal(b.seen, tt.want) {
				t.Errorf("got  %v\nwant %v", b.seen, tt.want)
			}
		})
	}
}

func TestPathOptions(t *testing.T) {
	b := &budget{size: 10}
	call := serve(t, New(b, Options{}))
	if resp, _ := call("GET", "/v1/gate/forward-auth/cost=7/"); resp.StatusCode != 200 || b.used["127.0.0.1"] != 7 {
		t.Errorf("cost=7: %d, %d used", resp.StatusCode, b.used["127.0.0.1"])
	}
	if resp, _ := call("GET", "/v1/gate/forward-auth/cost=0"); resp.StatusCode != 200 || b.used["127.0.0.1"] != 7 {
		t.Errorf("cost=0: %d, %d used", resp.StatusCode, b.used["127.0.0.1"])
	}
	for path, want := range map[string]int{
		"/v1/gate/":                                       404,
		"/v1/gate/nginx2":                                 404,
		"/v1/gate/forward-auth/cost=-1":                   400,
		"/v1/gate/nginx/cost=1e3":                         400,
		"/v1/gate/nginx/cost=4611686018427387905":         400,
		"/v1/gate/nginx/cost=99999999999999999999":        400,
		"/v1/gate/nginx/costs=1":                          400,
		"/v1/gate/nginx/orders/17":                        400,
		"/v1/gate/nginx/from=anywhere":                    400,
		"/v1/gate/nginx/once=":                            400,
		"/v1/gate/nginx/attr.=x":                          400,
		"/v1/gate/nginx/cost=5/cost=0":                    400,
		"/v1/gate/nginx/from=x-original/from=x-forwarded": 400,
		"/v1/gate/nginx/from=x-forwarded/from=x-original": 400,
		"/v1/gate/nginx/once=x-a/once=x-b":                400,
		"/v1/gate/nginx/attr.a=b/attr.a=c":                400,
		"/v1/gate/nginx/attr.a/attr.b/attr.c/attr.d/attr.e/attr.f/attr.g/attr.h/attr.i": 400,
		"/v1/gate/nginx/" + strings.Repeat("/", 5000):                                   400,
	} {
		calls := b.calls
		if resp, body := call("GET", path); resp.StatusCode != want || !strings.Contains(body, "gate: ") || b.calls != calls {
			t.Errorf("%.60s: %d %s, want %d and no decision", path, resp.StatusCode, body, want)
		}
	}
}

// TestConflictIsRefused holds that a client cannot pass for another request, nor
// cause an error on which its gateway would let it pass.
func TestConflictIsRefused(t *testing.T) {
	b := &budget{size: 10}
	call := serve(t, New(b, Options{Trusted: loopback(t)}))
	h := []string{"X-Forwarded-Uri", "/login", "X-Original-Uri", "/free"}
	if resp, body := call("GET", "/v1/gate/nginx", h...); resp.StatusCode != 403 || resp.Header.Get("X-Stint-Status") != "400" {
		t.Errorf("nginx: %d %v %s", resp.StatusCode, resp.Header, body)
	}
	if resp, body := call("GET", "/v1/gate/forward-auth", h...); resp.StatusCode != 400 {
		t.Errorf("forward-auth: %d %s", resp.StatusCode, body)
	}
	if b.calls != 0 {
		t.Errorf("%d decisions, want none", b.calls)
	}
}

func TestErrorIs503(t *testing.T) {
	b := &budget{err: errors.New("store at 10.9.8.7 is gone")}
	call := serve(t, New(b, Options{}))
	for _, mode := range []string{"nginx", "forward-auth"} {
		if resp, body := call("GET", "/v1/gate/"+mode); resp.StatusCode != 503 || strings.Contains(body, "10.9.8.7") {
			t.Errorf("%s: %d %s", mode, resp.StatusCode, body)
		}
	}
}

func TestOnce(t *testing.T) {
	b := &budget{size: 1000}
	h := New(b, Options{Trusted: loopback(t)})
	call := func(path, remote, client, id, uri string) int64 {
		t.Helper()
		r := httptest.NewRequest("GET", path, nil)
		r.RemoteAddr = remote
		r.Header.Set("X-Forwarded-For", client)
		r.Header.Set("X-Forwarded-Uri", uri)
		if id != "" {
			r.Header.Set("X-Request-Id", id)
		}
		rec := httptest.NewRecorder()
		before := b.calls
		h.ServeHTTP(rec, r)
		if rec.Code != 204 || rec.Header().Get("RateLimit") == "" {
			t.Fatalf("%d %v", rec.Code, rec.Header())
		}
		return int64(b.calls - before)
	}
	const once, gateway = "/v1/gate/nginx/once=x-request-id", "127.0.0.1:1"
	for _, tt := range []struct {
		name                          string
		path, remote, client, id, uri string
		charged                       int64
	}{
		{"first", once, gateway, "192.0.2.7", "id1", "/a", 1},
		{"repeat", once, gateway, "192.0.2.7", "id1", "/a", 0},
		{"another id", once, gateway, "192.0.2.7", "id2", "/a", 1},
		{"another client with the same id", once, gateway, "192.0.2.8", "id1", "/a", 1},
		{"another URI with the same id", once, gateway, "192.0.2.7", "id1", "/b", 1},
		{"another cost with the same id", once + "/cost=5", gateway, "192.0.2.7", "id1", "/a", 1},
		{"parts do not run together", once, gateway, "192.0.2.7", "id", "1/a", 1},
		{"no id", once, gateway, "192.0.2.7", "", "/a", 1},
		{"an endless id", once, gateway, "192.0.2.7", strings.Repeat("x", 300), "/a", 1},
		{"an endless id again", once, gateway, "192.0.2.7", strings.Repeat("x", 300), "/a", 1},
		{"not asked for", "/v1/gate/nginx", gateway, "192.0.2.7", "id1", "/a", 1},
		{"not asked for, again", "/v1/gate/nginx", gateway, "192.0.2.7", "id1", "/a", 1},
		{"an untrusted peer", once, "203.0.113.9:1", "192.0.2.7", "id1", "/a", 1},
		{"an untrusted peer again", once, "203.0.113.9:1", "192.0.2.7", "id1", "/a", 1},
	} {
		if got := call(tt.path, tt.remote, tt.client, tt.id, tt.uri); got != tt.charged {
			t.Errorf("%s: charged %d times, want %d", tt.name, got, tt.charged)
		}
	}
	charged := int64(0)
	for range 10 * (maxRepeats + 1) {
		charged += call(once, gateway, "192.0.2.9", "constant", "/a")
	}
	if charged != 10 {
		t.Errorf("a constant id is charged %d times in %d requests, want 10", charged, 10*(maxRepeats+1))
	}
}

func TestOnceRepeatsTheWholeAnswer(t *testing.T) {
	call := serve(t, New(&budget{size: 2}, Options{Trusted: loopback(t)}))
	ask := func(client, id string) string {
		resp, _ := call("GET", "/v1/gate/nginx/once=x-request-id", "X-Forwarded-For", client, "X-Request-Id", id)
		return fmt.Sprint(resp.StatusCode, resp.Header.Get("RateLimit"), resp.Header.Get("Retry-After"))
	}
	first := ask("192.0.2.7", "1")
	ask("192.0.2.8", "2") // reuses the room that the first decision stood in
	ask("192.0.2.8", "3")
	if again := ask("192.0.2.7", "1"); again != first {
		t.Errorf("repeat is answered %s, the first was %s", again, first)
	}
	ask("192.0.2.7", "3")
	refused := ask("192.0.2.7", "4")
	if again := ask("192.0.2.7", "4"); again != refused || !strings.HasPrefix(refused, "403") {
		t.Errorf("repeat is answered %s, the first was %s", again, refused)
	}
}

func TestRepeatsOverTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s repeats
		s.init()
		client := netip.MustParseAddr("192.0.2.7")
		id := s.id(client, "x")
		calls := 0
		take := func() (limit.Decision, error) { calls++; return limit.Decision{Allowed: true}, nil }
		for _, after := range []time.Duration{0, repeatFor - 1, 1, repeatFor} {
			time.Sleep(after)
			if d, err := s.take(t.Context(), id, take); !d.Allowed || err != nil {
				t.Fatal(d, err)
			}
		}
		if calls != 3 {
			t.Errorf("%d calls, want one at the start and one after each %v", calls, repeatFor)
		}
	})
}

func TestRepeatWaitsForTheFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var s repeats
		s.init()
		client := netip.MustParseAddr("192.0.2.7")
		id := s.id(client, "x")
		calls := 0
		slow := func() (limit.Decision, error) {
			calls++
			time.Sleep(time.Second)
			return limit.Decision{Allowed: true}, nil
		}
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if d, err := s.take(t.Context(), id, slow); !d.Allowed || err != nil {
					t.Error(d, err)
				}
			})
		}
		synctest.Wait()
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := s.take(gone, id, slow); !errors.Is(err, context.Canceled) {
			t.Errorf("a repeat whose caller is gone gets %v", err)
		}
		wg.Wait()
		if calls != 1 {
			t.Errorf("%d calls, want 1", calls)
		}
	})
}

func TestRepeatsForgetErrorsAndStayBounded(t *testing.T) {
	var s repeats
	s.init()
	client := netip.MustParseAddr("192.0.2.7")
	id := s.id(client, "x")
	fail := errors.New("down")
	if _, err := s.take(t.Context(), id, func() (limit.Decision, error) { return limit.Decision{}, fail }); !errors.Is(err, fail) {
		t.Errorf("error is %v", err)
	}
	allow := func() (limit.Decision, error) { return limit.Decision{Allowed: true}, nil }
	if d, err := s.take(t.Context(), id, allow); err != nil || !d.Allowed {
		t.Errorf("after an error: %v, %v", d, err)
	}
	for i := range maxRemembered + maxRemembered/4 {
		if _, err := s.take(t.Context(), s.id(client, fmt.Sprint(i)), allow); err != nil {
			t.Fatal(err)
		}
	}
	n := 0
	for i := range s.shards {
		n += len(s.shards[i].entries)
	}
	if n > maxRemembered {
		t.Errorf("%d decisions are kept, want at most %d", n, maxRemembered)
	}
}

func TestDelay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &budget{size: 10, delay: 1500 * time.Millisecond}
		ask := func(ctx context.Context, most time.Duration) (*httptest.ResponseRecorder, time.Duration) {
			rec, start := httptest.NewRecorder(), time.Now()
			New(b, Options{MaxDelay: most}).ServeHTTP(rec, httptest.NewRequest("GET", "/v1/gate/nginx", nil).WithContext(ctx))
			return rec, time.Since(start)
		}
		for most, left := range map[time.Duration]string{0: "1.500000", time.Second: "0.500000", time.Minute: ""} {
			rec, took := ask(t.Context(), most)
			if rec.Code != 204 || took != min(most, b.delay) || rec.Header().Get("X-Stint-Delay") != left {
				t.Errorf("MaxDelay %v: %d after %v, %v", most, rec.Code, took, rec.Header())
			}
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if rec, took := ask(ctx, time.Minute); rec.Code != 503 || took != time.Second {
			t.Errorf("a caller that left: %d after %v", rec.Code, took)
		}
	})
}

func TestAllocations(t *testing.T) {
	b := &budget{size: 1 << 40}
	h := New(reading{quiet{b}, []string{"header:x-api-key"}}, Options{Trusted: loopback(t)})
	r := httptest.NewRequest("GET", "/v1/gate/nginx/from=x-forwarded", nil)
	r.RemoteAddr = "127.0.0.1:1"
	for name, value := range map[string]string{
		"X-Forwarded-For": "192.0.2.7", "X-Forwarded-Method": "GET",
		"X-Forwarded-Uri": "/api/users/17?page=2", "X-Forwarded-Host": "shop.example", "X-Api-Key": "k",
	} {
		r.Header.Set(name, value)
	}
	w := httptest.NewRecorder()
	n := testing.AllocsPerRun(200, func() {
		clear(w.Header())
		h.ServeHTTP(w, r)
	})
	// The address as text, the attributes, Cache-Control and two for the header
	// fields; one more while the recorder has not been written to.
	if n > 6 {
		t.Errorf("%v allocations for an admitted request, want at most 6", n)
	}
}

// quiet decides without remembering what it was asked.
type quiet struct{ b *budget }

func (q quiet) Take(context.Context, limit.Request) (limit.Decision, error) {
	q.b.room = append(q.b.room[:0], limit.Result{Limit: "per-ip", Algorithm: limit.FixedWindow, Quota: q.b.size, Window: time.Minute, Verdict: limit.Verdict{Allowed: true}})
	return limit.Decision{Allowed: true, Results: q.b.room}, nil
}

// FuzzRoute holds that no path crashes, and that what is accepted is in bounds.
func FuzzRoute(f *testing.F) {
	f.Add("/v1/gate/nginx/cost=5/attr.a=%2f/once=x-request-id/from=x-original/")
	f.Add("/v1/gate/forward-auth//%zz")
	f.Fuzz(func(t *testing.T, path string) {
		var rt route
		if fault := rt.parse(path); fault != nil {
			if fault.status != 400 && fault.status != 404 {
				t.Fatalf("%q: status %d", path, fault.status)
			}
			return
		}
		if rt.cost < 0 || rt.cost > limit.MaxCount || rt.peek && rt.cost != 0 || !strings.HasPrefix(path, Prefix) {
			t.Fatalf("%q: %+v", path, rt)
		}
	})
}
