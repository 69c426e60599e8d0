package rest

import "github.com/stint-io/stint/limit"

// quickAttributes bounds the attributes of a body that quick reads: it compares each name with
// those before.
const quickAttributes = 8

// quick reads the body that nearly all callers send: the members "attributes", "cost" and
// "count_refused", each once, texts without an escape in printable ASCII, whole numbers. It says
// false of any other body, right or wrong, and [parse] reads that from the beginning and says what is
// wrong with it. What quick accepts, parse accepts with the same result.
func quick(src []byte, b *body) bool {
	q := quickReader{src: src}
	*b = body{request: limit.Request{Cost: 1}}
	if !q.next('{') {
		return false
	}
	var attributes, cost, count bool
	for first := true; !q.next('}'); first = false {
		if !first && !q.next(',') {
			return false
		}
		name, ok := q.text()
		if !ok || !q.next(':') {
			return false
		}
		switch string(name) {
		case "attributes":
			ok = !attributes && q.attributes(&b.request)
			attributes = true
		case "cost":
			ok = !cost && q.cost(b)
			cost = true
		case "count_refused":
			ok = !count && q.flag(&b.request.CountRefused)
			count = true
		default:
			ok = false
		}
		if !ok {
			return false
		}
	}
	q.space()
	return q.at == len(src)
}

type quickReader struct {
	src []byte
	at  int
}

func (q *quickReader) space() {
	for q.at < len(q.src) && (q.src[q.at] == ' ' || q.src[q.at] == '\n' || q.src[q.at] == '\t' || q.src[q.at] == '\r') {
		q.at++
	}
}

// next moves over c where it comes next.
func (q *quickReader) next(c byte) bool {
	q.space()
	if q.at >= len(q.src) || q.src[q.at] != c {
		return false
	}
	q.at++
	return true
}

// text reads a string without escapes.
func (q *quickReader) text() ([]byte, bool) {
	if !q.next('"') {
		return nil, false
	}
	for begin := q.at; q.at < len(q.src); q.at++ {
		switch c := q.src[q.at]; {
		case c == '"':
			q.at++
			return q.src[begin : q.at-1], true
		case c == '\\' || c < 0x20 || c > 0x7e:
			return nil, false
		}
	}
	return nil, false
}

func (q *quickReader) attributes(req *limit.Request) bool {
	if !q.next('{') {
		return false
	}
	var room [quickAttributes]limit.Attribute
	n := 0
	for ; !q.next('}'); n++ {
		if n == quickAttributes || n > 0 && !q.next(',') {
			return false
		}
		name, ok := q.text()
		if !ok || len(name) == 0 || len(name) > MaxNameLength || !q.next(':') {
			return false
		}
		for i := range n {
			if room[i].Name == string(name) {
				return false
			}
		}
		value, ok := q.text()
		if !ok {
			return false
		}
		room[n] = limit.Attribute{Name: attributeName(name), Value: string(value)}
	}
	if n > 0 {
		req.Attributes = append(make([]limit.Attribute, 0, n), room[:n]...)
	}
	return true
}

// attributeName is string(name), without an allocation for the names that most limits go by.
func attributeName(name []byte) string {
	switch string(name) {
	case "ip":
		return "ip"
	case "user":
		return "user"
	case "path":
		return "path"
	case "method":
		return "method"
	case "host":
		return "host"
	default:
		return string(name)
	}
}

// cost reads a whole number of at most 15 digits, which is within limit.MaxCount.
func (q *quickReader) cost(b *body) bool {
	q.space()
	begin, n := q.at, int64(0)
	for ; q.at < len(q.src) && q.src[q.at] >= '0' && q.src[q.at] <= '9'; q.at++ {
		if q.at-begin == 15 {
			return false
		}
		n = n*10 + int64(q.src[q.at]-'0')
	}
	if q.at == begin || q.src[begin] == '0' && q.at-begin > 1 {
		return false
	}
	b.hasCost = true
	if b.request.Cost = n; n == 0 {
		b.request.Cost, b.request.Peek = 1, true
	}
	return true
}

func (q *quickReader) flag(to *bool) bool {
	q.space()
	rest := q.src[q.at:]
	switch {
	case len(rest) >= 4 && string(rest[:4]) == "true":
		*to = true
		q.at += 4
	case len(rest) >= 5 && string(rest[:5]) == "false":
		q.at += 5
	default:
		return false
	}
	return true
}
