package redistest

import (
	"errors"
	"math/rand/v2"
	"net"
	"strconv"
	"testing"
)

// The ports given to servers and proxies. A node of a cluster listens at its port
// plus busOffset as well: those ports are not among the first, and both are below
// the ones that systems give to outgoing connections, so a server that is down
// finds its port free when it starts again.
const (
	firstPort = 10_000
	lastPort  = 19_999
	busOffset = 10_000
)

// ReservePort returns a port that is free on loopback together with its bus port.
// Until the test ends no other call returns it, in this process or another: a UDP
// socket of the same number stands for the reservation, because it ends with the
// process and takes nothing from TCP. It serves the tests of any server that is told its
// port: one of the system's own choice may be that of an outgoing connection a moment later.
func ReservePort(t testing.TB) int {
	t.Helper()
	const tries = 1000
	for range tries {
		port := firstPort + rand.IntN(lastPort-firstPort+1)
		reservation, err := net.ListenPacket("udp4", loopback(port))
		if err != nil {
			continue
		}
		if err := errors.Join(vacant(port), vacant(port+busOffset)); err != nil {
			_ = reservation.Close()
			continue
		}
		t.Cleanup(func() { _ = reservation.Close() })
		return port
	}
	t.Fatalf("redistest: found no free port between %d and %d in %d tries", firstPort, lastPort, tries)
	return 0
}

// vacant reports as an error that something listens on port.
func vacant(port int) error {
	l, err := net.Listen("tcp4", loopback(port))
	if err != nil {
		return err
	}
	return l.Close()
}

func loopback(port int) string {
	return net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
}
