//go:build unix

package main

import (
	"syscall"
	"time"
)

// processorTime is what this process has used; 0 if the system does not say.
func processorTime() time.Duration {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		return 0
	}
	return time.Duration(used.Utime.Nano() + used.Stime.Nano())
}
