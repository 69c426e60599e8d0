// Package lease is the protocol by which one limit holds for many instances that each decide
// locally: its messages, their amounts, and the thresholds and times that both sides rely on.
// Amounts are tokens, or tokens per second, in millionths ([fixed.Amount]).
//
// An instance has a lease of a part of the limit: a rate, a burst, and tokens. Package agent
// is the instance's side, package coordinator lends the parts. Both are deterministic state
// machines, driven by Step(now, event), without goroutine, clock or network. Neither knows the
// other, and this package knows neither. The client and the server drive them with streams and
// timers; the simulator drives the same machines in virtual time.
//
// # Why nothing is ever lent twice
//
// Between a coordinator and an instance stand two totals that only grow: what was granted
// under a lease, and what was returned. Each side sends its own total in full and keeps the
// latest that it received of the other's. The instance may use
//
//	granted (received) - returned (its own)
//
// and the coordinator counts as lent
//
//	granted (its own) - returned (received).
//
// A message that is lost, late, duplicated or out of order leaves a received total smaller than
// the sender's. So the instance uses at most what the coordinator counts as lent, and the sum
// over all instances is at most the limit, since the coordinator grants only what it does not
// count as lent. To return capacity, an instance first stops using it, then raises the total.
//
// A lease expires at the instance before it expires at the coordinator: the instance counts
// its length from when it sent the report that the coordinator answered, the coordinator from
// when it sent the answer, and longer by [DriftMargin].
//
// # Why the sum of local buckets is no more than one bucket
//
// The coordinator keeps the bucket of what is not lent, with its rate, burst and tokens. To
// lend moves rate and burst, and no more tokens than there are; to return moves them back. So
// at every moment the rates of all buckets add up to the limit's rate, their bursts to the
// limit's burst, and their tokens to no more than one bucket of that rate and burst would
// hold. In any interval T all instances together admit at most burst + rate x T.
package lease
