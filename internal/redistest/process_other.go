//go:build !linux

package redistest

import "syscall"

// diesWithParent asks for nothing: only Linux ends a child with its parent.
func diesWithParent() *syscall.SysProcAttr { return nil }

// halted takes it that a signal has worked at once.
func halted(int) (bool, error) { return true, nil }
