package server

import (
	"net"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stint-io/stint/internal/connlimit"
)

// connections are the bounds of the listeners that do not keep their own connections, by name.
type connections map[string]*connlimit.Conns

func newConnections() connections {
	c := connections{}
	for _, name := range []string{"http", "grpc", "admin", "pages"} {
		c[name] = connlimit.New(connlimit.Limit)
	}
	return c
}

// bound returns l with the bound of that name, or l if there is none.
func (c connections) bound(name string, l net.Listener) net.Listener {
	if conns := c[name]; conns != nil {
		return conns.Listener(l)
	}
	return l
}

var refusedConnectionsDesc = prometheus.NewDesc("stint_refused_connections_total", "Connections that were closed because their source, or all together, had too many.", []string{"listener"}, nil)

// Describe implements [prometheus.Collector].
func (c connections) Describe(to chan<- *prometheus.Desc) { to <- refusedConnectionsDesc }

// Collect implements [prometheus.Collector].
func (c connections) Collect(to chan<- prometheus.Metric) {
	for name, conns := range c {
		to <- prometheus.MustNewConstMetric(refusedConnectionsDesc, prometheus.CounterValue, float64(conns.Refused()), name)
	}
}
