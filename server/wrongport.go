package server

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"sync"
	"sync/atomic"

	"github.com/stint-io/stint/internal/listen"
)

// wrongPort is a listener in plain text whose clients may speak the protocol of another port. Those get an answer in their own
// protocol that says so.
type wrongPort struct {
	net.Listener
	answer func(first []byte) string // to what came first; "" = it is the protocol of this port
}

// Accept implements net.Listener.
func (l *wrongPort) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &sniffed{Conn: c, answer: l.answer}, nil
}

// sniffed is a connection whose first bytes are looked at. Earlier writes are held back: gRPC speaks first, and a client of
// another protocol would not understand it.
type sniffed struct {
	net.Conn
	answer func(first []byte) string
	read   atomic.Bool
	open   atomic.Bool // for writes

	mu   sync.Mutex
	held []byte
}

// Read implements net.Conn.
func (c *sniffed) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.read.Load() || len(p) == 0 {
		return n, err
	}
	c.read.Store(true)
	if text := c.answer(p[:n]); text != "" {
		_, _ = io.WriteString(c.Conn, text)
		return 0, io.EOF
	}
	if c.open.Load() {
		return n, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.held) > 0 && n > 0 {
		if _, err := c.Conn.Write(c.held); err != nil {
			return n, err
		}
	}
	c.held = nil
	c.open.Store(true)
	return n, err
}

// Write implements net.Conn.
func (c *sniffed) Write(p []byte) (int, error) {
	if c.open.Load() {
		return c.Conn.Write(p)
	}
	c.mu.Lock()
	if !c.open.Load() {
		defer c.mu.Unlock()
		c.held = append(c.held, p...)
		return len(p), nil
	}
	c.mu.Unlock()
	return c.Conn.Write(p)
}

// atGRPC answers a client of the gRPC port that speaks HTTP/1 or the Redis protocol: gRPC ends its connection without a word.
func (s *Server) atGRPC(first []byte) string {
	for _, method := range []string{"GET ", "POST ", "HEAD ", "PUT ", "DELETE ", "OPTIONS ", "PATCH "} {
		if bytes.HasPrefix(first, []byte(method)) {
			text := fmt.Sprintf("this is the gRPC port: HTTP is answered on %s\n", listen.URL("http", s.addrs.HTTP))
			return fmt.Sprintf("HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(text), text)
		}
	}
	if len(first) < 2 || first[0] != '*' || first[1] < '0' || first[1] > '9' {
		return ""
	}
	where := "start stint with --resp 127.0.0.1:6380 for the Redis protocol"
	if s.addrs.RESP != nil {
		where = fmt.Sprintf("the Redis protocol is answered on %v", s.addrs.RESP)
	}
	return "-ERR this is the gRPC port: " + where + "\r\n"
}
