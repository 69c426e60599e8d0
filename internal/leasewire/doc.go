// Package leasewire translates between the words of package share and the messages of
// the lease protocol, in proto/stint/lease/v1, for clients and for the server. It
// decides nothing, and it is the door: what leaves [FromReport] and [FromGrant] is
// finite, within the bounds of the protocol, and of the ranges that package share
// expects. Running totals may be any number: they wrap around, and only a difference
// to what was told before says whether one can be.
package leasewire

//go:generate ../../scripts/generate
