package server

import (
	"errors"
	"net/http"
	"strings"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/stint-io/stint/internal/hits"
	"github.com/stint-io/stint/internal/statsd"
)

// This file is the statistics of Envoy's own service: by Prometheus and StatsD, under its names.

// prometheusAt divides Options.EnvoyPrometheus into address and path.
func prometheusAt(text string) (addr, path string) {
	addr, path, _ = strings.Cut(text, "/")
	return addr, "/" + path
}

// checkStatistics returns what is wrong with the options of statistics.
func (o *Options) checkStatistics() error {
	if o.StatsD == "" {
		if len(o.StatsDTags) > 0 || o.StatsDInterval != 0 {
			return errors.New("server: --statsd-tag and --statsd-interval mean nothing without --statsd")
		}
		return nil
	}
	return o.statsd(nil).Check()
}

func (o *Options) statsd(read func(func(string, uint64))) *statsd.Options {
	return &statsd.Options{URL: o.StatsD, Interval: o.StatsDInterval, Tags: o.StatsDTags, Logger: o.Logger, Read: read}
}

// serviceCounts are the counters of the whole service, by what StatsD calls them.
func (s *Server) serviceCounts(each func(name string, value uint64)) {
	s.config.mu.Lock()
	loads, errs := s.config.mu.attempts, s.config.mu.errors
	s.config.mu.Unlock()
	n := s.rls.Counts()
	away := n.Unavailable.Load()
	each("ratelimit.service.config_load_success", loads-min(loads, errs))
	each("ratelimit.service.config_load_error", errs)
	each("ratelimit.service.call.should_rate_limit.redis_error", away)
	each("ratelimit.service.call.should_rate_limit.service_error", n.Errors.Load()-min(n.Errors.Load(), away))
	each("ratelimit.service.global_shadow_mode", n.Shadowed.Load())
	each("ratelimit_server.ShouldRateLimit.total_requests", n.OK.Load()+n.OverLimit.Load()+n.Errors.Load())
}

// statistics are all counters, by what StatsD calls them.
func (s *Server) statistics(each func(name string, value uint64)) {
	s.serviceCounts(each)
	s.hits.Read(func(name string, c hits.Counts) {
		for _, of := range countsOf(c) {
			each("ratelimit.service.rate_limit."+name+"."+of.name, of.value)
		}
	})
}

type count struct {
	name  string
	value uint64
}

func countsOf(c hits.Counts) [5]count {
	return [5]count{{"total_hits", c.Total}, {"over_limit", c.Over}, {"near_limit", c.Near}, {"within_limit", c.Within}, {"shadow_mode", c.Shadow}}
}

// hitCollector shows them to Prometheus, under the names and labels that the service's own mapping gives them: the
// domain and the first two keys. Rules below are added up.
type hitCollector struct{ s *Server }

// Describe implements [prometheus.Collector]: the labels are not the same for all, so nothing is said beforehand.
func (hitCollector) Describe(chan<- *prometheus.Desc) {}

// Collect implements [prometheus.Collector].
func (h hitCollector) Collect(out chan<- prometheus.Metric) {
	const prefix = "ratelimit_service_"
	counter := func(name string, value uint64, labels, values []string) {
		if value > 0 { // as there, where a counter appears when it counts
			out <- prometheus.MustNewConstMetric(prometheus.NewDesc(prefix+name, "As Envoy's rate limit service has it.", labels, nil), prometheus.CounterValue, float64(value), values...)
		}
	}
	type place [3]string
	sums := map[place]hits.Counts{}
	var order []place
	h.s.hits.Read(func(name string, c hits.Counts) {
		parts := strings.SplitN(name, ".", 4)
		var at place
		copy(at[:], parts[:min(len(parts), 3)])
		was, known := sums[at]
		if !known {
			order = append(order, at)
		}
		sums[at] = hits.Counts{Total: was.Total + c.Total, Over: was.Over + c.Over, Near: was.Near + c.Near, Within: was.Within + c.Within, Shadow: was.Shadow + c.Shadow}
	})
	for _, at := range order {
		labels := []string{"domain", "key1", "key2"}
		if at[2] == "" {
			labels = labels[:2]
		}
		for _, of := range countsOf(sums[at]) {
			counter("rate_limit_"+of.name, of.value, labels, at[:len(labels)])
		}
	}
	h.s.serviceCounts(func(name string, value uint64) {
		switch short := name[strings.LastIndexByte(name, '.')+1:]; short {
		case "redis_error", "service_error":
			counter("should_rate_limit_error", value, []string{"err_type"}, []string{short})
		case "total_requests":
			counter(short, value, []string{"grpc_method"}, []string{"ShouldRateLimit"})
		default:
			counter(short, value, nil, nil)
		}
	})
}

// prometheusPage shows them and nothing else.
func (s *Server) prometheusPage(path string) http.Handler {
	registry := prometheus.NewRegistry()
	registry.MustRegister(hitCollector{s}) // describes nothing, so that it cannot clash
	mux := http.NewServeMux()
	mux.Handle("GET "+path, promhttp.HandlerFor(registry, promhttp.HandlerOpts{MaxRequestsInFlight: 4}))
	return mux
}
