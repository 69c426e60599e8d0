package server

import (
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc"

	"github.com/stint-io/stint/server/internal/latency"
	"github.com/stint-io/stint/store"
)

// Instrument watches requests for decisions and metrics, as for traces. What it does is in the way of each
// request: it must not wait. It is safe for concurrent use.
type Instrument interface {
	// HTTP wraps the handler of a door, such as "http" or "gateway".
	HTTP(door string, next http.Handler) http.Handler
	// Unary is in front of all calls over gRPC; doors has those of the services that decide, by their full names.
	Unary(doors map[string]string) grpc.UnaryServerInterceptor
	// Take returns what is called before the store is asked for a decision. What that returns is called with the answer.
	// Either may be nil.
	Take() func(ctx context.Context) (answered func(charges []store.Charge, allowed bool, err error))
	// Metrics is called once, with all metrics of the service.
	Metrics(all prometheus.Gatherer)
	// Collectors are metrics of its own.
	Collectors() []prometheus.Collector
}

// unwatched is the Instrument of a server that has none.
type unwatched struct{}

func (unwatched) HTTP(_ string, next http.Handler) http.Handler { return next }

func (unwatched) Unary(map[string]string) grpc.UnaryServerInterceptor { return nil }

func (unwatched) Take() func(context.Context) func([]store.Charge, bool, error) { return nil }

func (unwatched) Metrics(prometheus.Gatherer) {}

func (unwatched) Collectors() []prometheus.Collector { return nil }

// watchGRPC measures calls, and has an Instrument watch them.
func watchGRPC(taken *latency.Histograms, by Instrument) []grpc.ServerOption {
	measured := grpc.ChainUnaryInterceptor(taken.Unary(grpcDoors))
	if unary := by.Unary(grpcDoors); unary != nil {
		return []grpc.ServerOption{measured, grpc.ChainUnaryInterceptor(unary)}
	}
	return []grpc.ServerOption{measured}
}

// watchHTTP returns histograms of latency, and what has the requests of a door measured by them and watched
// by an Instrument.
func watchHTTP(by Instrument) (taken *latency.Histograms, watch func(door string, next http.Handler) http.Handler) {
	taken = latency.New()
	return taken, func(door string, next http.Handler) http.Handler { return taken.HTTP(door, by.HTTP(door, next)) }
}
