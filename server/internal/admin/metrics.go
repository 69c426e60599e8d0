package admin

import (
	"iter"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
)

// Figures are what the service looks like at one moment.
type Figures struct {
	Version string

	Limits         int     // configured
	ReloadOK       bool    // the last reload took effect
	ReloadTime     float64 // of the last that did, Unix seconds
	ReloadErrors   uint64
	ReloadAttempts uint64

	StoreKeys, StoreBytes, StoreMaxBytes, StoreOverflowed int64

	RLSOK, RLSOverLimit, RLSErrors uint64
}

// Collector turns the engine's tallies and the service's figures into metrics. A
// series has a limit's name in its labels and never a key: the number of series
// is that of the limits, whatever clients send.
type Collector struct {
	tallies func() iter.Seq[engine.Tally]
	figures func() Figures

	decisions, soft                         *prometheus.Desc
	build, limits                           *prometheus.Desc
	reloadOK, reloadTime, reloads, loadErrs *prometheus.Desc
	keys, bytes, maxBytes, overflowed       *prometheus.Desc
	rls                                     *prometheus.Desc
}

var _ prometheus.Collector = (*Collector)(nil)

// NewCollector returns a collector that reads from both functions at each scrape.
func NewCollector(tallies func() iter.Seq[engine.Tally], figures func() Figures) *Collector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("stint_"+name, help, labels, nil)
	}
	return &Collector{
		tallies: tallies, figures: figures,
		decisions:  desc("decisions_total", "What each limit answered: allowed, refused, or shadow_refused when it is not enforced, with the reason.", "limit", "outcome", "reason"),
		soft:       desc("soft_exceeded_total", "Requests admitted above the soft threshold of a limit.", "limit"),
		build:      desc("build_info", "Always 1; the label has the version.", "version"),
		limits:     desc("config_limits", "Limits in the configuration in force."),
		reloadOK:   desc("config_last_reload_successful", "1 if the last attempt to load the configuration took effect, 0 if the one before stays in force."),
		reloadTime: desc("config_last_reload_success_timestamp_seconds", "When the configuration in force was loaded."),
		reloads:    desc("config_reloads_total", "Attempts to load the configuration, the first included."),
		loadErrs:   desc("config_load_errors_total", "Attempts to load the configuration that failed."),
		keys:       desc("store_keys", "Keys with a state of their own."),
		bytes:      desc("store_bytes", "Bytes that the tables of counters occupy."),
		maxBytes:   desc("store_max_bytes", "The byte budget of the tables of counters."),
		overflowed: desc("store_overflow_takes_total", "Takes decided on an overflow bucket because the byte budget was full of live keys."),
		rls:        desc("rls_responses_total", "Answers of Envoy's rate limit service by overall code.", "code"),
	}
}

// Describe implements [prometheus.Collector].
func (c *Collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.decisions, c.soft, c.build, c.limits, c.reloadOK, c.reloadTime, c.reloads, c.loadErrs,
		c.keys, c.bytes, c.maxBytes, c.overflowed, c.rls,
	} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *Collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v uint64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, float64(v), labels...)
	}
	f := c.figures()
	gauge(c.build, 1, f.Version)
	gauge(c.limits, float64(f.Limits))
	ok := 0.0
	if f.ReloadOK {
		ok = 1
	}
	gauge(c.reloadOK, ok)
	gauge(c.reloadTime, f.ReloadTime)
	count(c.reloads, f.ReloadAttempts)
	count(c.loadErrs, f.ReloadErrors)
	gauge(c.keys, float64(f.StoreKeys))
	gauge(c.bytes, float64(f.StoreBytes))
	gauge(c.maxBytes, float64(f.StoreMaxBytes))
	count(c.overflowed, uint64(max(f.StoreOverflowed, 0)))
	count(c.rls, f.RLSOK, "OK")
	count(c.rls, f.RLSOverLimit, "OVER_LIMIT")
	count(c.rls, f.RLSErrors, "error")
	for t := range c.tallies() {
		count(c.decisions, t.Allowed, t.Limit, "allowed", "")
		if t.Soft > 0 {
			count(c.soft, t.Soft, t.Limit)
		}
		for i := range t.Refused {
			reason := limit.Reason(i).String()
			if n := t.Refused[i]; n > 0 {
				count(c.decisions, n, t.Limit, "refused", reason)
			}
			if n := t.ShadowRefused[i]; n > 0 {
				count(c.decisions, n, t.Limit, "shadow_refused", reason)
			}
		}
	}
}
