package crossings

import "sync/atomic"

// Dropped says why an event is not delivered.
type Dropped uint8

// The reasons.
const (
	DroppedFull    Dropped = iota // the outbox has as many keys as it may have, or the key as many events
	DroppedKeys                   // more keys are above a threshold than may be remembered
	DroppedOld                    // delivery was tried for as long as it may be
	DroppedLate                   // it belongs to a window that is not remembered any more
	DroppedRefused                // the records have no room for it, or are of a later version

	// DroppedCount is one more than the last reason.
	DroppedCount int = iota
)

// String returns the reason as it stands in metrics.
func (d Dropped) String() string {
	return [...]string{DroppedFull: "outbox_full", DroppedKeys: "too_many_keys", DroppedOld: "too_old", DroppedLate: "late", DroppedRefused: "refused"}[d]
}

// counts are the figures of a book and its watcher.
type counts struct {
	events  [4]atomic.Uint64 // by word
	dropped [DroppedCount]atomic.Uint64
	failed  atomic.Uint64
}

func (c *counts) noted(events []Event) {
	for i := range events {
		for w, word := range Words() {
			if word == events[i].Kind {
				c.events[w].Add(1)
			}
		}
	}
}

// Stats are figures since the process began.
type Stats struct {
	// Events counts what this process has noted, by the word of [Words].
	Events map[string]uint64
	// Dropped counts by reason what is not delivered.
	Dropped [DroppedCount]uint64
	// Failures counts attempts to note events that the records did not take; they are made again.
	Failures uint64
	// Waiting are the keys, of all servers, with events that are not delivered yet, as far as is known.
	Waiting int64
}

// Stats returns the figures.
func (b *Book) Stats() Stats {
	s := Stats{Events: make(map[string]uint64), Failures: b.stats.failed.Load(), Waiting: max(0, b.waiting.Load())}
	for i, word := range Words() {
		s.Events[word] = b.stats.events[i].Load()
	}
	for i := range s.Dropped {
		s.Dropped[i] = b.stats.dropped[i].Load()
	}
	return s
}
