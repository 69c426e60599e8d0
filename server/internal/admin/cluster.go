package admin

import "github.com/prometheus/client_golang/prometheus"

// Cluster is how a member of a cluster stands.
type Cluster struct {
	Leads, LeaderKnown bool
	Epoch              uint64 // the highest of any term that this member has seen
	Terms              uint64 // of this member
	Shards, Led        int    // all, and those that this member coordinates
	Replicas           int    // the fewest of a shard that it coordinates
	ReplicaBuckets     int    // what it knows of the other members' buckets
}

// clusterDescs describe the metrics of a member of a cluster. They are sent by members only.
type clusterDescs struct {
	leads, known, epoch, terms, shards, led, replicas, buckets *prometheus.Desc
}

func newClusterDescs(desc func(name, help string, labels ...string) *prometheus.Desc) clusterDescs {
	return clusterDescs{
		leads: desc("cluster_leads", "1 if this member coordinates limits that are shared by leases: all of them, or a shard. At most one member coordinates a shard."),
		known: desc("cluster_leader_known", "1 if this member knows which one coordinates each shard."),
		epoch: desc("cluster_epoch", "Highest epoch that this member has seen, of its own term or another member's; 0 before it has seen any."),
		terms: desc("cluster_terms_total", "Terms in which this member coordinated, of all shards."),

		shards: desc("cluster_shards", "Shards among which the limits that are shared by leases are divided."),
		led:    desc("cluster_shards_led", "Shards that this member coordinates."),

		replicas: desc("cluster_replicas", "Other members that know what is left of each bucket that this member coordinates, so that a kill loses nothing: the fewest of any shard; 0 where it coordinates none."),
		buckets:  desc("cluster_replica_buckets", "Buckets that are not full, coordinated by other members, of which this member knows what is left."),
	}
}

func (d *clusterDescs) describe(ch chan<- *prometheus.Desc) {
	for _, one := range []*prometheus.Desc{d.leads, d.known, d.epoch, d.terms, d.shards, d.led, d.replicas, d.buckets} {
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
	to.gauge(d.shards, float64(c.Shards))
	to.gauge(d.led, float64(c.Led))
	to.gauge(d.replicas, float64(c.Replicas))
	to.gauge(d.buckets, float64(c.ReplicaBuckets))
}
