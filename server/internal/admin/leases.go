package admin

import "github.com/prometheus/client_golang/prometheus"

// Leases are what the coordinator of leased limits looks like.
type Leases struct {
	Streams, Instances, Resources int
	Recovering                    bool
	Unlent                        int // buckets that are not full and of which nobody has a lease
	Reports, Grants               uint64
	Asks                          uint64 // that were decided without a lease
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
	Capacity, Lent, Wanted, Free float64 // tokens per second, or permits
	Saturated                    bool
	SaturatedSeconds             float64
	Suppressed                   bool    // shared by suppression
	Reject                       float64 // the largest fraction of a key that is refused
}

// leaseDescs describe the metrics of leased limits. They are sent only where there is
// one.
type leaseDescs struct {
	streams, instances, resources, recovering             *prometheus.Desc
	unlent, asks                                          *prometheus.Desc
	reports, grants, refused, rejected, expired, failures *prometheus.Desc
	capacity, lent, demand, free, saturated, seconds      *prometheus.Desc
	reject, usage                                         *prometheus.Desc
}

func (d *leaseDescs) describe(ch chan<- *prometheus.Desc) {
	for _, one := range []*prometheus.Desc{
		d.streams, d.instances, d.resources, d.recovering, d.unlent, d.asks, d.reports, d.grants, d.refused, d.rejected, d.expired, d.failures,
		d.capacity, d.lent, d.demand, d.free, d.saturated, d.seconds, d.reject, d.usage,
	} {
		ch <- one
	}
}

func (d *leaseDescs) collect(to metrics, l *Leases) {
	to.gauge(d.streams, float64(l.Streams))
	to.gauge(d.instances, float64(l.Instances))
	to.gauge(d.resources, float64(l.Resources))
	to.truth(d.recovering, l.Recovering)
	to.gauge(d.unlent, float64(l.Unlent))
	to.count(d.asks, l.Asks)
	to.count(d.reports, l.Reports)
	to.count(d.grants, l.Grants)
	for status, n := range l.Refused {
		to.count(d.refused, n, status)
	}
	to.count(d.rejected, l.StreamsRefused)
	to.count(d.expired, l.Expired)
	to.count(d.failures, l.Failures)
	for _, one := range l.Usage {
		to.count(d.usage, one.Admitted, one.Limit, "allowed")
		to.count(d.usage, one.Refused, one.Limit, "refused")
	}
	for _, one := range l.Limits {
		to.gauge(d.capacity, one.Capacity, one.Limit)
		to.gauge(d.lent, one.Lent, one.Limit)
		to.gauge(d.demand, one.Wanted, one.Limit)
		to.gauge(d.free, one.Free, one.Limit)
		to.truth(d.saturated, one.Saturated, one.Limit)
		to <- prometheus.MustNewConstMetric(d.seconds, prometheus.CounterValue, one.SaturatedSeconds, one.Limit)
		if one.Suppressed {
			to.gauge(d.reject, one.Reject, one.Limit)
		}
	}
}
