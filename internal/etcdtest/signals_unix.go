//go:build unix

package etcdtest

import "syscall"

// stop and goOn are the signals that stop a process where it is, and have it go on.
const stop, goOn = syscall.SIGSTOP, syscall.SIGCONT
