//go:build !unix

package etcdtest

import "syscall"

// stop and goOn are no signals: there are none that stop a process.
const stop, goOn = syscall.Signal(0), syscall.Signal(0)
