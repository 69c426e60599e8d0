package admin

import (
	"context"
	"fmt"
	"iter"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/tally"
	"github.com/stint-io/stint/limit"
)

// A limit has a series for each answer that it gave, from the first one on, and none for
// those that it never gave: ten thousand limits make no more series than they have answers.
func TestSeriesBeginWithTheFirstCount(t *testing.T) {
	once := tally.Tally{Limit: "once", Soft: 1, NearLimit: 1}
	for i := range once.Unlimited {
		once.Unlimited[i] = 1
	}
	for i := range once.Refused {
		once.Refused[i], once.ShadowRefused[i] = 1, 1
	}
	tallies := func() iter.Seq[tally.Tally] { return slices.Values([]tally.Tally{once, {Limit: "never"}}) }
	want := []string{
		`stint_decisions_total{limit="once",outcome="allowed",reason=""} 0`, `stint_decisions_total{limit="never",outcome="allowed",reason=""} 0`,
		`stint_soft_exceeded_total{limit="once"} 1`, `stint_rls_near_limit_hits_total{limit="once"} 1`,
	}
	for i := range once.Unlimited {
		want = append(want, fmt.Sprintf(`stint_unlimited_total{limit="once",reason="%v"} 1`, engine.Unlimited(i)))
	}
	for i := range once.Refused {
		for _, outcome := range []string{"refused", "shadow_refused"} {
			want = append(want, fmt.Sprintf(`stint_decisions_total{limit="once",outcome="%s",reason="%v"} 1`, outcome, limit.Reason(i)))
		}
	}
	var got []string
	for _, line := range scrape(t, NewCollector(tallies, func() Figures { return Figures{} })) {
		if strings.Contains(line, `limit="`) {
			got = append(got, line)
		}
	}
	slices.Sort(want)
	if slices.Sort(got); !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

// slow is a collector that takes until it is released.
type slow struct{ released chan struct{} }

func (slow) Describe(chan<- *prometheus.Desc) {}

func (s slow) Collect(chan<- prometheus.Metric) { <-s.released }

// Four scrapes of a page are served at once; a fifth is told to come back, and makes nobody
// wait. The pages do not count together.
func TestScrapesAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		released := make(chan struct{})
		registry := prometheus.NewRegistry()
		registry.MustRegister(slow{released})
		h := New(Options{Metrics: registry, Instances: registry})
		codes := map[string]chan int{"/metrics": make(chan int, 5), "/metrics/instances": make(chan int, 5)}
		for page, answered := range codes {
			for range 5 {
				go func() {
					w := httptest.NewRecorder()
					h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost"+page, nil))
					answered <- w.Code
				}()
			}
		}
		synctest.Wait()
		for page, answered := range codes {
			if n := len(answered); n != 1 || <-answered != http.StatusServiceUnavailable {
				t.Errorf("%s: %d of 5 are answered at once", page, n)
			}
		}
		close(released)
		for page, answered := range codes {
			for range 4 {
				if code := <-answered; code != http.StatusOK {
					t.Errorf("%s: %d", page, code)
				}
			}
		}
	})
}

// The rules in Envoy's format are shown where there is such a page, to those who have the
// token.
func TestRulesAreServed(t *testing.T) {
	p := newPort()
	want(t, p.ask("GET", "/rlconfig"), 404, "")
	p.o.RLConfig = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "edge.user") })
	want(t, p.ask("GET", "/rlconfig"), 200, "edge.user")
	want(t, p.ask("POST", "/rlconfig"), 405, "")
	p.o.Token = "open sesame"
	want(t, p.ask("GET", "/rlconfig"), 401, "token")
	want(t, p.ask("GET", "/rlconfig", "Authorization", "Bearer open sesame"), 200, "edge.user")
}

// The page of instances, too, is for those who have the token.
func TestInstancesAreGuarded(t *testing.T) {
	p := newPort()
	p.o.Instances, p.o.Token = prometheus.NewPedanticRegistry(), "open sesame"
	want(t, p.ask("GET", "/metrics/instances"), 401, "token")
	want(t, p.ask("GET", "/metrics/instances", "Authorization", "Bearer open sesame"), 200, "")
	want(t, p.ask("POST", "/metrics/instances", "Authorization", "Bearer open sesame"), 405, "")
}

// Of a name that is allowed the case does not matter, nor the dot at its end; an address
// stands for itself, with brackets or without.
func TestAllowedHosts(t *testing.T) {
	if testing.Short() {
		t.Skip("one goroutine: nothing for the race detector")
	}
	for host, allowed := range map[string]bool{
		"": true, "localhost": true, "localhost.": true, "LocalHost.:8082": true, "a.b": true, "A.B.:1": true, "a.b..": false,
		"[::1]:1": true, "[::1]": true, "::1": true, "fe80::1%eth0": true, "c": false, "127.0.0.1.": true, "a.b:": true, ".": false, ":80": false,
	} {
		if got := HostAllowed(host, []string{"x", "A.b"}); got != allowed {
			t.Errorf("%q is allowed: %v", host, got)
		}
	}
}

// The sizes that are counted apart end with 256 requests: what is above is in the last bucket.
func TestLargestBatches(t *testing.T) {
	f := Figures{Shared: &SharedStore{Up: true, BatchSizes: [10]uint64{1, 1, 1, 1, 1, 1, 1, 1, 1, 5}}}
	none := func() iter.Seq[tally.Tally] { return slices.Values([]tally.Tally(nil)) }
	var buckets []string
	for _, line := range scrape(t, NewCollector(none, func() Figures { return f })) {
		if size, ok := strings.CutPrefix(line, "stint_store_batch_size_bucket"); ok {
			buckets = append(buckets, size)
		}
	}
	if len(buckets) != 10 || buckets[8] != `{le="256"} 9` || buckets[9] != `{le="+Inf"} 14` {
		t.Errorf("%q", buckets)
	}
}

// Profiles that take time end when whoever asked has gone.
func TestProfilesThatTakeTime(t *testing.T) {
	p := newPort()
	p.o.Profiles = true
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for _, path := range []string{"/debug/pprof/profile?seconds=600", "/debug/pprof/trace?seconds=600"} {
		w := httptest.NewRecorder()
		New(p.o).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil).WithContext(gone))
		if w.Code != http.StatusOK || w.Header().Get("Content-Type") != "application/octet-stream" {
			t.Errorf("%s: %d %v", path, w.Code, w.Header())
		}
	}
}
