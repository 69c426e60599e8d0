//go:build unix

package costs

import (
	"syscall"
	"time"
)

// processClock returns a function that reads the CPU time of this process, in user and kernel
// mode, or nil where the system does not tell it.
func processClock() func() time.Duration {
	return func() time.Duration {
		var usage syscall.Rusage
		if syscall.Getrusage(syscall.RUSAGE_SELF, &usage) != nil {
			return 0
		}
		return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
	}
}
