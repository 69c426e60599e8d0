// Package latency measures how long requests take that ask for a decision, from the call of
// their handler to its return. It is a histogram for each door of the service.
//
// It does not see a connection or the reading of a header, and it takes a request that waits in
// a queue of a limit as what it is: slow. It decides nothing.
package latency

import (
	"context"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"
)

// Name is that of the metric.
const Name = "stint_request_duration_seconds"

// buckets are the upper bounds in seconds. A decision in memory takes some ten microseconds with
// its request, one in Redis a round trip, and none waits for Redis longer than 50 ms.
var buckets = []float64{.00005, .0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1, 5}

// Histograms are those of all doors. It is safe for concurrent use.
type Histograms struct{ all *prometheus.HistogramVec }

// New returns histograms without a door.
func New() *Histograms {
	return &Histograms{prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name:    Name,
		Help:    "How long requests for decisions took, by the door that they came in by; the time in queues of limits is in it.",
		Buckets: buckets,
	}, []string{"door"})}
}

// Collector is what a registry reads.
func (h *Histograms) Collector() prometheus.Collector { return h.all }

// HTTP measures what next takes, by the door.
func (h *Histograms) HTTP(door string, next http.Handler) http.Handler {
	seconds := h.all.WithLabelValues(door)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		begun := time.Now()
		// A panic is an answer, too.
		defer func() { seconds.Observe(time.Since(begun).Seconds()) }()
		next.ServeHTTP(w, r)
	})
}

// Unary measures calls over gRPC by the door of their service; doors has each service by its full
// name. What is not in it, such as health, is not measured.
func (h *Histograms) Unary(doors map[string]string) grpc.UnaryServerInterceptor {
	seconds := make(map[string]prometheus.Observer, len(doors))
	for service, door := range doors {
		seconds[service] = h.all.WithLabelValues(door)
	}
	return func(ctx context.Context, req any, info *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		to := seconds[service(info.FullMethod)]
		if to == nil {
			return next(ctx, req)
		}
		begun := time.Now()
		defer func() { to.Observe(time.Since(begun).Seconds()) }()
		return next(ctx, req)
	}
}

// service is "package.Service" of "/package.Service/Method".
func service(method string) string {
	for i := len(method) - 1; i > 0; i-- {
		if method[i] == '/' {
			return method[1:i]
		}
	}
	return ""
}
