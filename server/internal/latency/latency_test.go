package latency

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
)

// counted returns for each door how many requests took at most bound seconds.
func counted(t *testing.T, h *Histograms, bound float64) map[string]uint64 {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(h.Collector()); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	found := map[string]uint64{}
	for _, f := range families {
		if f.GetName() != Name {
			t.Errorf("found the metric %s", f.GetName())
		}
		for _, m := range f.GetMetric() {
			for _, b := range m.GetHistogram().GetBucket() {
				if b.GetUpperBound() == bound {
					found[m.GetLabel()[0].GetValue()] = b.GetCumulativeCount()
				}
			}
		}
	}
	return found
}

// TestWalk: a request of 20 ms over HTTP, one that panics after 60 ms, one over gRPC, and one of a
// service that is not measured.
func TestWalk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New()
		take := h.HTTP("http", http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, "/panic") {
				<-time.After(60 * time.Millisecond)
				panic("a fault")
			}
			<-time.After(20 * time.Millisecond)
		}))
		take.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/v1/take", nil))
		func() {
			defer func() {
				if recover() == nil {
					t.Error("the panic did not come through")
				}
			}()
			take.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("POST", "/v1/panic", nil))
		}()
		unary := h.Unary(map[string]string{"a.B": "grpc"})
		for _, method := range []string{"/a.B/Take", "/grpc.health.v1.Health/Check", "", "/", "x"} {
			got, err := unary(t.Context(), "question", &grpc.UnaryServerInfo{FullMethod: method}, func(_ context.Context, req any) (any, error) {
				<-time.After(3 * time.Millisecond)
				return req, nil
			})
			if got != "question" || err != nil {
				t.Errorf("%q: got %v, %v", method, got, err)
			}
		}
		for bound, want := range map[float64]map[string]uint64{
			.0025: {"http": 0, "grpc": 0}, .005: {"http": 0, "grpc": 1}, .025: {"http": 1, "grpc": 1}, .05: {"http": 1, "grpc": 1}, .1: {"http": 2, "grpc": 1},
		} {
			got := counted(t, h, bound)
			if got["http"] != want["http"] || got["grpc"] != want["grpc"] || len(got) != 2 {
				t.Errorf("at most %v s: %v, want %v", bound, got, want)
			}
		}
	})
}

func BenchmarkHTTP(b *testing.B) {
	next := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	for name, h := range map[string]http.Handler{"bare": next, "measured": New().HTTP("http", next)} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				h.ServeHTTP(nil, nil)
			}
		})
	}
}
