// Package leasereplica keeps what is left of each bucket at more than one member of a cluster, so that a leader
// that is killed has a successor which neither lends what was spent nor withholds what was not. The
// leader sends its followers what it lends, before it lends it; those that have confirmed everything
// stand in its record, and only one of them knows the buckets when it leads next.
package leasereplica
