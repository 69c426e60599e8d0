package rlqs

import "github.com/prometheus/client_golang/prometheus"

// The metrics of a Service.
var (
	streamsDesc  = prometheus.NewDesc("stint_rlqs_streams", "Envoys that hold a stream of quotas.", nil, nil)
	bucketsDesc  = prometheus.NewDesc("stint_rlqs_buckets", "Buckets of all Envoys.", nil, nil)
	requestsDesc = prometheus.NewDesc("stint_rlqs_requests_total", "Requests that Envoys reported, by what they decided.", []string{"decision"}, nil)
	assignedDesc = prometheus.NewDesc("stint_rlqs_assignments_total", "Assignments that were sent.", nil, nil)
	changedDesc  = prometheus.NewDesc("stint_rlqs_changes_total", "Assignments that differed from the one before.", nil, nil)
	overDesc     = prometheus.NewDesc("stint_rlqs_over_total", "Requests that Envoys admitted above what their leases had; they are paid back.", nil, nil)
	abandonDesc  = prometheus.NewDesc("stint_rlqs_abandoned_total", "Buckets that were abandoned after a silence.", nil, nil)
	nothingDesc  = prometheus.NewDesc("stint_rlqs_unassigned_total", "Buckets that got no assignment, by why.", []string{"reason"}, nil)
	turnedDesc   = prometheus.NewDesc("stint_rlqs_refused_streams_total", "Streams that were refused because there were too many.", nil, nil)
	wrongDesc    = prometheus.NewDesc("stint_rlqs_wrong_reports_total", "Reports that were refused.", nil, nil)
)

// Describe implements [prometheus.Collector].
func (s *Service) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{streamsDesc, bucketsDesc, requestsDesc, assignedDesc, changedDesc, overDesc, abandonDesc, nothingDesc, turnedDesc, wrongDesc} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (s *Service) Collect(ch chan<- prometheus.Metric) {
	s.mu.Lock()
	sum, streams, buckets, refused, wrong, long, turned := s.ended, 0, int64(0), s.refused, s.wrong, s.long, s.turned
	for r := range s.sessions {
		if st := r.stats.Load(); st != nil {
			sum.add(*st)
		}
		if n := r.buckets.Load(); n > 0 {
			streams, buckets = streams+1, buckets+n
		}
	}
	s.mu.Unlock()
	send := func(d *prometheus.Desc, kind prometheus.ValueType, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, kind, v, labels...)
	}
	send(streamsDesc, prometheus.GaugeValue, float64(streams))
	send(bucketsDesc, prometheus.GaugeValue, float64(buckets))
	send(requestsDesc, prometheus.CounterValue, float64(sum.Allowed), "allowed")
	send(requestsDesc, prometheus.CounterValue, float64(sum.Denied), "denied")
	send(assignedDesc, prometheus.CounterValue, float64(sum.Assigned))
	send(changedDesc, prometheus.CounterValue, float64(sum.Changed))
	send(overDesc, prometheus.CounterValue, float64(sum.Over))
	send(abandonDesc, prometheus.CounterValue, float64(sum.Abandoned))
	send(nothingDesc, prometheus.CounterValue, float64(sum.Unleased), "not_leased")
	send(nothingDesc, prometheus.CounterValue, float64(sum.Crowded), "too_many")
	send(nothingDesc, prometheus.CounterValue, float64(long), "too_long")
	send(nothingDesc, prometheus.CounterValue, float64(wrong), "wrong")
	send(turnedDesc, prometheus.CounterValue, float64(turned))
	send(wrongDesc, prometheus.CounterValue, float64(refused))
}
