// Package observe defines the event by which an engine tells what it did to counters. Whatever counts, watches or
// reports what was charged observes these events, so that nothing has to stand between the engine and its store.
package observe

import "github.com/stint-io/stint/store"

// Kind is what happened to the counters of an [Event].
type Kind uint8

// The ways in which counters change.
const (
	Taken    Kind = iota // a request was decided: its charges were taken or refused
	Returned             // the costs of charges were given back
	Reset                // the state of the buckets was dropped
	Granted              // the keys may use the costs of the charges on top of what they could before
)

// Event is one change of counters. A decision emits one that is Taken. What it gives back, be it asked for or because
// the request is refused after all, is another, which is Returned. A call whose answer was an error emits none.
type Event struct {
	Kind Kind
	// Allowed is the store's answer to a Taken. The request may still be refused for what no counter knows.
	Allowed bool
	// Charges are what the store was asked for, those of a Taken with its verdicts. An observer neither changes them
	// nor keeps them, or their keys, beyond the call.
	Charges []store.Charge
}

// Took reports whether the cost of a charge of a Taken event was taken, or admitted without the counters: a request that
// is admitted pays what fitted, and charges that count refused requests are paid in any case.
func (e *Event) Took(c *store.Charge) bool {
	return c.Cost > 0 && (e.Allowed && c.Verdict.Allowed || c.CountRefused && !c.Failed)
}

// Observer is told of events. It is safe for concurrent use. The request waits until Observe returns.
type Observer interface {
	Observe(e Event)
}
