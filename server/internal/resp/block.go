package resp

import (
	"encoding/binary"
	"fmt"
)

// Bounds on a block of commands. Not larger: each connection may hold one.
const (
	MaxBlock         = 64 << 10 // bytes
	MaxBlockCommands = 1000
)

// block is what came between MULTI and EXEC: commands that are run by EXEC, one after the other.
type block struct {
	n    int
	text []byte // of each command the number of its arguments, then each with its length before it
	bad  bool   // a command was refused, so that EXEC runs none
}

// add appends a command; false = the block is full.
func (b *block) add(args [][]byte) bool {
	size := binary.MaxVarintLen32
	for _, a := range args {
		size += binary.MaxVarintLen32 + len(a)
	}
	if b.n == MaxBlockCommands || len(b.text)+size > MaxBlock {
		return false
	}
	b.n++
	b.text = binary.AppendUvarint(b.text, uint64(len(args)))
	for _, a := range args {
		b.text = append(binary.AppendUvarint(b.text, uint64(len(a))), a...)
	}
	return true
}

// each calls f with each command.
func (b *block) each(f func(args [][]byte) bool) {
	next := func() int {
		n, size := binary.Uvarint(b.text)
		b.text = b.text[size:]
		return int(n)
	}
	var args [][]byte
	for len(b.text) > 0 {
		args = args[:0]
		for range next() {
			n := next()
			args, b.text = append(args, b.text[:n]), b.text[n:]
		}
		if !f(args) {
			return
		}
	}
}

// multi begins a block.
func (c *conn) multi([][]byte) outcome {
	if c.block != nil {
		c.w.fail("ERR MULTI calls can not be nested")
		return failed
	}
	c.block = new(block)
	return c.ok()
}

// discard drops a block.
func (c *conn) discard([][]byte) outcome {
	if c.block == nil {
		c.w.fail("ERR DISCARD without MULTI")
		return failed
	}
	c.block = nil
	return c.ok()
}

// exec has a block run, if nothing of it was refused.
func (c *conn) exec([][]byte) outcome {
	b := c.block
	c.block = nil
	switch {
	case b == nil:
		c.w.fail("ERR EXEC without MULTI")
		return failed
	case b.bad:
		c.w.fail("EXECABORT Transaction discarded because of previous errors.")
		return failed
	}
	c.w.array(b.n)
	c.due = b
	return done
}

// runBlock runs the block that EXEC has begun, if there is one; false = the client does not take the answers.
func (c *conn) runBlock() (ok bool) {
	b := c.due
	if b == nil {
		return true
	}
	c.due, ok = nil, true
	b.each(func(args [][]byte) bool {
		c.command(args)
		ok = len(c.w.out) < mostOut || c.flush()
		return ok
	})
	return ok
}

// queue notes a command of a block, and answers whether it is taken. What is wrong with it as it stands is said now.
func (c *conn) queue(h *handler, args [][]byte) {
	switch {
	case h == nil:
		c.strange(args)
	case !c.fits(h, args[1:]):
		c.figures.commands[h.kind][failed].Add(1)
	case !c.block.add(args):
		c.figures.commands[h.kind][failed].Add(1)
		c.w.fail(fmt.Sprintf("ERR a block has at most %d commands and %d bytes", MaxBlockCommands, MaxBlock))
	default:
		c.w.simple("QUEUED")
		return
	}
	*c.block = block{bad: true}
}
