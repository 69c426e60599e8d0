// Package ledger counts what every instance holds of one shared limit, and divides the limit among them.
//
// A [Resource] is one limit under one key, with an [Account] for each instance and a [Pool] of what is not
// lent. [Resource.Receive] takes what an instance demands. [Resource.Round] divides the limit into a target
// for each account, lends what is free to accounts below their target, and gives a cap to those above it. The
// ledger sends nothing: it marks the accounts of which an instance has to be sent something. Sessions,
// messages and expiry are in package coordinator. Nothing here is safe for concurrent use, and time is passed
// in.
//
// What differs between kinds of limits is behind the interface divider: rates, permits (of requests in
// flight), perInstance, and suppression, where each instance refuses a fraction.
//
// The sum of the instances' buckets holds no more than one central bucket would: the pool of a resource is
// the bucket of what is not lent, with its rate, burst and tokens. Lending moves rate, burst and at most the
// tokens that the pool has. So the levels of all buckets together never exceed the level of one bucket with
// the limit's rate and burst, and in any interval T all instances together admit at most burst + rate x T.
package ledger
