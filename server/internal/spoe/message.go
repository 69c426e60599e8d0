package spoe

import (
	"net/netip"
	"strconv"

	"github.com/stint-io/stint/internal/forwarded"
	"github.com/stint-io/stint/internal/forwarded/identify"
	"github.com/stint-io/stint/limit"
)

const (
	// maxAttributes bounds the arguments of a message. Not smaller: HTTP callers may send as many. Not larger: a
	// message that names more is a mistake.
	maxAttributes = 64
	maxName       = 256
)

// query is what a NOTIFY frame asks. Problem, if any, says why it cannot be decided: its frame is well formed, and the
// connection goes on.
type query struct {
	stream, frame uint64
	request       limit.Request
	problem       string
}

// parseNotify reads the payload of a NOTIFY into q. The error is that of a frame that is not well formed.
func (q *query) parseNotify(b []byte) (err error) {
	q.request, q.problem = limit.Request{Attributes: q.request.Attributes[:0], Cost: 1}, ""
	for messages := 1; len(b) > 0; messages++ {
		if messages == 2 {
			q.refuse("an event has one message to stint: two would be two decisions")
		}
		if _, b, err = text(b); err != nil {
			return err
		}
		if len(b) == 0 {
			return errShort
		}
		n := int(b[0])
		for b = b[1:]; n > 0; n-- {
			var name []byte
			var v value
			if name, b, err = text(b); err != nil {
				return err
			}
			if v, b, err = typed(b); err != nil {
				return err
			}
			if q.problem == "" {
				q.argument(name, &v)
			}
		}
	}
	return nil
}

func (q *query) refuse(problem string) {
	if q.problem == "" {
		q.problem = problem
	}
}

// argument takes one argument of the message: cost, or an attribute.
func (q *query) argument(name []byte, v *value) {
	switch {
	case len(name) == 0:
		q.refuse("an argument has no name, want args NAME=FETCH")
		return
	case len(name) > maxName:
		q.refuse("the name of an argument has more than " + strconv.Itoa(maxName) + " bytes")
		return
	case v.kind == typeNull:
		return // the request has no such thing
	case string(name) == "cost":
		q.cost(v)
		return
	case len(q.request.Attributes) >= maxAttributes:
		q.refuse("the message has more than " + strconv.Itoa(maxAttributes) + " arguments")
		return
	}
	if string(name) == "path" && (v.kind == typeString || v.kind == typeBinary) {
		q.request.Attributes = identify.AppendPath(q.request.Attributes, string(v.bytes))
		return
	}
	if s := attribute(string(name), v); s != "" {
		q.request.Attributes = append(q.request.Attributes, limit.Attribute{Name: string(name), Value: s})
	}
}

func (q *query) cost(v *value) {
	n, ok := v.signed()
	if v.kind == typeString {
		// A converter of HAProxy may have made a string of it.
		parsed, err := strconv.ParseInt(string(v.bytes), 10, 64)
		n, ok = parsed, err == nil
	}
	if !ok || n < 0 || n > limit.MaxCount {
		q.refuse("cost is no number from 0 (which only looks) to " + strconv.FormatInt(limit.MaxCount, 10))
		return
	}
	q.request.Cost, q.request.Peek = n, n == 0
}

// attribute returns the value of an attribute as the other doors write it, so that one limit is one limit however a
// request comes. "" is none.
func attribute(name string, v *value) string {
	s := ""
	switch v.kind {
	case typeBool:
		return strconv.FormatBool(v.flag)
	case typeIPv4, typeIPv6:
		return forwarded.IP(v.addr)
	case typeString, typeBinary:
		s = string(v.bytes)
	case typeUint64:
		return strconv.FormatUint(v.n, 10)
	default:
		n, _ := v.signed()
		return strconv.FormatInt(n, 10)
	}
	switch name {
	case "ip":
		if addr, err := netip.ParseAddr(s); err == nil {
			return forwarded.IP(addr)
		}
	case "host":
		return forwarded.Host(s)
	}
	return identify.Bound(s)
}
