package spoe

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/server/internal/accept"
	"github.com/stint-io/stint/server/internal/access"
)

// problemNoDecision is what the variable error says when the limits could not be asked.
const problemNoDecision = "no_decision: the limiter could not decide"

// errGone is that the gateway has closed the connection: nothing is said to it.
var errGone = &fault{text: "the gateway has gone"}

// conn is one connection. Its goroutine reads; each query is decided in a goroutine of its own, as decisions may ask a
// store, and HAProxy takes answers in any order.
type conn struct {
	server  *Server
	ctx     context.Context
	conn    net.Conn
	session *access.Session // nil = nobody has proved who he is

	in    *bufio.Reader
	frame []byte // the last one that was read
	most  uint64 // the longest frame that both sides take

	flight  chan struct{} // a place for each query under way
	queries sync.WaitGroup
	free    sync.Pool // of *query

	waiting atomic.Int64 // answers that are about to be written
	mu      sync.Mutex
	out     *bufio.Writer
	ack     []byte    // the answer being written
	writeBy time.Time // the deadline of writes that is set
}

func newConn(ctx context.Context, s *Server, raw net.Conn) *conn {
	return &conn{server: s, ctx: ctx, conn: raw, most: MaxFrame, flight: make(chan struct{}, maxFlight)}
}

// run serves the connection until it ends.
func (c *conn) run() {
	c.in, c.out = bufio.NewReaderSize(c.conn, 16<<10), bufio.NewWriterSize(c.conn, 16<<10)
	why := c.converse()
	c.queries.Wait()
	if why != nil && why != errGone {
		if why.status != statusNormal && why.status != statusUnauthorized {
			c.server.figures.protocol.Add(1)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		_ = c.conn.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = c.out.Write(appendDisconnect(nil, why.status, why.text)) // or he sees it closed
		_ = c.out.Flush()
	}
}

// converse reads frames until the connection ends, and returns what to say to the gateway; nil after a health check.
func (c *conn) converse() *fault {
	check, why := c.greet()
	if why != nil || check {
		return why
	}
	c.readBy(time.Time{})
	for {
		h, payload, why := c.read()
		if why != nil {
			return why
		}
		switch h.kind {
		case frameNotify:
			if why := c.notify(&h, payload); why != nil {
				return why
			}
		case frameDisconnect:
			return &fault{statusNormal, "bye"}
		case frameHello:
			return &fault{statusInvalid, "a second HELLO"}
		default:
			return &fault{statusInvalid, "a frame of a type that gateways do not send"}
		}
	}
}

// greet answers the HELLO of a gateway. Nothing follows a health check.
func (c *conn) greet() (check bool, why *fault) {
	h, payload, why := c.read()
	switch {
	case why != nil:
		return false, why
	case h.kind == frameDisconnect:
		return false, &fault{statusNormal, "bye"}
	case h.kind != frameHello || h.stream != 0 || h.frame != 0:
		return false, &fault{statusInvalid, "the first frame is no HELLO"}
	}
	hello, err := parseHello(payload)
	if err != nil {
		return false, asFault(err)
	}
	if why := c.refuses(); why != nil {
		return false, why
	}
	c.most = min(c.most, hello.most)
	c.mu.Lock()
	defer c.mu.Unlock()
	_, _ = c.out.Write(hello.appendAnswer(nil, c.most))
	if c.out.Flush() != nil {
		return true, nil
	}
	_ = c.conn.SetWriteDeadline(time.Time{})
	if hello.check {
		c.server.figures.checks.Add(1)
	}
	return hello.check, nil
}

// refuses returns why the gateway may not ask; nil = it may.
func (c *conn) refuses() *fault {
	if c.server.opts.Identities == nil {
		return nil
	}
	if c.session == nil {
		c.server.figures.unauthenticated.Add(1)
		return &fault{statusUnauthorized, "show a client certificate of an identity: SPOP has no other proof of who asks"}
	}
	id, err := c.session.Identity()
	if err != nil {
		c.server.figures.unauthenticated.Add(1)
		return &fault{statusUnauthorized, err.Error()}
	}
	if err := id.Refuses(access.Take); err != nil {
		c.server.figures.denied.Add(1)
		return &fault{statusUnauthorized, err.Error()}
	}
	return nil
}

// readBy sets until when something may come. A server that ends has set it for all, or does it here.
func (c *conn) readBy(by time.Time) {
	if !c.server.conns.Ending() {
		_ = c.conn.SetReadDeadline(by)
	}
	if c.server.conns.Ending() {
		_ = c.conn.SetReadDeadline(time.Now().Add(accept.Linger))
	}
}

// read returns the next frame, whose payload is valid until the next call.
func (c *conn) read() (h header, payload []byte, why *fault) {
	head, err := c.in.Peek(prefixLen)
	if err != nil {
		return h, nil, c.ended(err, len(head) > 0)
	}
	n := uint64(binary.BigEndian.Uint32(head))
	switch {
	case n > c.most:
		return h, nil, &fault{statusTooBig, "the frame is longer than max-frame-size"}
	case n < minFrame:
		return h, nil, &fault{statusInvalid, "the frame is shorter than its header"}
	}
	if _, err := c.in.Discard(prefixLen); err != nil {
		return h, nil, c.ended(err, true)
	}
	if whole := uint64(c.in.Buffered()) >= n; !whole && !c.server.conns.Ending() {
		c.readBy(time.Now().Add(readTime))
		defer c.readBy(time.Time{})
	}
	if uint64(cap(c.frame)) < n {
		c.frame = make([]byte, n)
	}
	c.frame = c.frame[:n]
	if _, err := io.ReadFull(c.in, c.frame); err != nil {
		return h, nil, c.ended(err, true)
	}
	h, payload, err = parseHeader(c.frame)
	if err != nil {
		return h, nil, asFault(err)
	}
	return h, payload, nil
}

// ended is what to say when nothing more can be read.
func (c *conn) ended(err error, within bool) *fault {
	switch {
	case c.server.conns.Ending():
		return &fault{statusNormal, "stint ends"}
	case errors.Is(err, os.ErrDeadlineExceeded):
		return &fault{statusTimeout, "the rest of a frame did not come in time"}
	case within:
		return &fault{statusInvalid, "the connection ends within a frame"}
	default:
		return errGone
	}
}

// notify decides a query.
func (c *conn) notify(h *header, payload []byte) *fault {
	if why := c.refuses(); why != nil {
		return why
	}
	q, ok := c.free.Get().(*query)
	if !ok {
		q = new(query)
	}
	q.stream, q.frame = h.stream, h.frame
	if err := q.parseNotify(payload); err != nil {
		return asFault(err)
	}
	c.flight <- struct{}{}
	c.queries.Go(func() {
		defer func() { <-c.flight }()
		c.decide(q)
		c.free.Put(q)
	})
	return nil
}

// decide asks the limits and answers.
func (c *conn) decide(q *query) {
	answered := false
	defer func() {
		if p := recover(); p != nil {
			c.server.opts.Fault("SPOE NOTIFY", p)
			if !answered {
				c.fail(q, problemNoDecision)
			}
		}
	}()
	if q.problem != "" {
		c.fail(q, "bad_request: "+q.problem)
		return
	}
	// HAProxy lets a request pass whose answer comes after its timeout processing, so no limit may hold it back.
	d, err := c.server.opts.Engine.TakeWithin(c.ctx, q.request, 0)
	if err != nil {
		c.fail(q, problemNoDecision)
		return
	}
	how := allowed
	if !d.Allowed {
		how = refused
	}
	c.server.figures.queries[how].Add(1)
	c.write(func(b []byte) []byte {
		answered = true
		return appendAck(b, q, &d, c.server.opts.Answer, int(c.most))
	})
}

func (c *conn) fail(q *query, problem string) {
	c.server.figures.queries[failed].Add(1)
	c.write(func(b []byte) []byte { return appendProblem(b, q, problem) })
}

// write writes an answer. Of several that are ready at a time only the last one flushes, so that they go out together.
func (c *conn) write(add func([]byte) []byte) {
	c.waiting.Add(1)
	c.mu.Lock()
	defer c.mu.Unlock()
	defer func() {
		if c.waiting.Add(-1) > 0 {
			return
		}
		if c.out.Flush() != nil {
			_ = c.conn.Close() // he does not take answers: reading ends as well
		}
	}()
	// To set a deadline for each answer would cost more than a decision.
	if now := time.Now(); c.writeBy.Sub(now) < writeTime*2/3 {
		c.writeBy = now.Add(writeTime)
		_ = c.conn.SetWriteDeadline(c.writeBy)
	}
	c.ack = add(c.ack[:0])
	_, _ = c.out.Write(c.ack) // Flush has the error
}
