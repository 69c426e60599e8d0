package etcdtest

import "syscall"

// diesWithParent has the kernel kill a server whose test was killed, and so could not stop it.
func diesWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
