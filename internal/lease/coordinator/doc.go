// Package share keeps one limit true for many instances that each decide locally.
//
// An instance holds a part of the limit, a lease: a rate, a depth of bucket and the
// tokens in it. A [Coordinator] lends the parts and a [Holder] spends them; both are
// deterministic state machines, driven by Step(now, event), without goroutine, clock
// or network. The client and the server are thin drivers around them, and the
// simulator drives the same machines in virtual time, so that what is simulated is
// what ships.
//
// Why nothing is ever lent twice: between a coordinator and an instance stand two
// numbers that only grow, what was granted and what was given back. Each side sends
// its own number and keeps the latest it heard of the other's. The coordinator counts
// granted minus the given back that it heard of; the instance may use the granted
// that it heard of minus what it gave back. A message that is lost, late, doubled or
// out of order can only make the first larger or the second smaller, so the sum of
// what instances use is at most the sum of what the coordinator counts, which is at
// most the limit. A lease ends at the instance before it ends at the coordinator,
// because the instance counts its length from the moment it sent the report that the
// coordinator answered.
//
// Why the sum of local buckets is no more than one central bucket: the coordinator
// keeps the bucket of what it has not lent, with its rate, depth and tokens. Lending
// moves rate and depth and at most the tokens that are there. So the levels of all
// buckets together never exceed the level of one bucket with the limit's rate and
// burst, and in any interval T the fleet admits at most burst + rate x T.
package coordinator
