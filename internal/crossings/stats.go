package crossings

import "sync/atomic"

// Dropped says why an event is not noted.
type Dropped uint8

// The reasons.
const (
	DroppedKeys    Dropped = iota // more keys are above a threshold than may be remembered
	DroppedLate                   // it belongs to a window that is not remembered any more
	DroppedRefused                // the records have no room for it, or are of a later version

	// DroppedCount is one more than the last reason.
	DroppedCount int = iota
)

// String returns the reason as it stands in metrics.
func (d Dropped) String() string {
	return [...]string{DroppedKeys: "too_many_keys", DroppedLate: "late", DroppedRefused: "refused"}[d]
}

// counts are the figures of a watcher.
type counts struct {
	events  [4]atomic.Uint64 // by word
	dropped [DroppedCount]atomic.Uint64
	failed  atomic.Uint64
}

func (c *counts) noted(e *Event) {
	for w, word := range Words() {
		if word == e.Kind {
			c.events[w].Add(1)
		}
	}
}

// Stats are figures since the process began.
type Stats struct {
	// Events counts what this process has noted, by the word of [Words].
	Events map[string]uint64
	// Dropped counts by reason what is not noted.
	Dropped [DroppedCount]uint64
	// Failures counts attempts to note events that the records did not take; they are made again.
	Failures uint64
}

// Stats returns the figures.
func (w *Watcher) Stats() Stats {
	s := Stats{Events: make(map[string]uint64), Failures: w.stats.failed.Load()}
	for i, word := range Words() {
		s.Events[word] = w.stats.events[i].Load()
	}
	for i := range s.Dropped {
		s.Dropped[i] = w.stats.dropped[i].Load()
	}
	return s
}
