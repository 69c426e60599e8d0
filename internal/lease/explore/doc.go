// Package explore tries every order of events for the shipped coordinator and agent: messages,
// losses, duplicates, cuts, crashes, restarts, terms that end, leases that expire and clocks that
// differ, for two coordinators and two instances, up to a number of events. It is for tests alone.
//
// # The world
//
// A [World] is two coordinator processes, two instances, the streams between them, and the register
// in which the processes elect the one that lends. Coordinator, replica and agent are the shipped
// state machines. The process around a coordinator is modelled as package server/internal/lending
// does it: it steps the machine only in a term, and holds a grant back until the record says that
// its session may hold a lease, and until the replica that the record names knows what is left of the
// bucket; so does the answer to a server that asks for a token. What goes between a leader and its replica is modelled
// as that package does it, and the election as package internal/cluster does: a process may end between its election and
// the moment at which its coordinator takes over, the register may lose its record or go back to an earlier one, or be
// one that is known to forget, and a process that begins anew knows the epoch in its state folder, which may be an old
// copy.
//
// # What is left out
//
// A register that goes back is believed by a process that cannot know of a later record, if it is the first to read
// it. So while the record is an earlier one or none, a process reads it only if it saw a later one or has the epoch of
// one in its state folder, and one such process stays. With a register that is known to forget the others read an
// earlier record as well once all leases have ended, unless its epoch is that of their state folder.
//
// # How states are counted
//
// A step of a machine depends on nothing but its state, the time and the event. So each state of a
// machine is stored once, by a hash of all that it has in memory, and each step is made once. A
// state of the world is the numbers of its machines' states, the messages on the way, the
// register and the time; of those a hash of 128 bits is kept. The search is breadth first, so
// the first violation that it finds has the fewest events.
package explore
