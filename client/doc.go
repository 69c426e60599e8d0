// Package client spends leases: a limit that many processes share, decided in each of
// them without a network round trip, and never over in all of them together.
//
//	c, err := client.New(client.Options{Address: "127.0.0.1:8081"})
//	...
//	go c.Run(ctx)
//	messages, err := c.Limit("messages.maxRate", client.LimitOptions{})
//	if messages.Allow() { ... }
//
// # Leases
//
// A lease is a part of a limit that this process may spend on its own: so many tokens per
// second, so large a bucket, or so many permits, until it ends. The coordinator, which is
// in the server, lends each instance its part and counts what is out, so that all parts
// together are never more than the limit. The client reports its demand; the
// coordinator moves capacity from instances that leave it unused to those that are short of it, within a round trip or
// two. A lease is renewed each second and ends five seconds after it was renewed last,
// by the client's own monotonic clock. What is not used for a while is given back.
//
// # Allow, Wait, Take
//
// They differ in what happens when the lease has nothing left:
//
//   - [Limiter.Allow] refuses at once. It never waits and does not allocate: tens of
//     nanoseconds. The first call after a pause may be refused although the limit is
//     free, since nothing is leased yet: use Take where that matters.
//   - [Limiter.Take] asks the coordinator first, if capacity may be free elsewhere, and
//     waits for the answer no longer than [LimitOptions.Ask]. When the limit is known to
//     be full it refuses at once. It returns the whole answer, for middleware.
//   - [Limiter.Wait] waits in line until it is served, ctx ends or, for
//     [Limiter.WaitMax], it is known that it would be too long. First in, first out;
//     the coordinator knows until when somebody waits, and sends nothing that would
//     come too late.
//   - [Limiter.WaitFunc] is the same for a caller who does not block, and holds no
//     goroutine meanwhile.
//   - [Limiter.Reserve] says when there will be a permit and keeps the place in line.
//
// A [Semaphore] is the same for what is in flight, and a [Keyed] holds one lease for each
// key. All three are a [github.com/stint-io/stint/limit.Taker].
//
// # Without a coordinator
//
// Leases run on while the coordinator is away. What happens when one has run out is
// [LimitOptions].Expiry:
//
//   - [Pessimistic]: nothing is admitted until there is a new lease. The limit holds.
//   - [Safe]: each instance admits the safe capacity that came with the last answer, by
//     default the limit divided by the instances: about the limit in sum, and more by
//     as much as instances have joined since.
//   - [Optimistic]: each admits what it wanted: up to the sum of what all want.
//
// Before the first answer nothing is admitted, or what [OptimisticStart] says. Those who
// wait keep their place over all of that. [Client.Err] and [Lease] say what is the
// matter; docs/reference/failures.md has each failure with its outcome and its test.
//
// # What a program is notified of
//
// A limit that the coordinator does not know, a key that does not fit and a limit of the
// other kind are an error of Take and Wait, one line in the log, and one call of
// [Options].OnFault. [Options].Hooks are called for what is admitted and refused, waits and requests to which a
// limit did not apply, for metrics; [Options].OnLease and OnConnection for the states of leases.
// [Limiter.Err] says why nothing is lent, also to a program that uses Allow alone.
//
// # Two halves
//
// The upper half is what the application calls: a bucket at the leased rate, and a line
// of those who wait. It takes no lock of the network's half. The lower one is a
// goroutine, within [Client.Run], that reports the demand and puts in force what the
// coordinator grants.
//
// The package does not decide how a limit is divided: the coordinator does. It keeps no
// limit that the coordinator does not know.
package client
