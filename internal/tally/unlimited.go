package tally

import "sync/atomic"

// Unlimited says why no limit applied to a request. The zero value is UnlimitedNoMatch.
type Unlimited uint8

// The reasons.
const (
	UnlimitedNoMatch Unlimited = iota // no limit is meant for it
	UnlimitedSkipped                  // limits are meant for it and were skipped: see Tally.Skipped
	UnlimitedDomain                   // its domain is in no file in Envoy's format

	unlimitedReasons int = iota
)

// String returns the reason as it stands in metrics.
func (u Unlimited) String() string {
	return [...]string{"no_match", "skipped", "unknown_domain"}[u]
}

// UnlimitedCounter counts requests to which no limit applied. It is safe for concurrent use; its zero value has counted none.
type UnlimitedCounter [unlimitedReasons]atomic.Uint64

// Read returns the counts by [Unlimited].
func (t *UnlimitedCounter) Read() (n [unlimitedReasons]uint64) {
	for i := range n {
		n[i] = t[i].Load()
	}
	return n
}
