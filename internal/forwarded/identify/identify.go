// Package identify takes from an HTTP request the attributes that a limit asks
// for by name: header:<name>, cookie:<name> and query:<name>.
//
// It reads what is named and nothing else, so that a request with a hundred
// header fields costs no more than one with two.
package identify

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"net/http"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/stint-io/stint/internal/forwarded"
	"github.com/stint-io/stint/limit"
)

// MaxValue bounds the value of an attribute in bytes; see [Bound]. Not smaller: tokens
// have some hundred bytes, and patterns look at how values begin. Not larger: all that
// limits match and count by is read several times.
const MaxValue = 1 << 10

// maxToken bounds it where limits read the claims of tokens, which have some KiB. Not larger: more is
// not verified.
const maxToken = 8<<10 + len("Bearer ")

// maxAll bounds the attributes that "header:*" and "*" give. Package proxy accepts as many fields, so a client of it cannot
// push out the one that a limit reads by fields that it makes up.
const maxAll = 256

// Plan is a compiled list of attribute names. The zero value takes nothing. It
// is immutable and safe for concurrent use.
type Plan struct {
	names  []string
	fields []field
	all    bool // every header field
	// underscores is set if the name of a header field has one.
	underscores bool
	size        bool
	most        int // bytes of a value, if that is more than MaxValue
}

// Live is the plan for a list of names that may change while it is in use, such as
// that of limits which are loaded again. It is safe for concurrent use.
type Live struct {
	names func() []string
	plan  atomic.Pointer[Plan]
}

// NewLive returns the live plan for what names returns; nil names none.
func NewLive(names func() []string) *Live { return &Live{names: names} }

// Plan returns the plan for the names of now.
func (l *Live) Plan() *Plan {
	var names []string
	if l.names != nil {
		names = l.names()
	}
	p := l.plan.Load()
	if p == nil || !slices.Equal(p.names, names) {
		p = NewPlan(names)
		l.plan.Store(p)
	}
	return p
}

type field struct {
	attribute string
	where     where
	key       string
}

type where uint8

const (
	inHeader where = iota
	inCookie
	inQuery
)

// NewPlan compiles names such as "header:x-api-key", "cookie:session" and
// "query:tenant". "header:*" and "*" name every header field, at most 256 of them: of a
// request with more the attribute "header:*" is their number.
// Names of other kinds are left to those who know them.
func NewPlan(names []string) *Plan {
	p := &Plan{names: slices.Clone(names)}
	for _, name := range p.names {
		if name == "*" || name == "header:*" {
			p.all = true
			continue
		}
		p.size = p.size || name == "size"
		kind, key, ok := strings.Cut(name, ":")
		if !ok || key == "" {
			continue
		}
		switch kind {
		case "claim":
			p.most = maxToken
		case "header":
			p.fields = append(p.fields, field{name, inHeader, textproto.CanonicalMIMEHeaderKey(key)})
			p.underscores = p.underscores || strings.IndexByte(key, '_') >= 0
		case "cookie":
			p.fields = append(p.fields, field{name, inCookie, key})
		case "query":
			p.fields = append(p.fields, field{name, inQuery, key})
		}
	}
	return p
}

// Size reports whether "size", the length of the body, is among the names. Only who
// has the request knows it.
func (p *Plan) Size() bool { return p.size }

// Append appends the attributes that the request has and returns dst. Where a
// header field, cookie or query parameter occurs twice, the first one counts. One
// that is there and empty is an attribute with an empty value; one that is not
// there is no attribute. query is the raw query.
func (p *Plan) Append(dst []limit.Attribute, h http.Header, query string) []limit.Attribute {
	for i := range p.fields {
		f := &p.fields[i]
		var value string
		var ok bool
		switch f.where {
		case inHeader:
			if lines := h[f.key]; len(lines) > 0 {
				value, ok = lines[0], true
			}
		case inCookie:
			value, ok = cookie(h["Cookie"], f.key)
		case inQuery:
			value, ok = parameter(query, f.key)
		}
		if ok {
			if len(value) > p.most {
				value = Bound(value)
			}
			dst = append(dst, limit.Attribute{Name: f.attribute, Value: value})
		}
	}
	if p.all {
		dst = appendAll(dst, h)
	}
	return dst
}

// appendAll appends the header fields by name, so that which of too many are
// left out is no matter of chance. Those that stand in dst already come first
// there, and so count.
func appendAll(dst []limit.Attribute, h http.Header) []limit.Attribute {
	names := slices.Sorted(maps.Keys(h))
	if len(names) > maxAll {
		dst = append(dst, limit.Attribute{Name: "header:*", Value: strconv.Itoa(len(names))})
	}
	for _, name := range names[:min(len(names), maxAll)] {
		if lines := h[name]; len(lines) > 0 {
			dst = append(dst, limit.Attribute{Name: "header:" + strings.ToLower(name), Value: Bound(lines[0])})
		}
	}
	return dst
}

// MaxPath bounds the attribute path in bytes. It is not cut to [MaxValue], as
// limits match paths by their ends, too. Not smaller: services take header fields,
// and with them paths, of this size. Not larger: matching and hashing read all of it.
const MaxPath = 64 << 10

// BoundPath cuts a path to [MaxPath].
func BoundPath(path string) string { return path[:min(len(path), MaxPath)] }

// Names of the other readings of a path. A limit applies to a request if it applies to any of them; see package rules.
const (
	PathCleaned = "path:cleaned"
	PathSent    = "path:sent"
)

// AppendPath appends the attribute path of a URI as sent, and its other readings, of which most requests have none; see
// [forwarded.Readings]. It appends nothing for an empty path.
func AppendPath(dst []limit.Attribute, uri string) []limit.Attribute {
	path, cleaned, sent := forwarded.Readings(uri)
	for _, a := range [...]limit.Attribute{{Name: "path", Value: path}, {Name: PathCleaned, Value: cleaned}, {Name: PathSent, Value: sent}} {
		if a.Value != "" {
			a.Value = BoundPath(a.Value)
			dst = append(dst, a)
		}
	}
	return dst
}

// AppendURL is [AppendPath] for the path of a URL that a server has parsed.
func AppendURL(dst []limit.Attribute, u *url.URL) []limit.Attribute {
	if u.RawPath == "" && forwarded.CleanPath(u.Path) == u.Path {
		return append(dst, limit.Attribute{Name: "path", Value: BoundPath(u.Path)}) // whose escapes decode to nothing that counts
	}
	return AppendPath(dst, u.EscapedPath())
}

// Bound returns a value of at most [MaxValue] bytes. Of a longer one it keeps the
// beginning, which patterns may name, and puts the SHA-256 of the whole behind it: two
// long values that begin alike, as tokens do, stay two.
func Bound(value string) string {
	if len(value) <= MaxValue {
		return value
	}
	sum := sha256.Sum256([]byte(value))
	const mark = "...sha256:"
	return value[:MaxValue-len(mark)-2*len(sum)] + mark + hex.EncodeToString(sum[:])
}

func cookie(lines []string, name string) (string, bool) {
	for _, line := range lines {
		for line != "" {
			var pair string
			pair, line, _ = strings.Cut(line, ";")
			key, value, ok := strings.Cut(strings.Trim(pair, " \t"), "=")
			if ok && key == name {
				if len(value) > 1 && value[0] == '"' && value[len(value)-1] == '"' {
					value = value[1 : len(value)-1]
				}
				return value, true
			}
		}
	}
	return "", false
}

func parameter(query, name string) (string, bool) {
	for query != "" {
		var pair string
		pair, query, _ = strings.Cut(query, "&")
		key, value, _ := strings.Cut(pair, "=")
		if unescape(key) == name {
			return unescape(value), true
		}
	}
	return "", false
}

// unescape decodes s, or returns it as it is when an escape is malformed.
func unescape(s string) string {
	if strings.IndexByte(s, '%') < 0 && strings.IndexByte(s, '+') < 0 {
		return s
	}
	if u, err := url.QueryUnescape(s); err == nil {
		return u
	}
	return s
}
