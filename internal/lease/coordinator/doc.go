// Package coordinator lends the parts of shared limits to instances, and keeps the ledger of
// what is lent.
//
// A [Coordinator] is a deterministic state machine, driven by Step(now, event), without
// goroutine, clock or network. The server drives it by its streams, the simulator in virtual
// time. The other side of the protocol, and why nothing is lent twice, is in package lease.
//
// A report passes five phases, which step.go has in this order. It is received: what has arrived
// of former grants, what the instance has returned, and what it demands. Some milliseconds
// later, when more reports have come, a round of the limit divides it into a target for each
// account, lends what is free to accounts below their target, and revokes from those above
// it. What has changed is sent.
//
// What differs between kinds of limits is behind the interface divider: rates, permits (of
// requests in flight), perInstance, and suppression, where each instance refuses a fraction.
//
// The sum of the instances' buckets holds no more than one central bucket would: the pool
// of a resource is the bucket of what is not lent, with its rate, burst and tokens. Lending
// moves rate, burst and at most the tokens that the pool has. So the levels of all
// buckets together never exceed the level of one bucket with the limit's rate and burst, and in
// any interval T all instances together admit at most burst + rate x T.
package coordinator
