package admin

import "github.com/prometheus/client_golang/prometheus"

// Config is how a configuration stands that has versions.
type Config struct {
	Version   uint64 // in force
	Refused   uint64 // the latest, where this server cannot enforce it; 0 = it does
	BackendUp bool
}

// configDescs describe the metrics of versions. They are sent where there are some.
type configDescs struct {
	version, refused, up *prometheus.Desc
}

func newConfigDescs(desc func(name, help string, labels ...string) *prometheus.Desc) configDescs {
	return configDescs{
		version: desc("config_version", "Version of the configuration in force."),
		refused: desc("config_refused_version", "Version that this server refused, so that the one before stays in force; 0 = none."),
		up:      desc("config_backend_up", "1 if the backend of the configuration answers, 0 if it does not."),
	}
}

func (d *configDescs) describe(ch chan<- *prometheus.Desc) {
	for _, one := range []*prometheus.Desc{d.version, d.refused, d.up} {
		ch <- one
	}
}

func (d *configDescs) collect(to metrics, c *Config) {
	if c == nil {
		return
	}
	to.gauge(d.version, float64(c.Version))
	to.gauge(d.refused, float64(c.Refused))
	to.truth(d.up, c.BackendUp)
}
