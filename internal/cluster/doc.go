// Package cluster elects the member that coordinates a scope of limits. One algorithm serves all
// backends: a backend implements a [Register], which reads records and swaps them by revision.
//
// The leader renews its record with a Swap each TTL/4. Its term ends TTL after the last renewal
// that is known to be written was sent, by the leader's own monotonic clock. A candidate takes the
// record over once it has seen one revision for TTL and a drift margin (TTL/64), by its own clock
// and from when it received the read.
//
// Why no two members lead at the same time, if the register is linearizable and no clock
// runs faster than another by more than 1/64: let R be the last revision that a leader L
// wrote and knows of. L sent it at s, so L leads until s+TTL at most. A candidate C received R at
// r > s, and swaps at r+TTL+TTL/64 by its clock or later, which is after s+TTL by that of L. C's
// Swap names R: had L written another revision before, it would fail; since it succeeded, a later
// renewal of L fails. A record that says that its leader resigned is written after that leader's
// term has ended, so it is taken at once.
//
// The epoch of a term is above that of every record seen and above Options.Epoch. So whoever
// compares epochs believes the later leader even where the assumptions do not hold: a register that
// lost a write ([Register.Forgets]), a virtual machine that was suspended without its monotonic
// clock noticing, a record deleted by hand.
//
// The package does not know what a leader does, and transfers nothing between members but the State of
// a Term. Where there are several scopes, [Presence] says which members are alive and [Preferred] which
// of them should lead a scope; neither is needed for there to be one leader at most.
package cluster
