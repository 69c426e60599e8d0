//go:build unix

package durable

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
)

func lockFile(name string) (io.Closer, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, err
	}
	switch err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); {
	case err == nil:
		return f, nil
	case errors.Is(err, syscall.EWOULDBLOCK):
		err = errInUse
	default:
		err = fmt.Errorf("cannot lock %s: %w", name, err)
	}
	return nil, errors.Join(err, f.Close())
}

// renameNeedsClosed reports whether a file cannot be replaced while it is open.
const renameNeedsClosed = false
