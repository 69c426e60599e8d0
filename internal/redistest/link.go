package redistest

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"strings"
	"sync"
	"time"
)

const (
	chunkBytes = 32 << 10
	// chunksOnTheWay are read ahead of what is delayed or frozen. More than that
	// stays in the sockets, as behind a peer that does not read.
	chunksOnTheWay = 1024
)

// link is one forwarded connection: a client's and one to the server.
type link struct {
	ctx    context.Context // ends with the link
	cancel context.CancelFunc
	client net.Conn

	mu     sync.Mutex
	server net.Conn // nil until it is made
	ended  bool
}

func newLink(client net.Conn) *link {
	ctx, cancel := context.WithCancel(context.Background())
	return &link{ctx: ctx, cancel: cancel, client: client}
}

// join adds the connection to the server. It reports false, and closes it, when the
// link has ended meanwhile.
func (l *link) join(server net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		abort(server)
		return false
	}
	l.server = server
	return true
}

// reset ends the link at once. What is on its way is lost.
func (l *link) reset() { l.end(abort) }

// close ends a link whose directions have both ended.
func (l *link) close() { l.end(func(conn net.Conn) { _ = conn.Close() }) }

func (l *link) end(closing func(net.Conn)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.ended = true
	l.cancel()
	closing(l.client)
	if l.server != nil {
		closing(l.server)
	}
}

// abort closes a connection without sending what it still holds; the other end
// finds it reset.
func abort(conn net.Conn) {
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

// chunk is what was read at once, and when it may arrive.
type chunk struct {
	bytes []byte
	due   time.Time
}

// carry moves bytes from one connection to the other until the sender ends, which
// it passes on, or the link is reset. A chunk is written delay after it was read
// and once the channel that gate returns is closed; rules, unless nil, rewrite it.
func (l *link) carry(to, from net.Conn, delay func() time.Duration, gate func() <-chan struct{}, rules func() []rule) {
	way := make(chan chunk, chunksOnTheWay)
	var reading sync.WaitGroup
	reading.Go(func() {
		defer close(way)
		l.read(from, way, delay)
	})
	defer reading.Wait()

	var text rewriter
	for c := range way {
		out := c.bytes
		if !l.wait(c.due, gate) {
			return
		}
		if rules != nil {
			out = text.rewrite(out, rules())
		}
		if _, err := to.Write(out); err != nil {
			l.reset()
			return
		}
	}
	if !l.wait(time.Time{}, gate) {
		return
	}
	_, _ = to.Write(text.held)
	if tcp, ok := to.(*net.TCPConn); ok {
		_ = tcp.CloseWrite()
	}
}

// read passes on what from sends. An end is passed on by the caller, a failure
// resets the link.
func (l *link) read(from net.Conn, way chan<- chunk, delay func() time.Duration) {
	buffer := make([]byte, chunkBytes)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			select {
			case way <- chunk{bytes.Clone(buffer[:n]), time.Now().Add(delay())}:
			case <-l.ctx.Done():
				return
			}
		}
		if err != nil {
			if !errors.Is(err, io.EOF) {
				l.reset()
			}
			return
		}
	}
}

// wait waits until due and for the gate. It reports false when the link was reset.
func (l *link) wait(due time.Time, gate func() <-chan struct{}) bool {
	if d := time.Until(due); d > 0 {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.ctx.Done():
			return false
		}
	}
	for {
		open := gate()
		select {
		case <-open:
			if open == gate() {
				return true
			}
			// Frozen again in between.
		case <-l.ctx.Done():
			return false
		}
	}
}

// rule replaces old by new, which is as long.
type rule struct{ old, new string }

// rewriter applies rules to a stream that comes in chunks.
type rewriter struct {
	held []byte // the end of the last chunk, which the next may complete to an old
}

// rewrite returns what may go out of the held bytes and chunk.
func (w *rewriter) rewrite(chunk []byte, rules []rule) []byte {
	in := append(w.held, chunk...)
	w.held = nil
	if len(rules) == 0 {
		return in
	}
	out := make([]byte, 0, len(in))
next:
	for i := 0; i < len(in); {
		for _, r := range rules {
			if bytes.HasPrefix(in[i:], []byte(r.old)) {
				out = append(out, r.new...)
				i += len(r.old)
				continue next
			}
		}
		for _, r := range rules {
			if len(in)-i < len(r.old) && strings.HasPrefix(r.old, string(in[i:])) {
				w.held = bytes.Clone(in[i:])
				return out
			}
		}
		out = append(out, in[i])
		i++
	}
	return out
}
