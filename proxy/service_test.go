package proxy_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/proxy"
)

// lines is a log that a test reads while it is written.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// eventually waits until ok says so.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); !ok(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatal("timed out waiting for ", what)
		}
	}
}

// ready is what /readyz says.
func (r *running) ready(t testing.TB) string {
	t.Helper()
	res, body := get(t, "http://"+r.AdminAddr().String()+"/readyz")
	return fmt.Sprint(res.StatusCode, " ", body)
}

// A question that the service refuses concerns one request: that is refused, whatever is chosen for a service that does
// not answer, and all others are decided. Clients that make such questions at random get past no limit.
func TestRefusedQuestionConcernsOneRequest(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 1))
	a, _ := service(t, "limits:\n  - {name: login, match: {path: /login}, rate: 11/day}\n  - {name: all, key: [ip], rate: 1000000/s}\n")
	u := upstream(t, func(http.ResponseWriter, *http.Request) {})
	var log lines
	o := proxy.Options{Upstreams: []string{u}, Service: proxy.Service{
		URL: "http://" + a.HTTP.String(), OnFailure: proxy.FailureAllow, Timeout: 5 * time.Second, Attributes: []string{"header:*"},
	}}
	o.Decide.Logger = slog.New(slog.NewTextHandler(&log, nil))
	p := start(t, "", o)
	eventually(t, "ready", func() bool { return p.ready(t) == "200 ready\n" })
	passed, refused := 0, 0
	for range 200 {
		r, err := http.NewRequest(http.MethodGet, p.url+"/login", nil)
		if err != nil {
			t.Fatal(err)
		}
		bad := random.IntN(2) == 0
		if bad { // the service takes names of 256 bytes
			r.Header.Set("X-"+strings.Repeat("a", 255+random.IntN(1000)), "1")
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		switch {
		case bad && (res.StatusCode != http.StatusBadRequest || res.Header.Get("Content-Type") != "application/problem+json"):
			t.Fatalf("a request that cannot be described: %d %v", res.StatusCode, res.Header)
		case bad:
			refused++
		case res.StatusCode == http.StatusOK:
			passed++
		}
	}
	if passed != 11 {
		t.Errorf("%d of 11 passed", passed)
	}
	m := p.metrics(t)
	for _, line := range []string{fmt.Sprintf(`stint_proxy_service_calls_total{outcome="refused"} %d`, refused), "stint_proxy_service_up 1", `outcome="failed"} 0`, `outcome="skipped"} 0`} {
		if !strings.Contains(m, line) {
			t.Errorf("no %s in the metrics", line)
		}
	}
	if n := strings.Count(log.String(), "the service refuses a question"); n != 1 {
		t.Errorf("refused questions are logged %d times, want once a minute:\n%s", n, &log)
	}
}

// Requests that wait in a queue of the service are not taken for a failure, however long: each is admitted in its turn,
// and other limits go on deciding.
func TestWaitingIsNotFailing(t *testing.T) {
	a, _ := service(t, "limits:\n"+
		"  - {name: slow, match: {path: /slow}, rate: 10/s, burst: 1, on_exceed: {queue: {max_wait: 20s}}}\n"+
		"  - {name: login, match: {path: /login}, rate: 2/day}\n")
	u := upstream(t, func(http.ResponseWriter, *http.Request) {})
	p := start(t, "", proxy.Options{Upstreams: []string{u}, Service: proxy.Service{
		URL: "http://" + a.HTTP.String(), OnFailure: proxy.FailureAllow, Timeout: time.Second,
	}})
	eventually(t, "ready", func() bool { return p.ready(t) == "200 ready\n" })
	const waiters = 20 // the last of whom waits for almost two seconds
	var all sync.WaitGroup
	var slow atomic.Int64
	begun := time.Now()
	for range waiters {
		all.Go(func() {
			if res, _ := get(t, p.url+"/slow"); res.StatusCode == http.StatusOK {
				slow.Add(1)
			}
		})
	}
	logins := 0
	for range 50 {
		if res, _ := get(t, p.url+"/login"); res.StatusCode == http.StatusOK {
			logins++
		}
	}
	all.Wait()
	if took := time.Since(begun); slow.Load() != waiters || took < (waiters-1)*time.Second/10 {
		t.Errorf("%d of %d passed a limit of 10/s in %v", slow.Load(), waiters, took)
	}
	if logins != 2 {
		t.Errorf("%d logins passed, want 2", logins)
	}
	if m := p.metrics(t); !strings.Contains(m, `outcome="failed"} 0`) || !strings.Contains(m, `outcome="skipped"} 0`) {
		t.Error("waits are counted as failures")
	}
}

// A service that ends while requests wait in its queue decides them no more: what was chosen for that does, at once.
func TestServiceEndsWhileRequestsWait(t *testing.T) {
	a, stop := service(t, "limits: [{name: slow, rate: 1/m, burst: 1, on_exceed: {queue: {max_wait: 60s}}}]\n")
	u := upstream(t, func(http.ResponseWriter, *http.Request) {})
	p := start(t, "", proxy.Options{Upstreams: []string{u}, Service: proxy.Service{URL: "http://" + a.HTTP.String(), OnFailure: proxy.FailureReject, Timeout: 2 * time.Second}})
	eventually(t, "ready", func() bool { return p.ready(t) == "200 ready\n" })
	if res, _ := get(t, p.url+"/"); res.StatusCode != http.StatusOK {
		t.Fatal(res.Status)
	}
	if p.ready(t) != "200 ready\n" {
		t.Error("a probe waits in the queue: ", p.ready(t))
	}
	done := make(chan int)
	go func() {
		res, _ := get(t, p.url+"/")
		done <- res.StatusCode
	}()
	eventually(t, "a request that waits", func() bool {
		_, body := get(t, "http://"+a.Admin.String()+"/metrics")
		return strings.Contains(body, `stint_queue_waiting{limit="slow"} 1`)
	})
	begun := time.Now()
	stop()
	if took := time.Since(begun); took > 30*time.Second {
		t.Errorf("it waited for %v", took)
	}
	if status := <-done; status != http.StatusServiceUnavailable && status != http.StatusTooManyRequests {
		t.Errorf("a request that waited when the service ended: %d", status)
	}
}

// A service that is dead, or was never there, is seen without a request: in /readyz, in the log and in the metric of the
// shipped alerts; and so is its return.
func TestServiceOutIsVisible(t *testing.T) {
	a, stop := service(t, "limits: [{name: all, rate: 2/hour}]\n")
	u := upstream(t, func(http.ResponseWriter, *http.Request) {})
	// A relay in front of the service, so that it can go and come back at one address.
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	l.Close()
	var log lines
	o := proxy.Options{Upstreams: []string{u}, Service: proxy.Service{URL: "http://" + address, OnFailure: proxy.FailureAllow, Timeout: time.Second}}
	o.Decide.Logger = slog.New(slog.NewTextHandler(&log, nil))
	p := start(t, "", o)
	eventually(t, "not ready", func() bool {
		return strings.HasPrefix(p.ready(t), "503 not ready: the service http://"+address+" was not reached yet: ") && strings.Contains(p.ready(t), "refused")
	})
	eventually(t, "a line of the log", func() bool { return strings.Contains(log.String(), `level=WARN msg="the service does not answer"`) })
	if m := p.metrics(t); !strings.Contains(m, "stint_proxy_service_up 0") {
		t.Error("the metric says that the service is up")
	}
	relayed := relay(t, address, a.HTTP.String())
	eventually(t, "ready", func() bool { return p.ready(t) == "200 ready\n" })
	if m := p.metrics(t); !strings.Contains(m, "stint_proxy_service_up 1") || !strings.Contains(log.String(), "the service answers again") {
		t.Error("that the service answers is in no metric, or not in the log")
	}
	stop()
	relayed()
	eventually(t, "degraded", func() bool {
		return p.ready(t) == "200 degraded: the service does not answer, decided by --on-service-failure: allow\n"
	})
	get(t, p.url)
	if m := p.metrics(t); !strings.Contains(m, `stint_unlimited_total{limit="",reason="no_service"} 1`) {
		t.Error("a request without the service is not in stint_unlimited_total")
	}
}

// relay passes connections on until the function is called.
func relay(t testing.TB, from, to string) (stop func()) {
	t.Helper()
	l, err := net.Listen("tcp", from)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var open []net.Conn
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			s, err := net.Dial("tcp", to)
			if err != nil {
				c.Close()
				continue
			}
			mu.Lock()
			open = append(open, c, s)
			mu.Unlock()
			pipe := func(a, b net.Conn) {
				buffer := make([]byte, 4096)
				for {
					n, err := a.Read(buffer)
					if n > 0 {
						_, _ = b.Write(buffer[:n])
					}
					if err != nil {
						a.Close()
						b.Close()
						return
					}
				}
			}
			go pipe(c, s)
			go pipe(s, c)
		}
	}()
	stop = func() {
		l.Close()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range open {
			c.Close()
		}
	}
	t.Cleanup(stop)
	return stop
}

// A token that the service does not know refuses requests, and is visible as a service that does not answer.
func TestServiceRefusesTheProxy(t *testing.T) {
	u := upstream(t, func(http.ResponseWriter, *http.Request) {})
	deny := upstream(t, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusUnauthorized) })
	p := start(t, "", proxy.Options{Upstreams: []string{u}, Service: proxy.Service{URL: deny, OnFailure: proxy.FailureReject, Timeout: time.Second}})
	eventually(t, "not ready", func() bool {
		return strings.Contains(p.ready(t), "503 not ready") && strings.Contains(p.ready(t), "401")
	})
	if res, _ := get(t, p.url); res.StatusCode != http.StatusServiceUnavailable {
		t.Error(res.Status)
	}
}

// A coordinator that is dead, or not named, is in /readyz, in the log and in metrics.
func TestCoordinatorOutIsVisible(t *testing.T) {
	const limits = "limits: [{name: all, rate: 100/s, sharing: leased, on_store_failure: allow}]\n"
	u := upstream(t, func(http.ResponseWriter, *http.Request) {})
	var log lines
	a, stop := service(t, limits)
	o := proxy.Options{Upstreams: []string{u}, Coordinators: []string{"127.0.0.1:1"}}
	o.Decide.Logger = slog.New(slog.NewTextHandler(&log, nil))
	dead := start(t, limits, o)
	eventually(t, "not ready", func() bool {
		return strings.HasPrefix(dead.ready(t), "503 not ready: no coordinator was reached yet: ")
	})
	eventually(t, "a line of the log", func() bool {
		return strings.Contains(log.String(), "no connection to the coordinator") && !strings.Contains(log.String(), "member that leads")
	})
	get(t, dead.url)
	if m := dead.metrics(t); !strings.Contains(m, "stint_proxy_coordinator_up 0") || !strings.Contains(m, `stint_unlimited_total{limit="all",reason="no_coordinator"} 1`) {
		t.Error("a dead coordinator is not in the metrics")
	}
	o.Coordinators = []string{a.GRPC.String()}
	p := start(t, limits, o)
	eventually(t, "ready", func() bool { return p.ready(t) == "200 ready\n" })
	if m := p.metrics(t); !strings.Contains(m, "stint_proxy_coordinator_up 1") {
		t.Error("a coordinator that answers is not in the metrics")
	}
	stop()
	eventually(t, "degraded", func() bool { return strings.HasPrefix(p.ready(t), "200 degraded: no coordinator answers: ") })
	alone := start(t, limits, proxy.Options{Upstreams: []string{u}})
	if got := alone.ready(t); !strings.HasPrefix(got, "200 degraded: limits with sharing: leased have no coordinator") {
		t.Error(got)
	}
	without := start(t, generous, proxy.Options{Upstreams: []string{u}, Coordinators: []string{"127.0.0.1:1"}})
	if got := without.ready(t); got != "200 ready\n" {
		t.Error("without a limit that is leased: ", got)
	}
}
