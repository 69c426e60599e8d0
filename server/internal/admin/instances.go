package admin

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"
)

// Instance is what one instance has of one limit, over all keys: tokens per second or
// permits, and what it decided since it began, as sums of costs.
type Instance struct {
	Instance, Limit   string
	Wanted, Lent      float64
	Admitted, Refused uint64
}

// InstanceCollector turns what each instance has into metrics. The names of instances are in
// the labels, which the metrics of [Collector] never have: a fleet whose instances come and
// go has ever new ones, so they are on a page of their own.
type InstanceCollector struct {
	instances func() (all []Instance, others int, ok bool)

	wanted, lent, decided, others *prometheus.Desc
}

var _ prometheus.Collector = (*InstanceCollector)(nil)

var errNoCoordinator = errors.New("the coordinator of shared limits does not run, or is too slow")

// NewInstanceCollector returns a collector that calls instances at each scrape: it returns
// the pairs of instance and limit, how many there are besides, and false when that is not
// known.
func NewInstanceCollector(instances func() (all []Instance, others int, ok bool)) *InstanceCollector {
	desc := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("stint_"+name, help, labels, nil)
	}
	return &InstanceCollector{
		instances: instances,
		wanted:    desc("lease_instance_demand", "Demand of an instance, over all keys of a limit: tokens per second, or permits.", "limit", "instance"),
		lent:      desc("lease_instance_lent", "What it has of it. Less than wanted for long means that its requests wait or are refused.", "limit", "instance"),
		decided:   desc("lease_instance_decided_total", "What an instance of another process decided by its leases, as sums of costs: allowed or refused.", "limit", "instance", "outcome"),
		others:    desc("lease_instances_not_shown", "Pairs of instance and limit that are not on this page because there are too many."),
	}
}

// Describe implements [prometheus.Collector].
func (c *InstanceCollector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{c.wanted, c.lent, c.decided, c.others} {
		ch <- d
	}
}

// Collect implements [prometheus.Collector].
func (c *InstanceCollector) Collect(ch chan<- prometheus.Metric) {
	all, others, ok := c.instances()
	if !ok {
		ch <- prometheus.NewInvalidMetric(c.wanted, errNoCoordinator)
		return
	}
	ch <- prometheus.MustNewConstMetric(c.others, prometheus.GaugeValue, float64(others))
	for _, one := range all {
		ch <- prometheus.MustNewConstMetric(c.wanted, prometheus.GaugeValue, one.Wanted, one.Limit, one.Instance)
		ch <- prometheus.MustNewConstMetric(c.lent, prometheus.GaugeValue, one.Lent, one.Limit, one.Instance)
		ch <- prometheus.MustNewConstMetric(c.decided, prometheus.CounterValue, float64(one.Admitted), one.Limit, one.Instance, "allowed")
		ch <- prometheus.MustNewConstMetric(c.decided, prometheus.CounterValue, float64(one.Refused), one.Limit, one.Instance, "refused")
	}
}
