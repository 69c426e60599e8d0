//go:build unix

package lending

import (
	"errors"
	"fmt"
	"os"
	"syscall"
)

// lockFile locks a file for this process, until it is closed.
func lockFile(f *os.File) error {
	err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return fmt.Errorf("%w (%s is locked)", errInUse, f.Name())
	case err != nil:
		return fmt.Errorf("lease: cannot lock %s: %w; give a state directory on a file system that can", f.Name(), err)
	}
	return nil
}
