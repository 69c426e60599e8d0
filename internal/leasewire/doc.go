// Package leasewire translates between the messages of package lease and those of the wire, in
// proto/stint/lease/v1, for the client and for the server. It decides nothing.
//
// It is where untrusted input is checked: what leaves [FromReport] and [FromGrant] is finite and
// within the bounds of the protocol. Amounts of the wire are millionths, but for the rate and
// the shortfall of a demand, which are floating-point tokens. Running totals may be any number:
// they wrap around, so only the coordinator or the agent, which knows the previous total, can
// say whether one is possible.
package leasewire

//go:generate ../../scripts/generate
