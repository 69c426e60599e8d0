package resp

import (
	"context"
	"net"
	"time"

	"github.com/stint-io/stint/internal/override"
	"github.com/stint-io/stint/server/internal/accept"
	"github.com/stint-io/stint/server/internal/access"
)

// mostOut is how much of answers is collected before they are written. Not larger: a client that asks and does not
// read must not fill the memory. Not smaller: a batch of 256 commands is answered by one write.
const mostOut = 16 << 10

// conn is one connection. It belongs to its goroutine.
type conn struct {
	opts    *Options
	figures *figures
	ending  func() bool // the server ends
	ctx     context.Context
	conn    net.Conn
	socket  *socket // nil = commands are read from conn
	id      int64
	name    string

	session *access.Session // nil = nobody has proved who he is
	first   *access.Session // of the client's certificate; nil = it has none
	reader  reader
	w       writer
	call    override.Call
	block   *block // nil = none was begun by MULTI
	due     *block // to be run now
	quit    bool
	tardy   bool // there is a deadline for the rest of a command

	answered, tardyAt uint64 // commands, and how many when the deadline was set

	writeBy time.Time // the deadline of writes that is set
	now     string    // the command that is run, for a fault
}

// hurry bounds how long the rest of a command may take. Who has to say yet who he is has a deadline already.
func (c *conn) hurry() {
	partial, another := c.reader.partial(), c.answered != c.tardyAt
	if partial == c.tardy && !(partial && another) || c.opts.Identities != nil && c.session == nil {
		return
	}
	c.tardy, c.tardyAt = partial, c.answered
	by := time.Time{}
	if partial {
		by = time.Now().Add(readTime)
	}
	if c.socket != nil {
		c.socket.looks = false // its deadline is replaced
	}
	c.readBy(by)
}

// readBy sets until when something may come, in place of every such time before. A server that ends has set it for all,
// or does it here.
func (c *conn) readBy(by time.Time) {
	if c.socket != nil {
		c.socket.looks = false // that time was for a look
	}
	if c.ending() {
		return
	}
	_ = c.conn.SetReadDeadline(by)
	if c.ending() {
		_ = c.conn.SetReadDeadline(time.Now().Add(accept.Linger))
	}
}

// known ends the deadlines of a beginning.
func (c *conn) known() {
	_ = c.conn.SetWriteDeadline(time.Time{})
	c.writeBy, c.tardy = time.Time{}, false
	c.readBy(time.Time{})
}

// flush writes the answers; false = the client does not take them.
func (c *conn) flush() bool {
	if len(c.w.out) == 0 {
		return true
	}
	rest := c.w.out
	if c.socket != nil {
		rest = rest[c.socket.write(rest):]
	}
	var err error
	if len(rest) > 0 {
		err = c.write(rest)
	}
	if c.w.out = c.w.out[:0]; cap(c.w.out) > 2*mostOut {
		c.w.out = nil
	}
	return err == nil
}

// write writes answers, and waits until the client takes them.
func (c *conn) write(out []byte) error {
	// To set a deadline for each batch would cost more than a decision.
	if now := time.Now(); c.writeBy.Sub(now) < writeTime*2/3 {
		c.writeBy = now.Add(writeTime)
		_ = c.conn.SetWriteDeadline(c.writeBy)
	}
	_, err := c.conn.Write(out)
	return err
}

// identify makes who shows the credential the one that the connection speaks for.
func (c *conn) identify(shown access.Credential) error {
	session := c.opts.Identities.Begin(shown)
	if _, err := session.Identity(); err != nil {
		return err
	}
	first := c.session == nil
	if c.session = session; first {
		c.known()
	}
	return nil
}

// may reports whether the client may ask for decisions at this moment, and answers if not.
func (c *conn) may() bool {
	if c.opts.Identities == nil {
		return true
	}
	if c.session == nil {
		c.figures.unauthenticated.Add(1)
		c.w.fail("NOAUTH Authentication required: send AUTH TOKEN, or HELLO 3 AUTH default TOKEN")
		return false
	}
	id, err := c.session.Identity()
	if err != nil {
		c.figures.unauthenticated.Add(1)
		c.w.fail("NOAUTH " + err.Error())
		return false
	}
	if err := id.Refuses(access.Take); err != nil {
		c.figures.denied.Add(1)
		c.w.fail("NOPERM " + err.Error())
		return false
	}
	return true
}
