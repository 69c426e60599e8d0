package main

import (
	"os/exec"
	"syscall"
)

// dieWithParent has a process killed when this one ends, however it ends.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
