package forwarded

import (
	"net/http"
	"strings"
)

const (
	maxMethod = 32
	maxHost   = 255
	// maxURI bounds an original URI in bytes. What is longer is a Conflict and
	// not cut: a client could push what it asks for behind the cut with ./ or
	// with a query parameter. Not smaller: HAProxy passes on 16 KiB. Not
	// larger: it is as much as the service takes.
	maxURI = 64 << 10
)

// Family is a set of header fields in which gateways describe the request that
// they ask about.
type Family uint8

// The families.
const (
	AnyFamily  Family = iota // both are read, and have to agree
	XForwarded               // X-Forwarded-Method, -Proto, -Host and -Uri
	XOriginal                // X-Original-Method, -URI and -URL
)

// Origin describes a request as it was before a gateway asked about it. Empty
// fields are not known.
type Origin struct {
	// Method is the request's method, such as GET.
	Method string
	// Scheme is http, https, ws or wss.
	Scheme string
	// Host is as [Host] returns it.
	Host string
	// Authority is the host and port as the client sent them, or "" if X-Forwarded-Host has none.
	Authority string
	// URI is the path and query as sent, at most 64 KiB.
	URI string
	// Conflict is set when fields that should say the same do not: some of them
	// are then the client's own, and it cannot be known which. It is set as well
	// for a URI above the bound. Such a request must not pass for what it says
	// it is.
	Conflict bool
}

// OriginalFrom reads what a gateway says of the original request. Call it for
// header fields of trusted peers only.
//
// A gateway writes one family and passes on whatever the client sent of the
// other. So where both are there, they have to agree on method and URI, and so
// do several lines of one field; otherwise Conflict is set. Fields of a family
// that is not asked for are ignored.
func OriginalFrom(h http.Header, from Family) Origin {
	var o Origin
	if from != XOriginal {
		o.Method = o.agree(o.Method, o.single(h["X-Forwarded-Method"]))
		o.URI = o.agree(o.URI, target(o.single(h["X-Forwarded-Uri"])))
		o.Scheme = scheme(last(h["X-Forwarded-Proto"]))
		authority := last(h["X-Forwarded-Host"])
		if o.Host = Host(authority); o.Host != "" {
			o.Authority = authority
		}
	}
	if from != XForwarded {
		o.Method = o.agree(o.Method, o.single(h["X-Original-Method"]))
		o.URI = o.agree(o.URI, target(o.single(h["X-Original-Uri"])))
		if url := o.single(h["X-Original-Url"]); url != "" {
			o.URI = o.agree(o.URI, target(url))
			s, host := authority(url)
			if o.Scheme == "" {
				o.Scheme = s
			}
			if o.Host == "" {
				o.Host = host
			}
		}
	}
	if len(o.Method) > maxMethod || !isToken(o.Method) {
		o.Method = ""
	}
	if len(o.URI) > maxURI {
		o.URI, o.Conflict = "", true
	}
	return o
}

// Described reports whether a request has any field by which proxies and gateways describe the request of
// their client.
func Described(h http.Header) bool {
	for name := range h {
		if strings.HasPrefix(name, "X-Forwarded-") || strings.HasPrefix(name, "X-Original-") || name == "Forwarded" || name == "X-Real-Ip" {
			return true
		}
	}
	return false
}

// agree returns what both say, where an empty one says nothing.
func (o *Origin) agree(a, b string) string {
	if a == "" {
		return b
	}
	if b != "" && a != b {
		o.Conflict = true
	}
	return a
}

// single returns the value that all lines of a field have.
func (o *Origin) single(lines []string) string {
	v := ""
	for _, line := range lines {
		v = o.agree(v, strings.Trim(line, " \t"))
	}
	return v
}

// last returns the last element of a list: the nearest proxy's.
func last(lines []string) string {
	if len(lines) == 0 {
		return ""
	}
	line := lines[len(lines)-1]
	return strings.Trim(line[strings.LastIndexByte(line, ',')+1:], " \t")
}

func scheme(s string) string {
	for _, known := range [...]string{"http", "https", "ws", "wss"} {
		if strings.EqualFold(s, known) {
			return known
		}
	}
	return ""
}

// target returns the path and query of a URI in origin or absolute form.
func target(uri string) string {
	if uri == "" || uri[0] == '/' {
		return uri
	}
	_, rest, ok := strings.Cut(uri, "://")
	if !ok {
		return uri
	}
	if i := strings.IndexAny(rest, "/?#"); i < 0 {
		return "/"
	} else if rest[i] != '/' {
		return "/" + rest[i:]
	} else {
		return rest[i:]
	}
}

// authority returns the scheme and host of a URI in absolute form.
func authority(uri string) (string, string) {
	s, rest, ok := strings.Cut(uri, "://")
	if !ok || scheme(s) == "" {
		return "", ""
	}
	if i := strings.IndexAny(rest, "/?#"); i >= 0 {
		rest = rest[:i]
	}
	return scheme(s), Host(rest[strings.LastIndexByte(rest, '@')+1:])
}
