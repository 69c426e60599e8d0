package admin

import "github.com/prometheus/client_golang/prometheus"

// Leases are what the coordinator of leased limits looks like.
type Leases struct {
	Streams, Instances, Resources int
	Recovering                    bool
	Reports, Grants               uint64
	StreamsRefused                uint64
	Expired                       uint64 // instances whose leases ran out
	Failures                      uint64 // of the coordinator
	Refused                       map[string]uint64
	Limits                        []LeasedLimit
	Usage                         []LeaseUsage
}

// LeaseUsage is what instances of other processes decided by their leases of a limit, as
// sums of costs.
type LeaseUsage struct {
	Limit             string
	Admitted, Refused uint64
}

// LeasedLimit are sums over the keys of one limit.
type LeasedLimit struct {
	Limit                        string
	Capacity, Lent, Wanted, Free float64 // tokens per second, or places
	Saturated                    bool
	SaturatedSeconds             float64
	Suppressed                   bool    // shared by suppression
	Reject                       float64 // the largest fraction of a key that is refused
}

// leaseDescs describe the metrics of leased limits. They are sent only where there is
// one.
type leaseDescs struct {
	streams, instances, resources, recovering             *prometheus.Desc
	reports, grants, refused, rejected, expired, failures *prometheus.Desc
	capacity, lent, wanted, free, saturated, seconds      *prometheus.Desc
	reject, usage                                         *prometheus.Desc
}

func (d *leaseDescs) describe(ch chan<- *prometheus.Desc) {
	for _, one := range []*prometheus.Desc{
		d.streams, d.instances, d.resources, d.recovering, d.reports, d.grants, d.refused, d.rejected, d.expired, d.failures,
		d.capacity, d.lent, d.wanted, d.free, d.saturated, d.seconds, d.reject, d.usage,
	} {
		ch <- one
	}
}

func (d *leaseDescs) collect(ch chan<- prometheus.Metric, l *Leases) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	count := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.CounterValue, v, labels...)
	}
	truth := func(d *prometheus.Desc, v bool, labels ...string) {
		var n float64
		if v {
			n = 1
		}
		gauge(d, n, labels...)
	}
	gauge(d.streams, float64(l.Streams))
	gauge(d.instances, float64(l.Instances))
	gauge(d.resources, float64(l.Resources))
	truth(d.recovering, l.Recovering)
	count(d.reports, float64(l.Reports))
	count(d.grants, float64(l.Grants))
	for status, n := range l.Refused {
		count(d.refused, float64(n), status)
	}
	count(d.rejected, float64(l.StreamsRefused))
	count(d.expired, float64(l.Expired))
	count(d.failures, float64(l.Failures))
	for _, one := range l.Usage {
		count(d.usage, float64(one.Admitted), one.Limit, "allowed")
		count(d.usage, float64(one.Refused), one.Limit, "refused")
	}
	for _, one := range l.Limits {
		gauge(d.capacity, one.Capacity, one.Limit)
		gauge(d.lent, one.Lent, one.Limit)
		gauge(d.wanted, one.Wanted, one.Limit)
		gauge(d.free, one.Free, one.Limit)
		truth(d.saturated, one.Saturated, one.Limit)
		count(d.seconds, one.SaturatedSeconds, one.Limit)
		if one.Suppressed {
			gauge(d.reject, one.Reject, one.Limit)
		}
	}
}
