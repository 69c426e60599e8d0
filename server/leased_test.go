package server_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/limit"
)

// leasing starts a server whose coordinator lends at once.
func leasing(t *testing.T, yaml string) *service {
	t.Helper()
	return start(t, yaml, stateIn(t.TempDir()))
}

// taken is an answer of POST /v1/take.
type taken struct {
	Allowed bool
	Permit  uint64
	Limits  []struct {
		Name        string
		Allowed     bool
		Quota       int64
		Remaining   int64
		StoreFailed bool `json:"store_failed"`
	}
}

// take asks again when no lease came in the half second for which a request waits for the
// first one, as on a machine that stands still.
func (s *service) take(attributes string, cost int) (status int, x taken) {
	s.t.Helper()
	begin := time.Now()
	a := s.post("/v1/take", fmt.Sprintf(`{"attributes":%s,"cost":%d}`, attributes, cost))
	if a.status == 200 {
		if err := json.Unmarshal([]byte(a.body), &x); err != nil {
			s.t.Fatalf("%s: %v", a.body, err)
		}
	}
	for _, l := range x.Limits {
		switch waited := time.Since(begin); {
		case l.StoreFailed && waited < 500*time.Millisecond:
			s.t.Errorf("decided without a lease after %v: %s", waited, a.body)
		case l.StoreFailed:
			return s.take(attributes, cost)
		}
	}
	if a.status != 200 && !strings.Contains(a.body, "violated-policies") {
		s.t.Errorf("no decision: %d %s", a.status, a.body)
	}
	return a.status, x
}

// instance runs a client of the server's coordinator until the test ends.
func (s *service) instance(name string) *client.Client {
	s.t.Helper()
	c, err := client.New(client.Options{Address: s.Addrs().GRPC.String(), Instance: name, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- c.Run(ctx) }()
	s.t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			s.t.Error(err)
		}
	})
	return c
}

// Requests that the server decides and requests that clients decide draw on one bucket.
func TestServerAndClientsShareOneBucket(t *testing.T) {
	t.Parallel() // it waits for most of its time
	s := leasing(t, "limits:\n  - {name: messages, key: [account], rate: 200/s, burst: 100, sharing: leased}\n")
	var instances []*client.Keyed
	for _, name := range []string{"one", "two"} {
		k, err := s.instance(name).Keyed("messages", []string{"account"}, client.KeyedOptions{})
		if err != nil {
			t.Fatal(err)
		}
		instances = append(instances, k)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stood := standstills(ctx)
	// What one bucket admits of the same requests, at the times at which they are made: a
	// busy machine may make them in clumps that no bucket admits.
	one, err := limit.NewLimiter(limit.Policy{Rate: limit.PerSecond(200), Burst: 100})
	if err != nil {
		t.Fatal(err)
	}
	var byOne, byClients, byServer atomic.Int64
	ask := func() {
		if one.Allow() {
			byOne.Add(1)
		}
	}
	var wg sync.WaitGroup
	begin := time.Now()
	for _, k := range instances {
		wg.Go(func() {
			for ctx.Err() == nil {
				ask()
				d, err := k.Take(ctx, account("acme"))
				if err == nil && d.Allowed {
					byClients.Add(1)
				}
				pause(ctx)
			}
		})
	}
	for range 50 {
		wg.Go(func() {
			for ctx.Err() == nil {
				ask()
				if status, _ := s.take(`{"account":"acme"}`, 1); status == 200 {
					byServer.Add(1)
				}
				pause(ctx)
			}
		})
	}
	await(t, "two seconds in which all have a part", func() bool {
		a := s.do(http.MethodGet, s.admin+"/v1/leases", "")
		for _, part := range []string{`"instance": "server-`, `"instance": "one"`, `"instance": "two"`, `"resources_total": 1`} {
			if !strings.Contains(a.body, part) {
				return false
			}
		}
		return byServer.Load() > 0 && byClients.Load() > 0 && time.Since(begin) > 2*time.Second
	})
	cancel()
	wg.Wait()
	got, most := byServer.Load()+byClients.Load(), 100+200*time.Since(begin).Seconds()
	// While the machine stands still tokens lie where nobody is awake.
	least := 0.8 * (float64(byOne.Load()) - 200*stood().Seconds())
	if float64(got) > most || float64(got) < least {
		t.Errorf("admitted %d, %d of them by the server, want %.0f to %.0f", got, byServer.Load(), least, most)
	}
}

func account(name string) limit.Request {
	return limit.Request{Attributes: []limit.Attribute{{Name: "account", Value: name}}}
}

// pause lets others go on.
func pause(ctx context.Context) {
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Millisecond):
	}
}

// A limit is all there for one who only asks the server, and the answers name it.
func TestWholeLimitByREST(t *testing.T) {
	s := leasing(t, "limits:\n  - {name: messages, key: [account], rate: 50/hour, sharing: leased}\n  - {name: single, key: [user], rate: 1/hour, sharing: leased}\n")
	for i := range 50 {
		if status, x := s.take(`{"account":"acme"}`, 1); status != 200 || x.Limits[0].Name != "messages" || x.Limits[0].Quota != 50 {
			t.Fatalf("request %d of 50: %d %+v", i+1, status, x)
		}
	}
	a := s.post("/v1/take", `{"attributes":{"account":"acme"}}`)
	for _, part := range []string{`"rate_exceeded"`, `"messages"`, `"retry_after"`} {
		if a.status != 429 || a.header.Get("Retry-After") == "" || !strings.Contains(a.body, part) {
			t.Errorf("%d %v, no %s in %s", a.status, a.header, part, a.body)
		}
	}
	if a := s.post("/v1/take", `{"attributes":{"account":"acme"},"cost":51}`); a.status != 429 || !strings.Contains(a.body, `"cost_exceeds_limit"`) {
		t.Errorf("%d %s", a.status, a.body)
	}
	if status, _ := s.take(`{"account":"other"}`, 50); status != 200 {
		t.Errorf("another key: %d", status)
	}
	// A look at a key takes nothing, whether it has a lease or not.
	for range 3 {
		if a := s.post("/v1/explain", `{"attributes":{"user":"u"}}`); !strings.Contains(a.body, `"allowed":true`) {
			t.Errorf("explain: %s", a.body)
		}
		if status, _ := s.take(`{"user":"u"}`, 0); status != 200 {
			t.Errorf("a look: %d", status)
		}
	}
	if status, _ := s.take(`{"user":"u"}`, 1); status != 200 {
		t.Errorf("after looks: %d", status)
	}
	if status, _ := s.take(`{"user":"u"}`, 1); status != 429 {
		t.Errorf("the second of one: %d", status)
	}
}

// A leased limit and an exact one refuse together: who is refused by either takes of
// none.
func TestLeasedAndExactLimit(t *testing.T) {
	s := leasing(t, `limits:
  - {name: lent, key: [account], rate: 10/hour, sharing: leased}
  - {name: once, key: [one], rate: 1/hour, sharing: leased}
  - {name: exact, key: [user], rate: 3/hour}
  - {name: counting, key: [counted], rate: 5/hour, algorithm: fixed_window, count_refused: true}
`)
	expect := func(want int, attributes string, cost int) {
		t.Helper()
		if status, _ := s.take(attributes, cost); status != want {
			t.Errorf("%s, cost %d: %d, want %d", attributes, cost, status, want)
		}
	}
	both := `{"account":"a","user":"u"}`
	expect(200, `{"account":"a"}`, 1) // it has a lease
	expect(200, both, 3)
	for range 20 {
		expect(429, both, 1) // by the exact one
	}
	expect(200, `{"account":"a"}`, 6)
	expect(429, `{"account":"a"}`, 1)
	for range 20 {
		expect(429, `{"account":"a","user":"v"}`, 1) // by the leased one
	}
	expect(200, `{"user":"v"}`, 3)

	// The smallest limit: its only token comes back too.
	expect(200, `{"user":"w"}`, 3)
	for range 5 {
		expect(429, `{"one":"o","user":"w"}`, 1)
	}
	// Two leased limits, of which the second refuses.
	for range 5 {
		expect(429, `{"account":"a","one":"o"}`, 1)
	}
	expect(200, `{"one":"o"}`, 1)

	// Refused requests count where they are to.
	for range 5 {
		expect(429, `{"account":"a","counted":"c"}`, 1)
	}
	expect(429, `{"counted":"c"}`, 1)
}

// Side by side, requests over a leased limit and an exact one admit what fits both.
func TestLeasedAndExactLimitTogether(t *testing.T) {
	s := leasing(t, "limits:\n  - {name: lent, rate: 100/day, sharing: leased}\n  - {name: exact, key: [user], rate: 10/day}\n")
	s.take(`{}`, 1) // it has a lease
	var admitted [20]atomic.Int64
	var wg sync.WaitGroup
	for u := range admitted {
		for range 4 {
			wg.Go(func() {
				for range 4 {
					if status, _ := s.take(fmt.Sprintf(`{"user":"u%d"}`, u), 1); status == 200 {
						admitted[u].Add(1)
					}
				}
			})
		}
	}
	wg.Wait()
	plain.CloseIdleConnections() // a stop waits for those that were never used
	sum := int64(0)
	for u := range admitted {
		if n := admitted[u].Load(); n > 10 {
			t.Errorf("user %d: %d of 10", u, n)
		}
		sum += admitted[u].Load()
	}
	if sum != 99 {
		t.Errorf("%d of 99", sum)
	}
}

// Envoy's protocol and the gateways' endpoints decide by leases as well, with the same
// bucket.
func TestLeasedLimitByAllProtocols(t *testing.T) {
	s := leasing(t, "limits:\n  - {name: per-ip, key: [ip], rate: 5/hour, sharing: leased}\n")
	gate := func(path string) answer {
		return s.do(http.MethodGet, s.http+path, "", "X-Forwarded-For", "192.0.2.7", "X-Forwarded-Uri", "/x", "X-Forwarded-Method", "GET")
	}
	if status, _ := s.take(`{"ip":"::ffff:192.0.2.7"}`, 1); status != 200 {
		t.Fatalf("take: %d", status)
	}
	for _, path := range []string{"/v1/gate/forward-auth", "/v1/gate/nginx"} {
		if a := gate(path); a.status/100 != 2 || !strings.Contains(a.header.Get("RateLimit-Policy"), `"per-ip";q=5`) {
			t.Fatalf("%s: %d %v", path, a.status, a.header)
		}
	}
	for range 2 {
		if got := short(s.should(request("any", 1, descriptor("ip=192.0.2.7")))); !strings.HasPrefix(got, "OK: OK ") {
			t.Fatalf("gRPC: %s", got)
		}
	}
	if got := short(s.should(request("any", 1, descriptor("ip=192.0.2.7")))); got != "OVER: OVER 0/5" {
		t.Errorf("gRPC: %s", got)
	}
	if a := gate("/v1/gate/forward-auth"); a.status != 429 || a.header.Get("Retry-After") == "" || a.header.Get("X-Stint-Decision") != "reject" {
		t.Errorf("forward-auth: %d %v", a.status, a.header)
	}
	// One client's key is the same bucket, however it writes the address.
	k, err := s.instance("one").Keyed("per-ip", []string{"ip"}, client.KeyedOptions{})
	if err != nil {
		t.Fatal(err)
	}
	d, err := k.Take(t.Context(), limit.Request{Attributes: []limit.Attribute{{Name: "ip", Value: "::ffff:192.0.2.7"}}})
	if err != nil || d.Allowed {
		t.Errorf("a client: %+v, %v", d, err)
	}
}

// A value that is too long to be kept is one bucket too, and its override is seen by
// nobody.
func TestLeasedLimitOfLongValues(t *testing.T) {
	long := strings.Repeat("x", 2000)
	s := leasing(t, "limits:\n  - name: lent\n    key: [account]\n    rate: 3/hour\n    sharing: leased\n    overrides:\n      - {when: {account: 'x*'}, rate: 100/hour}\n")
	for i, want := range []int{200, 200, 200, 429} {
		if status, _ := s.take(`{"account":"`+long+`"}`, 1); status != want {
			t.Errorf("request %d: %d, want %d", i+1, status, want)
		}
	}
	for range 50 {
		if status, _ := s.take(`{"account":"xyz"}`, 1); status != 200 {
			t.Fatalf("an override: %d", status)
		}
	}
	many := make([]string, 32) // attributes, far above what a client's key may be
	key := make([]string, 32)
	for i := range many {
		key[i] = fmt.Sprintf("a%d", i)
		many[i] = fmt.Sprintf(`"a%d":"%s"`, i, long[:120])
	}
	write(t, s.path, "limits:\n  - {name: wide, key: ["+strings.Join(key, ", ")+"], rate: 2/hour, sharing: leased}\n")
	if err := s.Reload(); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{200, 200, 429} {
		if status, _ := s.take("{"+strings.Join(many, ",")+"}", 1); status != want {
			t.Errorf("a wide key, request %d: %d, want %d", i+1, status, want)
		}
	}
}

// Places of a leased limit are held until they are finished, by whoever holds them.
func TestLeasedPlaces(t *testing.T) {
	s := leasing(t, "limits:\n  - {name: places, key: [account], algorithm: concurrency, max_in_flight: 3, timeout: 1h, sharing: leased}\n")
	g, err := s.instance("one").Keyed("places", []string{"account"}, client.KeyedOptions{Semaphore: true})
	if err != nil {
		t.Fatal(err)
	}
	var permits []uint64
	for range 2 {
		status, x := s.take(`{"account":"acme"}`, 1)
		if status != 200 || x.Permit == 0 {
			t.Fatalf("%d %+v", status, x)
		}
		permits = append(permits, x.Permit)
	}
	d, err := g.Take(t.Context(), account("acme"))
	if err != nil || !d.Allowed {
		t.Fatalf("the third place: %+v, %v", d, err)
	}
	a := s.post("/v1/take", `{"attributes":{"account":"acme"}}`)
	if a.status != 429 || !strings.Contains(a.body, `"concurrency_exceeded"`) {
		t.Errorf("a fourth: %d %s", a.status, a.body)
	}
	for range 2 { // to finish twice is harmless
		if a := s.post("/v1/finish", fmt.Sprintf(`{"attributes":{"account":"acme"},"permit":%d}`, permits[0])); a.status != 204 {
			t.Fatalf("finish: %d %s", a.status, a.body)
		}
	}
	// On a slow machine the place is at the coordinator again by then, and somebody has to ask.
	status := 0
	for begin := time.Now(); status != 200 && time.Since(begin) < 10*time.Second; pause(t.Context()) {
		status, _ = s.take(`{"account":"acme"}`, 1)
	}
	if status != 200 {
		t.Errorf("after one has ended: %d", status)
	}
	if status, _ := s.take(`{"account":"acme"}`, 1); status != 429 {
		t.Errorf("one more: %d", status)
	}
	if err := g.Finish(t.Context(), account("acme"), d.Permit); err != nil {
		t.Fatal(err)
	}
	// The limit was full when the coordinator told last: somebody has to ask once.
	begin := time.Now()
	for status := 0; status != 200; {
		if status, _ = s.take(`{"account":"acme"}`, 1); time.Since(begin) > 20*time.Second {
			t.Fatalf("after the client's has ended: %d", status)
		}
	}
}

// A place that nobody finishes is free again after the limit's time-out.
func TestLeasedPlacesTimeOut(t *testing.T) {
	s := leasing(t, "limits:\n  - {name: places, algorithm: concurrency, max_in_flight: 1, timeout: 300ms, sharing: leased}\n")
	begin := time.Now()
	if status, _ := s.take(`{}`, 1); status != 200 {
		t.Fatalf("%d", status)
	}
	for {
		status, _ := s.take(`{}`, 1)
		passed := time.Since(begin)
		if status == 200 {
			if passed < 300*time.Millisecond {
				t.Errorf("free after %v", passed)
			}
			return
		}
		if passed > 20*time.Second {
			t.Fatal("not free after its time-out")
		}
		pause(t.Context())
	}
}

// Limits become leased, change, change their kind, and stop being leased, while requests
// come.
func TestReloadOfLeasedLimits(t *testing.T) {
	const head = "limits:\n  - {name: l, key: [account], "
	s := leasing(t, head+"rate: 5/hour}\n")
	reload := func(text string) {
		t.Helper()
		write(t, s.path, head+text+"}\n")
		if err := s.Reload(); err != nil {
			t.Fatal(err)
		}
	}
	fits := func(key string, n int) {
		t.Helper()
		for i := range n + 1 {
			if status, _ := s.take(`{"account":"`+key+`"}`, 1); (status == 200) != (i < n) {
				t.Errorf("request %d of %d: %d", i+1, n, status)
			}
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for ctx.Err() == nil {
				s.take(`{"account":"crowd"}`, 1) // which fails the test where no lease decided
			}
		})
	}
	defer func() {
		cancel()
		wg.Wait()
	}()
	fits("a", 5)
	reload("rate: 6/hour, sharing: leased")
	fits("b", 6)
	reload("rate: 9/hour, sharing: leased")
	fits("c", 9)
	if a := s.do(http.MethodGet, s.admin+"/v1/leases?limit=l", ""); !strings.Contains(a.body, `"instance": "server-`) {
		t.Errorf("it is not leased: %s", a.body)
	}
	reload("algorithm: concurrency, max_in_flight: 2, sharing: leased")
	fits("d", 2)
	reload("rate: 4/hour, sharing: leased")
	fits("e", 4)
	reload("rate: 7/hour")
	fits("f", 7)
}

// A stop answers what is under way by its leases, and leaves nothing lent: the next
// start lends at once what is left.
func TestStopGivesOwnLeasesBack(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ cost, want int }{{3, 200}, {2, 200}, {1, 429}} { // of 5 tokens
		s := start(t, "limits: [{name: l, rate: 5/hour, burst: 5, sharing: leased}]", stateIn(dir))
		if status, x := s.take(`{}`, c.cost); status != c.want {
			t.Fatalf("a cost of %d: %d %+v", c.cost, status, x)
		}
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
	}
}
