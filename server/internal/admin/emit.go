package admin

import "github.com/prometheus/client_golang/prometheus"

// metrics is where a scrape sends its metrics.
type metrics chan<- prometheus.Metric

func (to metrics) gauge(d *prometheus.Desc, v float64, labels ...string) {
	to <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
}

func (to metrics) count(d *prometheus.Desc, v uint64, labels ...string) {
	to <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
}

// truth is a gauge of 1 or 0.
func (to metrics) truth(d *prometheus.Desc, v bool, labels ...string) {
	var n float64
	if v {
		n = 1
	}
	to.gauge(d, n, labels...)
}
