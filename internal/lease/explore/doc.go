// Package explore tries every order of events for the shipped coordinator and agent: messages,
// losses, duplicates, cuts, crashes, restarts, terms that end, leases that expire and clocks that
// differ, for two coordinators and two instances, up to a number of events. It is for tests alone.
//
// # The world
//
// A [World] is two coordinator processes, two instances, the streams between them, and the register
// in which the processes elect the one that lends. Coordinator, replica and agent are the shipped
// state machines. The process around a coordinator is modelled as package server/internal/leaseservice
// does it: it steps the machine only in a term, and holds a grant back until the record says that
// its session may hold a lease, and until the replica that the record names knows what is left of the
// bucket; so does the answer to a server that asks for a token. What goes between a leader and its replica is modelled as package
// server/internal/leasereplica does it, and the election as package internal/cluster does.
//
// # How states are counted
//
// A step of a machine depends on nothing but its state, the time and the event. So each state of a
// machine is stored once, by a hash of all that it has in memory, and each step is made once. A
// state of the world is the numbers of its machines' states, the messages on the way, the
// register and the time; of those a hash of 128 bits is kept. The search is breadth first, so
// the first violation that it finds has the fewest events.
package explore
