// Package fanout limits what each recipient of a stream of messages is sent, and reports to it
// what was dropped.
//
// A publish is refused or admitted as a whole, by the limits of the publisher and of its
// account (see [limit.All]); once admitted it goes to every recipient. A recipient that is sent
// more than its own limit allows, or that reads too slowly, does not make the publish fail
// for the others: the excess is dropped for it alone. It then gets one [Gap] in place of
// what it missed, with the positions from which it can read that in the stream's history.
//
// [Subscriber] decides and remembers what was dropped. [Stream] is a Subscriber with a
// bounded queue between the publisher, who never waits, and one reader.
//
// The package sends nothing over a network, keeps no history, and starts no goroutine.
package fanout
