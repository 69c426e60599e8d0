//go:build !unix

package costs

import "time"

// processClock returns nil: the system does not tell the CPU time of a process.
func processClock() func() time.Duration { return nil }
