package remote

import (
	"syscall"
	"time"
)

// unacknowledged is for how long what was sent may stay without acknowledgement.
const unacknowledged = 2 * time.Second

// tcpUserTimeout is TCP_USER_TIMEOUT, which package syscall lacks.
const tcpUserTimeout = 0x12

// endUnacknowledged has a connection end when what was sent on it is not acknowledged: the other machine is gone.
func endUnacknowledged(_, _ string, c syscall.RawConn) error {
	// A kernel that cannot finds it out later.
	return c.Control(func(fd uintptr) {
		_ = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_TCP, tcpUserTimeout, int(unacknowledged/time.Millisecond))
	})
}
