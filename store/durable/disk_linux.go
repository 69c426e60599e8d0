package durable

import (
	"errors"
	"os"
	"syscall"
)

// syncData writes a file's content to the disk, and of its metadata only what reading needs.
func syncData(f *os.File) error {
	for {
		err := syscall.Fdatasync(int(f.Fd()))
		if !errors.Is(err, syscall.EINTR) {
			return os.NewSyscallError("fdatasync", err)
		}
	}
}
