// Package agent is an instance's side of the lease protocol. It reports demand, in tokens per
// second, puts grants in force in the buckets that the application spends from, gives back
// what is not needed, and decides what is spent without a lease.
//
// An [Agent] is a deterministic state machine: Step takes an event and the time and returns
// the report to send. Package client drives it with a stream and a timer, and package sim in
// virtual time. It has no goroutine, no clock and no network, and does not know the
// coordinator beyond its messages, which are in package lease.
//
// The files follow a step: agent.go takes the event; grant.go applies a grant; sample.go
// measures demand; give_back.go returns what is not needed; report.go decides what is
// reported, and when; expiry.go is what is spent without a lease; suppression.go is for limits
// that are shared by suppression. resource.go has the state of one resource.
package agent
