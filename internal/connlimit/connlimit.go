// Package connlimit bounds how many connections a listener has open, and how many of them are of one source, so that
// a single client cannot take them all.
package connlimit

import (
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
)

// Limit is the most connections of a listener that states no other bound.
const Limit = 16 << 10

// perFree is how many connections a source may have for each one that is free. One source alone can then have three
// quarters of all, the next one three quarters of the rest, and so on: of at least 16, there is one for a third source
// whatever two others do.
const perFree = 3

// Conns counts connections by their source: an IPv4 address, or the /64 of an IPv6 address. It is safe for concurrent
// use.
type Conns struct {
	most    int
	refused atomic.Uint64

	mu   sync.Mutex
	open int
	of   map[netip.Prefix]int
}

// New returns Conns that admit at most most connections.
func New(most int) *Conns { return &Conns{most: most, of: map[netip.Prefix]int{}} }

// Enter counts a connection from peer, and reports whether it is admitted. If so, call leave when it has ended; further
// calls do nothing.
func (c *Conns) Enter(peer net.Addr) (leave func(), ok bool) {
	from := source(peer)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.of[from] >= perFree*(c.most-c.open) {
		c.refused.Add(1)
		return nil, false
	}
	c.open++
	c.of[from]++
	return sync.OnceFunc(func() { c.leave(from) }), true
}

func (c *Conns) leave(from netip.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.open--
	if c.of[from]--; c.of[from] == 0 {
		delete(c.of, from)
	}
}

// Refused returns how many connections were refused.
func (c *Conns) Refused() uint64 { return c.refused.Load() }

// source returns the network that a peer counts for. Peers without an IP address are one.
func source(peer net.Addr) netip.Prefix {
	tcp, ok := peer.(*net.TCPAddr)
	if !ok {
		return netip.Prefix{}
	}
	addr := tcp.AddrPort().Addr().Unmap().WithZone("")
	bits := addr.BitLen()
	if addr.Is6() {
		bits = 64
	}
	from, err := addr.Prefix(bits)
	if err != nil {
		return netip.Prefix{}
	}
	return from
}

// Listener returns a listener that closes connections which c does not admit.
func (c *Conns) Listener(l net.Listener) net.Listener { return &listener{l, c} }

type listener struct {
	net.Listener
	conns *Conns
}

// Accept implements [net.Listener].
func (l *listener) Accept() (net.Conn, error) {
	for {
		raw, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if leave, ok := l.conns.Enter(raw.RemoteAddr()); ok {
			return &conn{raw, leave}, nil
		}
		_ = raw.Close()
	}
}

type conn struct {
	net.Conn
	leave func()
}

// CloseWrite ends one half of a TCP connection. Package net/http needs it to end a connection whose request it has
// not read to its end: without it the client gets a reset in place of the answer.
func (c *conn) CloseWrite() error {
	if half, ok := c.Conn.(interface{ CloseWrite() error }); ok {
		return half.CloseWrite()
	}
	return c.Conn.Close()
}

// Close implements [net.Conn].
func (c *conn) Close() error {
	defer c.leave()
	return c.Conn.Close()
}
