package engine

import "github.com/stint-io/stint/internal/tally"

// The counts of a limit, and those of them that were decided without the store.
type (
	Tally     = tally.Tally
	Fallbacks = tally.Fallbacks
)
