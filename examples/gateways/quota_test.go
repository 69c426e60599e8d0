//go:build linux

package gateways_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/etcdtest"
	"github.com/stint-io/stint/internal/gatewaytest"
)

// quotaLoad sends requests at a steady pace to whichever address is set, and counts what comes back.
type quotaLoad struct {
	t     testing.TB
	url   string
	field string // x-plan; "" = none

	mu              sync.Mutex
	allowed, denied int
}

// run sends n requests in the time that they take at a pace per second.
func (l *quotaLoad) run(n, perSecond int) (allowed, denied int) {
	l.t.Helper()
	l.allowed, l.denied = 0, 0
	var sending sync.WaitGroup
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	for range n {
		<-tick.C
		sending.Go(l.send)
	}
	sending.Wait()
	return l.allowed, l.denied
}

func (l *quotaLoad) send() {
	req, err := http.NewRequestWithContext(l.t.Context(), http.MethodGet, l.url, http.NoBody)
	if err != nil {
		l.t.Error(err)
		return
	}
	if l.field != "" {
		req.Header.Set("X-Plan", l.field)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		l.t.Error(err)
		return
	}
	defer res.Body.Close()
	if _, err := io.Copy(io.Discard, res.Body); err != nil {
		l.t.Error(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	switch res.StatusCode {
	case http.StatusOK:
		l.allowed++
	case http.StatusTooManyRequests:
		l.denied++
	default:
		l.t.Errorf("status %d", res.StatusCode)
	}
}

// TestEnvoyQuotas: two Envoys with the published file hold one limit together. A load that moves to the idle one is
// served before that one's first report, and after a service that was killed, or stopped, is back the limit is used.
func TestEnvoyQuotas(t *testing.T) {
	app := gatewaytest.StartApplication(t)
	s := startStint(t, filepath.Join("envoy", "quota-limits.yaml"))
	begin := time.Now()
	first := &quotaLoad{t: t, url: "http://" + gatewaytest.StartEnvoy(t, envoyBinary, "envoy", "quota.yaml", s, app) + "/api/x"}
	second := &quotaLoad{t: t, url: "http://" + gatewaytest.StartEnvoy(t, envoyBinary, "envoy", "quota.yaml", s, app) + "/api/x"}
	sum := 0
	use := func(what string, l *quotaLoad, n int, least float64) {
		t.Helper()
		from := time.Now()
		allowed, denied := l.run(n, 150)
		sum += allowed
		// A busy machine sends less than is wanted, and then the limit is not reached.
		want := min(100*time.Since(from).Seconds(), float64(n))
		t.Logf("%s: %d admitted, %d refused, of at most %.0f", what, allowed, denied, want)
		if float64(allowed) < least*want {
			t.Errorf("%s: %d admitted of %.0f, want at least %.2f", what, allowed, want, least)
		}
	}
	use("one Envoy", first, 900, 0.8)
	use("the load has moved", second, 600, 0.4)
	use("and stays there", second, 900, 0.8)
	if most := 100 + 100*time.Since(begin).Seconds(); float64(sum) > most {
		t.Errorf("%d admitted, want at most %.0f", sum, most)
	}
	s.Signal(t, syscall.SIGTERM)
	s.AwaitEnd(t)
	s.Restart(t)
	gatewaytest.AwaitReady(t, s.Admin)
	use("stopped and started", second, 900, 0.4) // half of the limit is the fallback of each
	s.Kill(t)
	s.Restart(t)
	use("killed and started", second, 1200, 0.4)
	use("after that", second, 900, 0.8)
}

// TestEnvoyQuotasOfFields: the matcher in the guide makes a bucket for each valid value of a field, and leaves others to
// the next matcher, so that nothing passes without a limit.
func TestEnvoyQuotasOfFields(t *testing.T) {
	app := gatewaytest.StartApplication(t)
	s := startStint(t, filepath.Join("envoy", "quota-limits.yaml"))
	page, err := os.ReadFile("../../docs/how-to/assign-quotas-to-envoy.md")
	if err != nil {
		t.Fatal(err)
	}
	_, matcher, ok := strings.Cut(string(page), "   ```\n   - predicate:")
	if matcher, _, _ = strings.Cut(matcher, "   ```\n"); !ok {
		t.Fatal("the guide has no matcher")
	}
	url := "http://" + gatewaytest.StartEnvoy(t, envoyBinary, gatewaytest.AddQuotaMatcher(t, "envoy", "   - predicate:"+matcher, 3), "quota.yaml", s, app) + "/api/x"
	for _, field := range []string{"gold", "", "gold\xff", strings.Repeat("g", 50_000)} {
		l := &quotaLoad{t: t, url: url, field: field}
		if allowed, denied := l.run(300, 300); allowed > 250 || denied == 0 {
			t.Errorf("%.10q: %d admitted and %d refused, of a limit of 100/s", field, allowed, denied)
		}
	}
}

// TestEnvoyQuotasUnderFire: where a bucket is any value that clients send, unchecked, clients that send empty, long, wrong
// and made-up values, twice or not to the end, cost an honest one nothing, and end no stream.
func TestEnvoyQuotasUnderFire(t *testing.T) {
	app := gatewaytest.StartApplication(t)
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	writeFile(t, limits, "limits:\n  - {name: plans, key: [plan], rate: 40/s, burst: 40, sharing: leased}\n")
	s := startStint(t, limits)
	const matcher = `- predicate:
    single_predicate:
      input: { name: path, typed_config: { "@type": type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput, header_name: ":path" } }
      value_match: { prefix: / }
  on_match:
    action:
      name: bucket
      typed_config:
        "@type": type.googleapis.com/envoy.extensions.filters.http.rate_limit_quota.v3.RateLimitQuotaBucketSettings
        bucket_id_builder: { bucket_id_builder: { plan: { custom_value: { name: plan, typed_config: { "@type": type.googleapis.com/envoy.type.matcher.v3.HttpRequestHeaderMatchInput, header_name: x-plan } } } } }
        reporting_interval: 5s
        no_assignment_behavior: { fallback_rate_limit: { blanket_rule: DENY_ALL } }
`
	listen := gatewaytest.StartEnvoy(t, envoyBinary, gatewaytest.AddQuotaMatcher(t, "envoy", matcher, 0), "quota.yaml", s, app)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	honest := &quotaLoad{t: t, url: "http://" + listen + "/x", field: "gold"}
	gatewaytest.Eventually(t, "the first assignment", func() bool { allowed, _ := honest.run(1, 100); return allowed == 1 })
	stop := make(chan struct{})
	var firing sync.WaitGroup
	defer firing.Wait()
	defer sync.OnceFunc(func() { close(stop) })()
	for i := range uint64(4) {
		firing.Go(func() {
			r := rand.New(rand.NewPCG(seed, i))
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				case <-time.After(20 * time.Millisecond):
				}
				fire(r, listen, n)
			}
		})
	}
	// Longer than two reports, of half its limit.
	allowed, denied := honest.run(250, 20)
	t.Logf("%d admitted, %d refused", allowed, denied)
	if denied > 5 {
		t.Errorf("%d of %d requests of an honest client were refused", denied, allowed+denied)
	}
	res, err := http.Get("http://" + s.Admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(text, []byte("stint_rlqs_streams 1\n")) || !bytes.Contains(text, []byte("stint_rlqs_wrong_reports_total 0\n")) {
		t.Errorf("a stream has ended:\n%s", text)
	}
}

// fire sends one request that means no good.
func fire(r *rand.Rand, addr string, n int) {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	value := ""
	switch r.IntN(5) {
	case 0: // empty
	case 1:
		value = strings.Repeat("a", 1<<r.IntN(16))
	case 2:
		value = "x\xff\xfe" + fmt.Sprint(r.IntN(3))
	case 3:
		value = fmt.Sprint("made-up-", r.Uint64())
	case 4:
		value = "gold, " + fmt.Sprint(n)
	}
	text := "GET /x HTTP/1.1\r\nHost: x\r\nX-Plan: " + value + "\r\n"
	if r.IntN(4) == 0 {
		text += "X-Plan: gold\r\n"
	}
	if r.IntN(4) == 0 {
		_, _ = conn.Write([]byte(text[:r.IntN(len(text))])) // and hangs up
		return
	}
	if _, err := conn.Write([]byte(text + "Connection: close\r\n\r\n")); err == nil {
		_, _ = io.Copy(io.Discard, conn)
	}
}

// timeline is what one Envoy answers, by tenths of a second.
type timeline struct {
	url   string
	begin time.Time

	mu              sync.Mutex
	allowed, denied []int
}

// run sends perSecond requests each second until ctx ends.
func (l *timeline) run(ctx context.Context, t *testing.T, perSecond int) {
	tick := time.NewTicker(time.Second / time.Duration(perSecond))
	defer tick.Stop()
	var sending sync.WaitGroup
	defer sending.Wait()
	for ctx.Err() == nil {
		<-tick.C
		sending.Go(func() {
			res, err := http.Get(l.url)
			if err != nil {
				t.Error(err)
				return
			}
			res.Body.Close()
			l.mu.Lock()
			defer l.mu.Unlock()
			for i := int(time.Since(l.begin) / (100 * time.Millisecond)); len(l.allowed) <= i; {
				l.allowed, l.denied = append(l.allowed, 0), append(l.denied, 0)
			}
			if res.StatusCode == http.StatusOK {
				l.allowed[len(l.allowed)-1]++
			} else {
				l.denied[len(l.denied)-1]++
			}
		})
	}
}

// admitted is how many were from one moment to another.
func (l *timeline) admitted(from, to time.Time) (n int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, a := range l.allowed {
		if at := l.begin.Add(time.Duration(i) * 100 * time.Millisecond); !at.Before(from) && at.Before(to) {
			n += a
		}
	}
	return n
}

// longestRefusal is for how long it refused everything, from a moment on.
func (l *timeline) longestRefusal(from time.Time) time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	longest, n := 0, 0
	for i := int(from.Sub(l.begin) / (100 * time.Millisecond)); i < len(l.allowed); i++ {
		switch {
		case l.allowed[i] > 0:
			n = 0
		case l.denied[i] > 0:
			n++
			longest = max(longest, n)
		}
	}
	return time.Duration(longest) * 100 * time.Millisecond
}

// metricOf is the value of a metric without labels.
func metricOf(t *testing.T, s *service, name string) float64 {
	t.Helper()
	res, err := http.Get("http://" + s.Admin + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			v, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
	}
	t.Fatalf("there is no %s", name)
	return 0
}

// TestEnvoyQuotasOfACluster: two Envoys with the published file, one asked for less than its half and one for more, and
// three members of a cluster. One that leads is killed, one that has a stream is killed, one that has a stream is stopped.
// The limit holds, it is used again after a report, and no Envoy refuses everything for long.
func TestEnvoyQuotasOfACluster(t *testing.T) {
	const (
		little, much = 30, 200 // requests per second, of a limit of 100/s
		report       = 5 * time.Second
	)
	app := gatewaytest.StartApplication(t)
	etcd := etcdtest.Start(t)
	var members []*service
	for i := range 3 {
		members = append(members, gatewaytest.StartService(t, stintBinary, filepath.Join("envoy", "quota-limits.yaml"),
			"--cluster", "etcd://"+etcd.Addr()+"/stint", "--node", fmt.Sprint("member-", i)))
	}
	for _, m := range members {
		gatewaytest.AwaitReady(t, m.Admin)
	}
	ctx, stop := context.WithCancel(t.Context())
	var loading sync.WaitGroup
	defer loading.Wait()
	defer stop()
	var envoys []*timeline
	for _, perSecond := range []int{little, much} {
		l := &timeline{url: "http://" + gatewaytest.StartEnvoy(t, envoyBinary, "envoy", "quota.yaml", members[0], app, members[1:]...) + "/api/x", begin: time.Now()}
		envoys = append(envoys, l)
		loading.Go(func() { l.run(ctx, t, perSecond) })
	}
	sum := func(from, to time.Time) int { return envoys[0].admitted(from, to) + envoys[1].admitted(from, to) }
	// A cluster that is new lends nothing until the leases of a former one would have ended.
	gatewaytest.Eventually(t, "requests to be admitted", func() bool { return sum(envoys[0].begin, time.Now()) > 0 })
	begin := time.Now()
	used := func(after string) {
		t.Helper()
		<-time.After(report + time.Second)
		from := time.Now()
		<-time.After(3 * time.Second)
		n, most := sum(from, time.Now()), 100*time.Since(from).Seconds()
		t.Logf("%s: %.2f of the limit", after, float64(n)/most)
		if float64(n) < 0.9*most {
			t.Errorf("%s: %d admitted of %.0f", after, n, most)
		}
	}
	with := func(metric string) *service {
		for _, m := range members {
			if metricOf(t, m, metric) > 0 {
				return m
			}
		}
		t.Fatalf("no member has %s", metric)
		return nil
	}
	used("at first")
	leader := with("stint_cluster_leads")
	leader.Kill(t)
	used("the leader is killed")
	leader.Restart(t)
	gatewaytest.AwaitReady(t, leader.Admin)
	m := with("stint_rlqs_streams")
	m.Kill(t)
	used("a member with a stream is killed")
	m.Restart(t)
	gatewaytest.AwaitReady(t, m.Admin)
	m = with("stint_rlqs_streams")
	m.Signal(t, syscall.SIGTERM)
	m.AwaitEnd(t)
	used("a member with a stream is stopped")
	// Each of the three times each Envoy may have the burst of the published fallback, half of the limit.
	if n, most := sum(begin, time.Now()), 100*time.Since(begin).Seconds()+100+3*2*50; float64(n) > most {
		t.Errorf("%d admitted, want at most %.0f", n, most)
	}
	for i, e := range envoys {
		longest := e.longestRefusal(begin)
		t.Logf("Envoy %d refused everything for %v at most", i+1, longest)
		if longest > 2*time.Second {
			t.Errorf("Envoy %d refused everything for %v", i+1, longest)
		}
	}
}
