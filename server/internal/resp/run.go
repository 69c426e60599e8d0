package resp

import (
	"errors"
	"io"
	"net"
	"os"
	"time"
)

// The loops below spare the read that finds nothing. A [net.Conn] that has read all that there is reads once more before it
// waits, which is a quarter of the work of a command that comes alone. runRaw's connection waits as soon as it was sent
// less than there was room for: what comes later wakes it.
//
// One thing does not: an end of the input that came with the last command, from a client that sends no more and still
// reads. So a connection that waits is looked at once more after lookAfter, and then waits for good.

// lookAfter is how long a client that has closed one direction waits for the other at most. Not shorter: it is a timer
// that each busy connection sets as often.
const lookAfter = 250 * time.Millisecond

// turnsAtOnce is how often a connection is read that always has more, before its deadlines are looked at: a client that
// sends faster than it is answered would never meet the one of a beginning, or of the server's end.
const turnsAtOnce = 64

// run answers commands until the client goes, or breaks the protocol.
func (c *conn) run() {
	defer func() {
		if p := recover(); p != nil && c.opts.Fault != nil {
			c.opts.Fault(c.now, p)
		}
	}()
	if c.runRaw() {
		return
	}
	for c.turn(c.conn) {
	}
}

// turn reads once and answers; false = the connection has ended, or nothing has come.
func (c *conn) turn(from io.Reader) bool {
	if err := c.reader.fill(from); err != nil {
		return false // it is closed, or too slow
	}
	err := c.batch()
	if !c.flush() || err != nil || c.quit {
		return false
	}
	c.hurry()
	return true
}

// batch answers the commands that have come.
func (c *conn) batch() error {
	for !c.quit {
		args, err := c.reader.next()
		switch {
		case errors.Is(err, errIncomplete):
			return nil
		case err != nil:
			c.figures.protocol.Add(1)
			c.w.fail("ERR " + err.Error())
			return err
		case len(args) == 0:
			continue
		}
		c.command(args)
		c.answered++
		if !c.runBlock() || len(c.w.out) >= mostOut && !c.flush() {
			return net.ErrClosed
		}
	}
	return nil
}

// runRaw is run of a connection that the kernel has as it is; false = it has not.
func (c *conn) runRaw() bool {
	raw := rawOf(c.conn)
	if raw == nil {
		return false
	}
	c.socket = new(socket)
	for {
		err := raw.Read(c.turns)
		if err == nil && c.socket.again {
			continue
		}
		if !c.socket.looks || !errors.Is(err, os.ErrDeadlineExceeded) || c.ending() {
			return true
		}
		c.readBy(time.Time{})
	}
}

// turns answers what has come; false = wait for more, true = it has ended.
func (c *conn) turns(fd uintptr) bool {
	s := c.socket
	s.fd, s.again = fd, false
	for range turnsAtOnce {
		if !c.turn(s) {
			return !s.empty
		}
		if s.short {
			c.lookLater()
			return false
		}
	}
	s.again = true
	return true
}

// lookLater sets the deadline after which the connection is looked at, unless there is one, for whatever reason.
func (c *conn) lookLater() {
	if c.socket.looks || c.tardy || c.opts.Identities != nil && c.session == nil {
		return
	}
	c.readBy(time.Now().Add(lookAfter))
	c.socket.looks = true
}
