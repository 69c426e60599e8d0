package durable

import (
	"errors"
	"io"
	"os"
	"syscall"
)

const errorSharingViolation = syscall.Errno(32)

// lockFile opens a file that no other process can open meanwhile.
func lockFile(name string) (io.Closer, error) {
	text, err := syscall.UTF16PtrFromString(name)
	if err != nil {
		return nil, err
	}
	h, err := syscall.CreateFile(text, syscall.GENERIC_READ|syscall.GENERIC_WRITE, 0, nil, syscall.OPEN_ALWAYS,
		syscall.FILE_ATTRIBUTE_NORMAL, 0)
	if errors.Is(err, errorSharingViolation) {
		return nil, errInUse
	}
	if err != nil {
		return nil, &os.PathError{Op: "lock", Path: name, Err: err}
	}
	return os.NewFile(uintptr(h), name), nil
}

// renameNeedsClosed reports whether a file cannot be replaced while it is open.
const renameNeedsClosed = true
