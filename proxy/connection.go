package proxy

import (
	"bytes"
	"context"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/connlimit"
)

// maxHead is how much of a request's head a connection remembers. Not more: it is kept for each. Not
// less: a head with cookies fits, and of one that does not the connection ends with its request.
const maxHead = 4 << 10

// mostResets is how many requests of one HTTP/2 connection may be cancelled by the client beyond those
// that were answered. Not more: each costs the upstream a request (CVE-2023-44487). Not less: browsers
// cancel what a page does not need any more, tens at a time.
const mostResets = 200

// connection is one connection of a client. It remembers the head of the present request as it was sent,
// because net/http hides when a request has both Content-Length and Transfer-Encoding; and it bounds how
// long a client may take to accept a part of an answer.
type connection struct {
	net.Conn
	writeTime time.Duration // 0 = no bound
	release   func()        // called once when it closes

	deadline atomic.Int64 // of writing, Unix nanoseconds
	resets   atomic.Int64 // cancelled requests minus answered ones
	once     sync.Once

	mu   sync.Mutex // of head: net/http reads in the background
	head []byte
}

// Read implements [net.Conn].
func (c *connection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	if room := maxHead - len(c.head); room > 0 && n > 0 {
		c.head = append(c.head, p[:min(n, room)]...)
	}
	c.mu.Unlock()
	return n, err
}

// Write implements [net.Conn]. The deadline moves with every part that is taken, at most once a second.
func (c *connection) Write(p []byte) (int, error) {
	if c.writeTime > 0 {
		now := time.Now()
		at := now.Add(c.writeTime)
		if at.UnixNano()-c.deadline.Load() > int64(time.Second) {
			c.deadline.Store(at.UnixNano())
			if err := c.Conn.SetWriteDeadline(at); err != nil {
				return 0, err
			}
		}
	}
	return c.Conn.Write(p)
}

// Close implements [net.Conn].
func (c *connection) Close() error {
	c.once.Do(c.release)
	return c.Conn.Close()
}

// forget makes room for the head of the next request.
func (c *connection) forget() {
	c.mu.Lock()
	c.head = c.head[:0]
	c.mu.Unlock()
}

// answeredOne makes up for one request that was cancelled.
func (c *connection) answeredOne() {
	if n := c.resets.Load(); n > 0 {
		c.resets.CompareAndSwap(n, n-1)
	}
}

// framing says how the body of r, which has a Transfer-Encoding, was announced: ambiguous where a
// Content-Length came with it, clean where none did. Neither where the head is not known, as of the second
// of two requests that came in one piece. Of one that came in several the last may look like a whole head,
// if a field's value is a request line; but then it lacks fields that r has.
func (c *connection) framing(r *http.Request) (ambiguous, clean bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	head, _, whole := bytes.Cut(c.head, []byte("\r\n\r\n"))
	if !whole || !bytes.HasPrefix(head, []byte(r.Method+" "+r.RequestURI+" ")) {
		return false, false
	}
	_, fields, _ := bytes.Cut(head, []byte("\n"))
	known := 0
	for line := range bytes.SplitSeq(fields, []byte("\n")) {
		name, _, _ := bytes.Cut(line, []byte(":"))
		switch strings.ToLower(string(bytes.TrimSpace(name))) {
		case "content-length":
			return true, false
		case "host", "transfer-encoding", "trailer": // net/http takes them out
		default:
			known++
		}
	}
	for _, lines := range r.Header {
		known -= len(lines)
	}
	return false, known == 0
}

// listener hands out at most a number of connections at a time. Those above it wait, except that a source which has
// its part of all is refused.
type listener struct {
	net.Listener
	writeTime time.Duration
	bound     *connlimit.Conns
	room      chan struct{}
	done      chan struct{} // closed by Close
	once      sync.Once
}

func newListener(l net.Listener, bound *connlimit.Conns, most int, writeTime time.Duration) *listener {
	return &listener{
		Listener: l, writeTime: writeTime, bound: bound, room: make(chan struct{}, most), done: make(chan struct{}),
	}
}

// Accept implements [net.Listener].
func (l *listener) Accept() (net.Conn, error) {
	select {
	case l.room <- struct{}{}:
	case <-l.done:
		return nil, net.ErrClosed
	}
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			<-l.room
			return nil, err
		}
		leave, ok := l.bound.Enter(c.RemoteAddr())
		if !ok {
			_ = c.Close()
			continue
		}
		release := func() {
			leave()
			<-l.room
		}
		return &connection{Conn: c, writeTime: l.writeTime, release: release}, nil
	}
}

// Close implements [net.Listener].
func (l *listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.Listener.Close()
}

// connectionKey finds a connection in the context of its requests.
type connectionKey struct{}

// withConnection is the server's ConnContext. Behind TLS the head is encrypted: what remembers it is of no
// use there, and framing says neither.
func withConnection(ctx context.Context, c net.Conn) context.Context {
	if secured, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = secured.NetConn()
	}
	if own, ok := c.(*connection); ok {
		return context.WithValue(ctx, connectionKey{}, own)
	}
	return ctx
}

func connectionOf(r *http.Request) *connection {
	c, _ := r.Context().Value(connectionKey{}).(*connection)
	return c
}
