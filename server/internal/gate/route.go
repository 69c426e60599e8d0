package gate

import (
	"fmt"
	"net/http"
	"net/textproto"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/forwarded"
	"github.com/stint-io/stint/internal/forwarded/identify"
	"github.com/stint-io/stint/limit"
)

const (
	// maxPath bounds the path of an endpoint with its options, in bytes.
	maxPath = 4 << 10
	// maxAttributes bounds the attributes in a path.
	maxAttributes = 8
)

// route is what the path of a call says.
type route struct {
	nginx      bool
	cost       int64
	peek       bool
	from       forwarded.Family
	wait       time.Duration
	once       string // canonical name of a header field, or ""
	absolute   bool   // Location has to be an absolute address
	attributes [maxAttributes]limit.Attribute
	n          int

	hasCost, hasFrom, hasWait bool

	unique  bool // what limits read must be there once
	only4xx bool // a refusal has a status of 4xx
}

// fault says why a path is none of ours.
type fault struct {
	status int
	text   string
}

func badOption(format string, args ...any) *fault {
	return &fault{http.StatusBadRequest, "gate: " + fmt.Sprintf(format, args...)}
}

// parse reads an escaped path that begins with [Prefix].
func (rt *route) parse(path string) *fault {
	if len(path) > maxPath {
		return badOption("a path above %d bytes", maxPath)
	}
	path, ok := strings.CutPrefix(path, Prefix)
	mode, options, _ := strings.Cut(path, "/")
	switch {
	case ok && mode == "forward-auth":
	case ok && mode == "nginx":
		rt.nginx = true
	default:
		return &fault{http.StatusNotFound, "gate: no such endpoint, want " + Prefix + "forward-auth or " + Prefix + "nginx"}
	}
	for options != "" {
		var option string
		option, options, _ = strings.Cut(options, "/")
		if option == "" {
			continue
		}
		if f := rt.option(option); f != nil {
			return f
		}
	}
	return nil
}

func (rt *route) option(option string) *fault {
	name, escaped, _ := strings.Cut(option, "=")
	value, err := url.PathUnescape(escaped)
	if err != nil {
		return badOption("option %s: malformed percent escape", name)
	}
	attribute, isAttribute := strings.CutPrefix(name, "attr.")
	switch {
	case name == "wait" && rt.hasWait, name == "cost" && rt.hasCost, name == "from" && rt.hasFrom, name == "once" && rt.once != "",
		name == "location" && rt.absolute, name == "refuse" && rt.only4xx, isAttribute && rt.has(attribute):
		return badOption("option %s stands there twice", name)
	case name == "cost":
		n, err := strconv.ParseInt(value, 10, 64)
		if err != nil || n < 0 || n > limit.MaxCount {
			return badOption("cost is %q, want a number from 0 (which only looks) to %d", value, int64(limit.MaxCount))
		}
		rt.cost, rt.peek, rt.hasCost = n, n == 0, true
	case name == "duplicates" && value == "refuse":
		rt.unique = true
	case name == "duplicates":
		return badOption("duplicates is %q, want refuse", value)
	case name == "from" && value == "x-forwarded":
		rt.from, rt.hasFrom = forwarded.XForwarded, true
	case name == "from" && value == "x-original":
		rt.from, rt.hasFrom = forwarded.XOriginal, true
	case name == "from":
		return badOption("from is %q, want x-forwarded or x-original", value)
	case name == "wait":
		d, err := time.ParseDuration(value)
		if err != nil || d < 0 || d > longestWait {
			return badOption("wait is %q, want a duration up to %v, such as 500ms", value, longestWait)
		}
		rt.wait, rt.hasWait = d, true
	case name == "once" && value != "":
		rt.once = textproto.CanonicalMIMEHeaderKey(value)
	case name == "once":
		return badOption("once wants the name of a header field, as in once=x-request-id")
	case name == "location" && value == "absolute":
		rt.absolute = true
	case name == "location":
		return badOption("location is %q, want absolute", value)
	case name == "refuse" && value == "4xx":
		rt.only4xx = true
	case name == "refuse":
		return badOption("refuse is %q, want 4xx", value)
	case isAttribute && attribute != "":
		if rt.n == maxAttributes {
			return badOption("more than %d attributes", maxAttributes)
		}
		rt.attributes[rt.n] = limit.Attribute{Name: attribute, Value: identify.Bound(value)}
		rt.n++
	default:
		return badOption("unknown option %q, want cost=, from=, wait=, once=, location=, duplicates=, refuse= or attr.NAME=", name)
	}
	return nil
}

func (rt *route) has(attribute string) bool {
	for i := range rt.n {
		if rt.attributes[i].Name == attribute {
			return true
		}
	}
	return false
}
