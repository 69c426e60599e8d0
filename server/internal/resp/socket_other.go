//go:build !linux

package resp

import (
	"net"
	"syscall"
)

// socket is for Linux alone.
type socket struct {
	fd                         uintptr
	empty, short, again, looks bool
}

func (*socket) Read([]byte) (int, error) { return 0, syscall.ENOSYS }

func (*socket) write([]byte) int { return 0 }

func rawOf(net.Conn) syscall.RawConn { return nil }
