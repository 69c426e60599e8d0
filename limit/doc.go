// Package limit holds stint's words and its arithmetic: what a request, a
// policy and a decision are, and how each algorithm turns a small state, a time
// and a cost into a verdict.
//
// The arithmetic is pure. The time is a parameter ([Time], nanoseconds), a state is a small
// value that the caller keeps, and nothing here logs, locks, allocates per decision or reads a
// clock. Only [Limiter], the in-process limiter with the verbs of golang.org/x/time/rate, and
// [Queue], the wait queue before any [Taker], have a lock and a clock of their own.
//
// # Three reactions to a limit
//
// A caller that finds no permit can
//
//   - wait until it has one: [Limiter.Wait], or WaitFunc with [Never];
//   - wait at most so long: [Limiter.WaitMax], or WaitFunc with a duration;
//   - give up at once: [Limiter.Allow], [Limiter.Take].
//
// The choice is made with each call, not with the limiter. Waiters are served first in, first
// out, no request overtakes them, and a wait that cannot succeed fails at once
// ([ErrWaitTooLong], [ErrExceedsQuota]). The Func forms take no goroutine. A [Queue] has the
// same verbs for every other Taker. docs/reference/waiting.md describes them in one place.
//
// All quantities are integers: a token bucket counts in ticks of one n-th of a
// nanosecond (see [Bucket]), so no rate drifts, however odd it is and however
// long it runs.
//
// The package will not store, match, parse files or speak a protocol; it imports
// the standard library alone.
package limit
