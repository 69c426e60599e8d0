package admin

import (
	"iter"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/stint-io/stint/internal/tally"
)

// The sizes of calls are a histogram, and nothing of a shared store is shown where
// there is none.
func TestMetricsOfASharedStore(t *testing.T) {
	f := Figures{NotReturned: 2}
	tallies := func() iter.Seq[tally.Tally] { return func(func(tally.Tally) bool) {} }
	c := NewCollector(tallies, func() Figures { return f })
	for _, line := range scrape(t, c) {
		if strings.HasPrefix(line, "stint_store_up") || strings.Contains(line, "batch") {
			t.Errorf("there is no shared store: %s", line)
		}
	}
	f.Shared = &SharedStore{Called: 300, BatchSizes: [10]uint64{3, 2, 0, 1, 0, 0, 0, 0, 0, 1}}
	lines := scrape(t, c)
	for _, want := range strings.Split(strings.TrimSpace(`
stint_store_batch_size_bucket{le="1"} 3
stint_store_batch_size_bucket{le="2"} 5
stint_store_batch_size_bucket{le="4"} 5
stint_store_batch_size_bucket{le="8"} 6
stint_store_batch_size_bucket{le="128"} 6
stint_store_batch_size_bucket{le="256"} 6
stint_store_batch_size_bucket{le="+Inf"} 7
stint_store_batch_size_sum 300
stint_store_batch_size_count 7
stint_store_not_returned_total 2
stint_store_up 0`), "\n") {
		if !slices.Contains(lines, want) {
			t.Errorf("no %s in\n%s", want, strings.Join(lines, "\n"))
		}
	}
}

// scrape returns the lines that Prometheus would read.
func scrape(t *testing.T, c prometheus.Collector) []string {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(c); err != nil {
		t.Fatal(err)
	}
	rec := httptest.NewRecorder()
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(rec, httptest.NewRequest("GET", "/metrics", nil))
	if rec.Code != 200 {
		t.Fatalf("%d %s", rec.Code, rec.Body)
	}
	return strings.Split(rec.Body.String(), "\n")
}
