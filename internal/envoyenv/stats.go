package envoyenv

// statistics are shown on the admin port only.
func (r *reader) statistics() {
	for _, name := range []string{
		"USE_STATSD", "STATSD_HOST", "STATSD_PORT", "STATSD_PROTOCOL", "EXTRA_TAGS", "STATS_FLUSH_INTERVAL", "USE_DOG_STATSD", "USE_DOG_STATSD_MOGRIFIERS", "DISABLE_STATS",
		"USE_PROMETHEUS", "PROMETHEUS_ADDR", "PROMETHEUS_PATH", "PROMETHEUS_MAPPER_YAML", "PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS",
	} {
		if r.text(name, "") != "false" {
			r.refused(name, "metrics are on the admin port")
		}
	}
}
