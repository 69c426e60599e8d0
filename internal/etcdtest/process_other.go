//go:build !linux

package etcdtest

import "syscall"

// diesWithParent asks for nothing: only Linux ends a child with its parent.
func diesWithParent() *syscall.SysProcAttr { return nil }
