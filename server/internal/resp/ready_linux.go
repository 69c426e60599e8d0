package resp

import (
	"errors"
	"io"
	"net"
	"os"
	"syscall"
	"time"
	"unsafe"
)

// This file spares the read that finds nothing. A [net.Conn] that has read all that there is reads once more before it
// waits, which is a quarter of the work of a command that comes alone. Here a connection waits as soon as it was sent
// less than there was room for: what comes later wakes it.
//
// One thing does not: an end of the input that came with the last command, from a client that sends no more and still
// reads. So a connection that waits is looked at once more after lookAfter, and then waits for good.

// lookAfter is how long a client that has closed one direction waits for the other at most. Not shorter: it is a timer
// that each busy connection sets as often.
const lookAfter = 250 * time.Millisecond

// socket is the connection of the kernel, while its Read lends it.
type socket struct {
	fd    uintptr
	empty bool // the latest Read has found nothing
	short bool // the latest Read has taken all that there was
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

// runRaw is run of a connection that the kernel has as it is; false = it has not.
func (c *conn) runRaw() bool {
	raw := rawOf(c.conn)
	if raw == nil {
		return false
	}
	c.socket = new(socket)
	for {
		err := raw.Read(c.turns)
		if !c.socket.looks || !errors.Is(err, os.ErrDeadlineExceeded) || c.ending.Load() {
			return true
		}
		c.socket.looks = false
		c.readBy(time.Time{})
	}
}

// turns answers what has come; false = wait for more, true = it has ended.
func (c *conn) turns(fd uintptr) bool {
	s := c.socket
	s.fd = fd
	for {
		if !c.turn(s) {
			return !s.empty
		}
		if s.short {
			c.lookLater()
			return false
		}
	}
}

// lookLater sets the deadline after which the connection is looked at, unless there is one, for whatever reason.
func (c *conn) lookLater() {
	switch s := c.socket; {
	case c.tardy || c.opts.Identities != nil && c.session == nil:
		s.looks = false
	case !s.looks:
		s.looks = true
		c.readBy(time.Now().Add(lookAfter))
	}
}
