package resp

import (
	"strings"
	"time"
	"unicode/utf8"

	"github.com/stint-io/stint/internal/reserve"
	"github.com/stint-io/stint/limit"
)

// maxName bounds the name of an attribute, in bytes.
const maxName = 256

// attributes reads names and values. They are copied, as limits may keep them.
func (c *conn) attributes(args [][]byte) ([]limit.Attribute, bool) {
	if len(args)%2 != 0 {
		c.w.fail("ERR an attribute has a name and no value: send name value, name value, and so on")
		return nil, false
	}
	var text strings.Builder
	for _, a := range args {
		text.Write(a)
	}
	rest := text.String()
	list := make([]limit.Attribute, 0, len(args)/2)
	for i := 0; i < len(args); i += 2 {
		name, value := rest[:len(args[i])], rest[len(args[i]):len(args[i])+len(args[i+1])]
		rest = rest[len(name)+len(value):]
		switch {
		case name == "" || len(name) > maxName:
			c.w.fail("ERR the name of an attribute has 1 to 256 bytes")
			return nil, false
		case !utf8.ValidString(name):
			c.w.fail("ERR the name of an attribute is not valid UTF-8")
			return nil, false
		}
		for _, before := range list {
			if before.Name == name {
				c.w.fail("ERR the attribute " + name + " stands there twice")
				return nil, false
			}
		}
		list = append(list, limit.Attribute{Name: name, Value: value})
	}
	return list, true
}

// request reads a cost and attributes.
func (c *conn) request(args [][]byte) (req limit.Request, ok bool) {
	if req.Cost, ok = c.number("cost", args[0], 1, mostCount); !ok {
		return req, false
	}
	req.Attributes, ok = c.attributes(args[1:])
	return req, ok
}

func (c *conn) take(args [][]byte) outcome { return c.decide(args, false) }

func (c *conn) peek(args [][]byte) outcome { return c.decide(args, true) }

func (c *conn) decide(args [][]byte, peek bool) outcome {
	req, ok := c.request(args)
	if !ok {
		return failed
	}
	req.Peek = peek
	d, err := c.opts.Engine.TakeWithin(c.ctx, req, longestWait)
	if err != nil {
		return c.fails(err)
	}
	c.w.decision(&d)
	return ended(&d)
}

func ended(d *limit.Decision) outcome {
	if d.Allowed {
		return allowed
	}
	return refused
}

func (c *conn) finish(args [][]byte) outcome {
	permit, ok := c.number("permit", args[0], 1, 1<<53)
	if !ok {
		return failed
	}
	attrs, ok := c.attributes(args[1:])
	if !ok {
		return failed
	}
	if err := c.opts.Engine.Finish(c.ctx, limit.Request{Attributes: attrs, Cost: 1}, uint64(permit)); err != nil {
		return c.fails(err)
	}
	return c.ok()
}

func (c *conn) reserve(args [][]byte) outcome {
	charge := false
	if last := len(args) - 1; len(args)%2 != 0 && same(args[last], "CHARGE") {
		charge, args = true, args[:last]
	}
	ttl, ok := c.number("ttl_ms", args[1], 1, reserve.MaxTTL.Milliseconds())
	if !ok {
		return failed
	}
	args[1] = args[0]
	req, ok := c.request(args[1:])
	if !ok {
		return failed
	}
	one, d, err := c.opts.Reservations.Reserve(c.ctx, req, time.Duration(ttl)*time.Millisecond, charge)
	switch {
	case err != nil:
		return c.fails(err)
	case !d.Allowed:
		c.w.decision(&d)
	default:
		c.w.reservation(&one)
	}
	return ended(&d)
}

func (c *conn) commit(args [][]byte) outcome {
	actual, ok := c.number("actual", args[1], 0, mostCount)
	if !ok {
		return failed
	}
	one, err := c.opts.Reservations.Commit(c.ctx, string(args[0]), actual)
	return c.settled(&one, err)
}

func (c *conn) renew(args [][]byte) outcome {
	used, ok := c.number("used", args[1], 0, mostCount)
	if !ok {
		return failed
	}
	ttl := int64(0)
	if len(args) == 3 {
		if ttl, ok = c.number("ttl_ms", args[2], 1, reserve.MaxTTL.Milliseconds()); !ok {
			return failed
		}
	}
	one, err := c.opts.Reservations.Renew(c.ctx, string(args[0]), used, time.Duration(ttl)*time.Millisecond)
	return c.settled(&one, err)
}

func (c *conn) release(args [][]byte) outcome {
	one, err := c.opts.Reservations.Release(c.ctx, string(args[0]))
	return c.settled(&one, err)
}

func (c *conn) settled(one *reserve.Reservation, err error) outcome {
	if err != nil {
		return c.fails(err)
	}
	c.w.reservation(one)
	return done
}

// reservation answers one as it is now.
func (w *writer) reservation(r *reserve.Reservation) {
	w.pairs(9)
	w.pair("allowed", 1)
	w.bulk("id")
	w.bulk(r.ID)
	w.bulk("state")
	w.bulk(string(r.State))
	w.pair("reserved", r.Reserved)
	w.pair("clamped", oneIf(r.Clamped))
	w.pair("used", r.Used)
	w.pair("actual", r.Actual)
	w.pair("late", oneIf(r.Late))
	w.pair("ends_ms", r.Ends.UnixMilli())
}
