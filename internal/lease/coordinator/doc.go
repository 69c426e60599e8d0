// Package coordinator lends the parts of shared limits to instances: it keeps their sessions, ends
// what expires, recovers after a restart, and sends grants.
//
// A [Coordinator] is a deterministic state machine, driven by Step(now, event), without
// goroutine, clock or network. The server drives it by its streams, the simulator in virtual
// time. The other side of the protocol, and why nothing is lent twice, is in package lease.
//
// A report passes step.go from top to bottom. It is received: what has arrived of former
// grants, what the instance has returned, and what it demands. Some milliseconds later, when
// more reports have come, a round of the limit divides it, lends and revokes. What has changed is
// sent. The counting and the dividing are in package ledger, which also says why the instances
// together admit no more than one bucket of the limit would.
package coordinator
