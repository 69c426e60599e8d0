// Package limit holds stint's words and its arithmetic: what a request, a
// policy and a decision are, and how each algorithm turns a small state, a time
// and a cost into a verdict.
//
// The arithmetic is pure. The time is a parameter ([Time], nanoseconds), a state
// is a small value that the caller keeps, and nothing here logs, locks, allocates
// per decision or reads a clock. Only [Limiter], the in-process limiter with the
// verbs of golang.org/x/time/rate, has a lock and a clock of its own.
//
// All quantities are integers: a token bucket counts in ticks of one n-th of a
// nanosecond (see [Bucket]), so no rate drifts, however odd it is and however
// long it runs.
//
// The package will not store, match, parse files or speak a protocol; it imports
// the standard library alone.
package limit
