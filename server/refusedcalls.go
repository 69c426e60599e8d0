package server

import (
	"log/slog"
	"net"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stint-io/stint/internal/grpcserver"
	"github.com/stint-io/stint/internal/lograte"
)

// refusedCalls counts the calls over gRPC that are refused for their form, and logs one of each kind a minute. Proxies
// that fail open let such requests pass, so nothing else shows them.
type refusedCalls struct {
	log    *slog.Logger
	counts [grpcserver.Reasons]atomic.Uint64
	logged [grpcserver.Reasons]lograte.Minute
}

func (r *refusedCalls) note(method string, peer net.Addr, why grpcserver.Reason, err error) {
	defer r.counts[why].Add(1)
	if !r.logged[why].Allow(time.Now()) {
		return
	}
	text := err.Error()
	from := ""
	if peer != nil {
		from = peer.String()
	}
	r.log.Warn("a call over gRPC was refused for its form, and a proxy that fails open lets such requests pass: others in the next minute are counted only, in stint_grpc_refused_total",
		"reason", why.String(), "method", method[:min(len(method), 100)], "peer", from, "error", text[:min(len(text), 300)])
}

var refusedCallsDesc = prometheus.NewDesc("stint_grpc_refused_total", "Calls over gRPC that were refused for their form: too large, malformed, or by whom they were sent.", []string{"reason"}, nil)

// Describe implements [prometheus.Collector].
func (r *refusedCalls) Describe(to chan<- *prometheus.Desc) { to <- refusedCallsDesc }

// Collect implements [prometheus.Collector].
func (r *refusedCalls) Collect(to chan<- prometheus.Metric) {
	for why := range grpcserver.Reasons {
		to <- prometheus.MustNewConstMetric(refusedCallsDesc, prometheus.CounterValue, float64(r.counts[why].Load()), why.String())
	}
}
