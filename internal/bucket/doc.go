// Package bucket is what one instance decides with: a token bucket and a semaphore whose rate
// and burst, or permits, change while the application takes from them, and the random refusal
// of suppression. Rates, bursts and levels are in millionths of a token ([fixed.Amount]), costs in
// whole tokens, times by the clock of the caller.
//
// The application takes from it through package client, without a lock. An agent observes it
// and updates it. It does not know leases, other instances or the limit: it holds to what was
// put in force, until a [Deadline]. It does not wait either: it counts the waiters that its
// caller has, and says when enough tokens will have been refilled.
package bucket
