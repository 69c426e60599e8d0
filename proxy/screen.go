package proxy

import (
	"net/http"
	"strconv"
	"strings"
)

// maxFields bounds the header fields of a request. Not more: each is looked at several times. Not less:
// browsers send some thirty, gateways add ten. The attribute header:* gives as many.
const maxFields = 256

// refusal is why a request is refused before any limit is asked.
type refusal struct {
	status int
	reason string // for metrics
	detail string // for the client
}

var (
	refusedFraming  = &refusal{http.StatusBadRequest, "framing", "the request has Content-Length and Transfer-Encoding, so its end is ambiguous"}
	refusedHost     = &refusal{http.StatusBadRequest, "host", "the host is malformed"}
	refusedTarget   = &refusal{http.StatusBadRequest, "target", "the request target is malformed"}
	refusedHop      = &refusal{http.StatusBadRequest, "connection", "the field Connection names what is not of the connection"}
	refusedUpgrade  = &refusal{http.StatusBadRequest, "upgrade", "the upgrade is malformed"}
	refusedMethod   = &refusal{http.StatusNotImplemented, "method", "the method is not forwarded"}
	refusedFields   = &refusal{http.StatusRequestHeaderFieldsTooLarge, "fields", "there are too many header fields"}
	refusedBody     = &refusal{http.StatusRequestEntityTooLarge, "body", "the body is larger than allowed"}
	refusedResets   = &refusal{http.StatusTooManyRequests, "resets", "too many requests of this connection were cancelled"}
	refusedTwice    = &refusal{http.StatusBadRequest, "duplicate", "the request has what limits read more than once"}
	refusedTransfer = &refusal{http.StatusBadRequest, "framing", "the framing of the body is not understood"}
)

// screen says what is wrong with a request that net/http has accepted; nil = nothing. What it lets pass
// means the same to every server behind. It may take Upgrade out of the header, and sets Close where the
// connection must end with the request.
func screen(r *http.Request, maxBody int64) (refused *refusal) {
	switch {
	case !token(r.Method) || r.Method == http.MethodConnect || r.Method == http.MethodTrace:
		return refusedMethod
	case len(r.Header) > maxFields:
		return refusedFields
	case !plainHost(r.Host):
		return refusedHost
	case r.URL.Path == "" || r.URL.Path[0] != '/' && r.URL.Path != "*":
		return refusedTarget
	case maxBody > 0 && r.ContentLength > maxBody:
		return refusedBody
	}
	if len(r.TransferEncoding) > 0 {
		if refused = framed(r); refused != nil {
			return refused
		}
	}
	if r.ProtoMajor == 1 {
		// net/http ignores a Transfer-Encoding of HTTP/1.0, which others obey: RFC 9112, 6.1, has such a
		// connection end.
		r.Close = r.Close || r.ProtoMinor == 0
		return hop(r)
	}
	return stream(r)
}

// stream looks at what HTTP/2 says in other words than HTTP/1.1: its frames say how long a body is, and a
// length beside them must agree (RFC 9113, 8.1.1); the host stands in a field of its own.
func stream(r *http.Request) *refusal {
	if r.URL.Host != "" || r.URL.Scheme != "" {
		return refusedTarget
	}
	lengths := r.Header["Content-Length"]
	if len(lengths) == 0 {
		return nil
	}
	// net/http takes a length that is no number for 0.
	n, err := strconv.ParseUint(lengths[0], 10, 63)
	if len(lengths) > 1 || err != nil || int64(n) != r.ContentLength {
		return refusedFraming
	}
	return nil
}

// framed looks at a body of chunks. A proxy in front of this one may have gone by the
// Content-Length that came with it: RFC 9112, 6.3, has such a connection end at the least.
func framed(r *http.Request) *refusal {
	if len(r.TransferEncoding) != 1 || r.TransferEncoding[0] != "chunked" {
		return refusedTransfer
	}
	ambiguous, clean := false, false
	if c := connectionOf(r); c != nil {
		ambiguous, clean = c.framing(r)
	}
	if ambiguous {
		return refusedFraming
	}
	if !clean {
		r.Close = true
	}
	return nil
}

// hop looks at the fields of the connection. A client that names another field in Connection would have
// it taken out behind the limits that go by it, or behind a proxy in front that has added it.
func hop(r *http.Request) *refusal {
	lines := r.Header["Connection"]
	upgrade := false
	for _, line := range lines {
		for line != "" {
			var option string
			option, line, _ = strings.Cut(line, ",")
			switch option = strings.Trim(option, " \t"); {
			case option == "":
			case strings.EqualFold(option, "upgrade"):
				upgrade = true
			case strings.EqualFold(option, "close"), strings.EqualFold(option, "keep-alive"),
				strings.EqualFold(option, "te"), strings.EqualFold(option, "http2-settings"),
				strings.EqualFold(option, "proxy-connection"), strings.EqualFold(option, "trailer"):
			default:
				return refusedHop
			}
		}
	}
	protocol := r.Header["Upgrade"]
	if len(protocol) == 0 {
		return nil
	}
	// A server may ignore an Upgrade (RFC 9110, 7.8), and this one ignores all but WebSocket: a tunnel
	// of h2c would pass every limit.
	if !upgrade || len(protocol) > 1 || !strings.EqualFold(protocol[0], "websocket") || r.ProtoMinor == 0 {
		r.Header.Del("Upgrade")
		r.Header.Del("Http2-Settings")
		r.Header.Del("Connection")
		return nil
	}
	if r.Method != http.MethodGet || r.ContentLength != 0 || len(r.TransferEncoding) > 0 ||
		len(r.Header["Sec-Websocket-Key"]) != 1 || r.Header.Get("Sec-Websocket-Version") != "13" {
		return refusedUpgrade
	}
	return nil
}

// token reports whether s is a token of RFC 9110. Over HTTP/2 a method may be anything.
func token(s string) bool {
	for i := range len(s) {
		c := s[i]
		if c <= ' ' || c >= 0x7f || strings.IndexByte(`"(),/:;<=>?@[\]{}`, c) >= 0 {
			return false
		}
	}
	return s != ""
}

// plainHost reports whether a host, which may have a port, is one that every server reads alike. Over HTTP/2
// it may be anything.
func plainHost(s string) bool {
	if len(s) > 261 { // a name and a port
		return false
	}
	for i := range len(s) {
		c := s[i]
		letter := c|0x20 >= 'a' && c|0x20 <= 'z' || c >= '0' && c <= '9'
		if !letter && strings.IndexByte("-._~:[]%!$&'()*+;=", c) < 0 {
			return false
		}
	}
	return true
}
