package admin

import "github.com/prometheus/client_golang/prometheus"

// Cluster is how a member of a cluster stands.
type Cluster struct {
	Leads, LeaderKnown bool
	Epoch              uint64 // of the latest term of this member's coordinator
	Terms              uint64 // of this member
}

// clusterDescs describe the metrics of a member of a cluster. They are sent by members only.
type clusterDescs struct {
	leads, known, epoch, terms *prometheus.Desc
}

func newClusterDescs(desc func(name, help string, labels ...string) *prometheus.Desc) clusterDescs {
	return clusterDescs{
		leads: desc("cluster_leads", "1 if this member coordinates the limits that are shared by leases. At most one member does."),
		known: desc("cluster_leader_known", "1 if this member knows which one coordinates."),
		epoch: desc("cluster_epoch", "Epoch of this member's latest term."),
		terms: desc("cluster_terms_total", "Terms in which this member coordinated."),
	}
}

func (d *clusterDescs) describe(ch chan<- *prometheus.Desc) {
	for _, one := range []*prometheus.Desc{d.leads, d.known, d.epoch, d.terms} {
		ch <- one
	}
}

func (d *clusterDescs) collect(to metrics, c *Cluster) {
	if c == nil {
		return
	}
	to.truth(d.leads, c.Leads)
	to.truth(d.known, c.LeaderKnown)
	to.gauge(d.epoch, float64(c.Epoch))
	to.count(d.terms, c.Terms)
}
