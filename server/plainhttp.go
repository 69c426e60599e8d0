package server

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"sync"

	"github.com/stint-io/stint/internal/listen"
)

// plainHTTP is a listener of gRPC in plain text. A client that speaks HTTP/1 is told where the HTTP port is: gRPC ends
// its connection without a word.
type plainHTTP struct {
	net.Listener
	http func() net.Addr
}

// Accept implements net.Listener.
func (l *plainHTTP) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &sniffed{Conn: c, http: l.http}, nil
}

// sniffed is a connection whose first bytes are looked at. Earlier writes are held back: gRPC speaks first,
// and a client of HTTP/1 would not understand it.
type sniffed struct {
	net.Conn
	http func() net.Addr

	mu   sync.Mutex
	read bool
	held []byte
}

// Read implements net.Conn.
func (c *sniffed) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.read {
		return n, err
	}
	c.read = true
	for _, method := range []string{"GET ", "POST ", "HEAD ", "PUT ", "DELETE ", "OPTIONS ", "PATCH "} {
		if bytes.HasPrefix(p[:n], []byte(method)) {
			text := fmt.Sprintf("this is the gRPC port: HTTP is answered on %s\n", listen.URL("http", c.http()))
			_, _ = fmt.Fprintf(c.Conn, "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", len(text), text)
			return 0, io.EOF
		}
	}
	if len(c.held) > 0 && n > 0 {
		if _, err := c.Conn.Write(c.held); err != nil {
			return n, err
		}
	}
	c.held = nil
	return n, err
}

// Write implements net.Conn.
func (c *sniffed) Write(p []byte) (int, error) {
	c.mu.Lock()
	if !c.read {
		defer c.mu.Unlock()
		c.held = append(c.held, p...)
		return len(p), nil
	}
	c.mu.Unlock()
	return c.Conn.Write(p)
}
