package redistest

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
)

// diesWithParent has the kernel kill a server whose test was killed, and so could
// not stop it.
func diesWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}

// halted reports whether every thread of a process that was sent SIGSTOP has
// stopped. Each does so in its own time.
func halted(pid int) (bool, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		return false, err
	}
	if len(threads) == 0 {
		return false, fmt.Errorf("process %d is gone", pid)
	}
	for _, name := range threads {
		// "pid (name) state ...": the name may hold anything.
		stat, err := os.ReadFile(name)
		end := bytes.LastIndex(stat, []byte(") "))
		if err != nil || end < 0 || end+2 >= len(stat) || stat[end+2] != 'T' {
			return false, nil //nolint:nilerr // a thread that has ended is not there next time
		}
	}
	return true, nil
}
