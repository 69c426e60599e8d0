package envoyenv

import (
	"net"
	"strings"
)

// statistics says where counts of hits are shown and sent.
func (r *reader) statistics() {
	host, port := r.text("STATSD_HOST", "localhost"), r.port("STATSD_PORT", "8125")
	protocol := strings.ToLower(r.text("STATSD_PROTOCOL", "tcp"))
	tags := r.pairs("EXTRA_TAGS")
	interval := r.duration("STATS_FLUSH_INTERVAL")
	addr, path := r.text("PROMETHEUS_ADDR", ":9090"), r.text("PROMETHEUS_PATH", "/metrics")
	prometheus, dog := r.truth("USE_PROMETHEUS", false), r.truth("USE_DOG_STATSD", false)
	// The image sends to StatsD unless it is told not to.
	statsd := r.truth("USE_STATSD", !prometheus && !dog)
	if r.truth("DISABLE_STATS", false) {
		statsd, prometheus, dog = false, false, false
	}
	r.refused("USE_DOG_STATSD_MOGRIFIERS", "names are not rewritten")
	if r.values["PROMETHEUS_MAPPER_YAML"] != "" && prometheus {
		r.note("PROMETHEUS_MAPPER_YAML is not honoured: the names and labels are those of the image's own mapping, which Envoy Gateway's is as well")
	}
	r.used["PROMETHEUS_MAPPER_YAML"] = true
	if r.truth("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", false) {
		r.note("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS is not honoured: times are in seconds")
	}
	if protocol != "tcp" && protocol != "udp" {
		r.bad("STATSD_PROTOCOL is %q, want tcp or udp", protocol)
	}
	if !strings.HasPrefix(path, "/") {
		r.bad("PROMETHEUS_PATH is %q, want a path that begins with /, such as /metrics", path)
	}
	if _, _, err := net.SplitHostPort(addr); err != nil {
		r.bad("PROMETHEUS_ADDR is %q, want an address such as :9090", addr)
	}
	if prometheus {
		r.flag("envoy-prometheus", addr+path, "PROMETHEUS_ADDR and PROMETHEUS_PATH")
	}
	scheme := protocol
	if dog {
		scheme = "dogstatsd"
	}
	if !statsd && !dog {
		return
	}
	r.flag("statsd", scheme+"://"+net.JoinHostPort(host, port), "STATSD_HOST, STATSD_PORT and STATSD_PROTOCOL")
	r.flag("statsd-interval", interval, "STATS_FLUSH_INTERVAL")
	for _, t := range tags {
		r.flag("statsd-tag", t[0]+"="+t[1], "EXTRA_TAGS")
	}
}
