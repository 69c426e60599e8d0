package client_test

import (
	"context"
	"fmt"
	"log"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promauto"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/limit"
)

// withMetrics counts in Prometheus metrics what a client's limits do.
func withMetrics(o client.Options, to prometheus.Registerer) client.Options {
	metrics := promauto.With(to)
	admitted := metrics.NewCounterVec(prometheus.CounterOpts{Name: "ratelimit_admitted_total", Help: "Cost admitted."}, []string{"limit"})
	refused := metrics.NewCounterVec(prometheus.CounterOpts{Name: "ratelimit_refused_total", Help: "Requests refused."}, []string{"limit", "reason"})
	leases := metrics.NewGaugeVec(prometheus.GaugeOpts{Name: "ratelimit_leases", Help: "Leases in each state."}, []string{"limit", "state"})
	connected := metrics.NewGauge(prometheus.GaugeOpts{Name: "ratelimit_connected", Help: "1 while there is a connection to the coordinator."})

	o.Hooks = limit.Hooks{
		OnAdmit:  func(name string, cost int64) { admitted.WithLabelValues(name).Add(float64(cost)) },
		OnRefuse: func(name string, _ int64, r limit.Reason) { refused.WithLabelValues(name, r.String()).Inc() },
	}
	o.OnLease = func(name string, was, is client.LeaseState) {
		leases.WithLabelValues(name, was.String()).Dec()
		leases.WithLabelValues(name, is.String()).Inc()
	}
	o.OnConnection = func(up bool) {
		connected.Set(0)
		if up {
			connected.Set(1)
		}
	}
	return o
}

// Hooks export what a client does to a metrics library of the program's choice.
func ExampleOptions_prometheus() {
	registry := prometheus.NewRegistry()
	c, err := client.New(withMetrics(client.Options{Address: "127.0.0.1:8081"}, registry))
	if err != nil {
		log.Fatal(err)
	}
	messages, err := c.Limit("messages.maxRate", client.LimitOptions{})
	if err != nil {
		log.Fatal(err)
	}
	messages.Allow() // nothing is leased before Run
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := c.Run(ctx); err != nil {
		log.Fatal(err)
	}
	for _, line := range series(registry) {
		fmt.Println(line)
	}
	// Output:
	// ratelimit_connected 0
	// ratelimit_refused_total{limit="messages.maxRate",reason="store_failure"} 1
}

// series returns what registry exports, one line for each series.
func series(registry *prometheus.Registry) (out []string) {
	families, err := registry.Gather()
	if err != nil {
		return []string{err.Error()}
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			var labels []string
			for _, l := range m.GetLabel() {
				labels = append(labels, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			line := f.GetName()
			if len(labels) > 0 {
				line += "{" + strings.Join(labels, ",") + "}"
			}
			out = append(out, fmt.Sprint(line, " ", m.GetCounter().GetValue()+m.GetGauge().GetValue()))
		}
	}
	return out
}
