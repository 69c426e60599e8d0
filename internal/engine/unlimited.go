package engine

import "sync/atomic"

// Unlimited says why no limit applied to a request. The zero value is UnlimitedNoMatch.
type Unlimited uint8

// The reasons.
const (
	UnlimitedNoMatch Unlimited = iota // no limit is meant for it
	UnlimitedSkipped                  // limits are meant for it and were skipped: see Tally.Skipped
	UnlimitedDomain                   // its domain is in no file in Envoy's format

	unlimitedCount int = iota
)

// String returns the reason as it stands in metrics.
func (u Unlimited) String() string {
	return [...]string{"no_match", "skipped", "unknown_domain"}[u]
}

// unlimitedTally counts requests to which no limit applied.
type unlimitedTally [unlimitedCount]atomic.Uint64

func (t *unlimitedTally) read() (n [unlimitedCount]uint64) {
	for i := range n {
		n[i] = t[i].Load()
	}
	return n
}
