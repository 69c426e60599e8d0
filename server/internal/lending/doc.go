// Package lending lends the limits that are shared by leases to instances, by the lease protocol. How much each instance
// is lent is decided in internal/lease/coordinator. This package drives coordinators: it has their loop and timer, the
// streams of instances and what an identity may ask for, the election among the members of a cluster, and what a
// successor has to know.
//
// A [Service] is what a server registers with gRPC. It divides all resources into shards. Each shard has a coordinator
// and an election of its own, so that the members of a cluster lend side by side.
//
// The files, each of which uses only those in its line and above:
//
//	terms.go limits.go usage.go            which limits are lent, by which terms, and what instances decided of them
//	state.go statefile_*.go statelock_*.go what the next coordinator has to know of this one, in a folder
//	stream.go identity.go admission.go     the stream of an instance, what its identity may send, the bounds on streams
//	members.go holdings.go                 the instances by name, and what those of one identity have together
//	levels.go follower.go replicas.go      what followers know of the buckets of the leader
//	parent.go                              the stream of a site to its parent
//	page.go figures.go                     what operators are shown
//	shard.go election.go successor.go      a coordinator, its terms, and the grants that wait for its record
//	ask.go hold.go pipe.go                 questions about keys without a lease, streams by gRPC, and streams in memory
//	sample.go instances.go                 the figures of a shard
//	loop.go                                the loop of a shard
//	service.go spread.go sums.go           all shards, which member should lead each, and their figures together
//
// Each shard has one loop. It alone steps the coordinator, and it owns the members, the replicas of a leader, and the
// fields of shard and membership that are marked as its own. Other goroutines post events to it. A stream by gRPC has a
// goroutine that reads and one that writes; the stream of a site to its parent has the same. The election, the
// publisher of its record, and the follower of another leader have a goroutine each. All have ended when [Service.Run]
// returns. What several goroutines use is atomic or has a mutex: admission, decisions, follower, what a stream is to
// send, and [State.RaiseOf].
package lending
