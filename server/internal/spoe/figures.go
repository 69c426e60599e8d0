package spoe

import (
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
)

// outcome is how a query ended.
type outcome uint8

const (
	allowed outcome = iota
	refused
	failed
	outcomes
)

var outcomeNames = [outcomes]string{"allowed", "refused", "error"}

// figures are what metrics show.
type figures struct {
	connections, full, protocol, checks atomic.Uint64
	unauthenticated, denied             atomic.Uint64
	queries                             [outcomes]atomic.Uint64
}

var (
	openDesc     = prometheus.NewDesc("stint_spoe_connections", "Connections of HAProxy that are open.", nil, nil)
	takenDesc    = prometheus.NewDesc("stint_spoe_connections_total", "Connections of HAProxy that were taken, and those that were refused because there were too many.", []string{"outcome"}, nil)
	protocolDesc = prometheus.NewDesc("stint_spoe_protocol_errors_total", "Connections that were ended because what came was no frame of the protocol.", nil, nil)
	checksDesc   = prometheus.NewDesc("stint_spoe_health_checks_total", "Health checks that were answered.", nil, nil)
	queriesDesc  = prometheus.NewDesc("stint_spoe_queries_total", "Queries of HAProxy, and how they ended: allowed, refused, or error.", []string{"outcome"}, nil)
)

var _ prometheus.Collector = (*Server)(nil)

// Describe implements [prometheus.Collector].
func (s *Server) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{openDesc, takenDesc, protocolDesc, checksDesc, queriesDesc} {
		to <- d
	}
}

// Collect implements [prometheus.Collector].
func (s *Server) Collect(to chan<- prometheus.Metric) {
	open := s.conns.Open()
	f := &s.figures
	counter := func(d *prometheus.Desc, n *atomic.Uint64, labels ...string) {
		to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(n.Load()), labels...)
	}
	to <- prometheus.MustNewConstMetric(openDesc, prometheus.GaugeValue, float64(open))
	counter(takenDesc, &f.connections, "taken")
	counter(takenDesc, &f.full, "refused")
	counter(protocolDesc, &f.protocol)
	counter(checksDesc, &f.checks)
	for o := range f.queries {
		counter(queriesDesc, &f.queries[o], outcomeNames[o])
	}
}

// Refusals returns how many connections came without a proof of who opens them, and how many from somebody without the
// role.
func (s *Server) Refusals() (unauthenticated, denied uint64) {
	return s.figures.unauthenticated.Load(), s.figures.denied.Load()
}
