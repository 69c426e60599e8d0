package resp

import (
	"io"
	"net"
	"syscall"
	"unsafe"
)

// socket is the connection of the kernel, while its Read lends it.
type socket struct {
	fd    uintptr
	empty bool // the latest Read has found nothing
	short bool // the latest Read has taken all that there was
	again bool // there was more after turnsAtOnce
	looks bool // there is a deadline after which it is looked at once more
}

// Read reads once, without waiting.
func (s *socket) Read(p []byte) (int, error) {
	// It does not block, so the scheduler need not know of it.
	n, _, e := syscall.RawSyscall(syscall.SYS_READ, s.fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	s.empty, s.short = e == syscall.EAGAIN, int(n) < len(p)
	switch {
	case e != 0:
		return 0, e
	case n == 0:
		return 0, io.EOF
	}
	return int(n), nil
}

// write writes what there is room for, without waiting. An error shows when the rest is written.
func (s *socket) write(p []byte) int {
	n, _, e := syscall.RawSyscall(syscall.SYS_WRITE, s.fd, uintptr(unsafe.Pointer(unsafe.SliceData(p))), uintptr(len(p)))
	if e != 0 {
		return 0
	}
	return int(n)
}

// rawOf returns the connection of the kernel; nil = the bytes on it are not those of the commands.
func rawOf(c net.Conn) syscall.RawConn {
	plain, ok := c.(*net.TCPConn)
	if !ok {
		return nil
	}
	raw, err := plain.SyscallConn()
	if err != nil {
		return nil
	}
	return raw
}
