package rest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
)

// Bounds on one request.
const (
	// MaxBodyBytes bounds a body. A request whose header has 64 KiB, the most that stint proxy takes, must fit: a byte
	// that is not UTF-8 becomes three, an escaped control character six, and a path may be there in three readings.
	MaxBodyBytes = 512 << 10
	// MaxAttributes admits 256 header fields (header:*) beside those that limits name.
	MaxAttributes = 512
	// MaxNameLength bounds names in characters, as JSON Schema counts them.
	MaxNameLength = 256

	// Envoy's service is asked with a handful of each.
	MaxDescriptors = 100
	MaxEntries     = 32
)

// body is what the three calls take. Each call allows some of the fields.
type body struct {
	request   limit.Request
	permit    uint64
	hasPermit bool
	keep      bool          // of a permit
	ttl       time.Duration // of a reservation; 0 = the default

	queue         bool // wait for a turn at every limit
	chargeExpired bool
	hasCost       bool
	declared      int64 // the most that a reservation can cost; 0 = it is not said

	// domain and descriptors are what files in Envoy's format are asked.
	domain      string
	descriptors []descriptor
}

// descriptor is one of the descriptors of a request with a domain.
type descriptor struct {
	entries []limit.Attribute
	cost    int64
	hasCost bool
}

// parseError says where in the body something is wrong.
type parseError struct {
	line, column int
	text         string
}

func (e *parseError) Error() string {
	return fmt.Sprintf("line %d, column %d: %s", e.line, e.column, e.text)
}

type parser struct {
	src []byte
	dec *json.Decoder
	at  int64 // offset of the token last read
}

// parse reads {"attributes":{...},"cost":n,"count_refused":true,"queue":true,"permit":n}, and beside
// them "domain" and "descriptors" where the fields have "domain". It is strict: a field it
// does not know, a field twice, a value of another kind, a fraction for a number
// (1.5, not 2.0) are errors with a place. An explicit cost of 0 asks without taking.
func parse(src []byte, fields ...string) (body, error) {
	b := body{request: limit.Request{Cost: 1}}
	p := &parser{src: src, dec: json.NewDecoder(bytes.NewReader(src))}
	p.dec.UseNumber()
	if !utf8.Valid(src) {
		return b, p.fail(firstInvalid(src), "the body is not valid UTF-8")
	}
	if len(bytes.TrimSpace(src)) == 0 {
		return b, p.fail(0, `the body is empty, want {"attributes":{"ip":"192.0.2.7"}}`)
	}
	err := p.object(func(name string) error {
		known := false
		for _, f := range fields {
			known = known || f == name
		}
		switch {
		case !known:
			return p.fail(p.at, "unknown field %q, want one of %q; %s", name, fields, meantField(name, fields))
		case name == "attributes":
			return p.attributes(&b.request)
		case name == "cost":
			b.hasCost = true
			return p.cost(&b.request)
		case name == "declared":
			return p.declared(&b.declared)
		case name == "domain":
			return p.domain(&b.domain)
		case name == "descriptors":
			return p.descriptors(&b.descriptors)
		case name == "ttl":
			return p.duration(name, &b.ttl)
		case name == "queue":
			return p.flag(name, &b.queue)
		case name == "charge_expired":
			return p.flag(name, &b.chargeExpired)
		case name == "keep":
			return p.flag(name, &b.keep)
		case name == "count_refused":
			return p.flag(name, &b.request.CountRefused)
		default:
			b.hasPermit = true
			return p.permit(&b.permit)
		}
	})
	if err != nil {
		return b, err
	}
	if _, err := p.token(); !errors.Is(err, io.EOF) {
		return b, p.fail(p.at, "the body goes on after its end")
	}
	switch {
	case b.domain != "" && b.queue:
		return b, p.fail(0, `a request with a "domain" is decided at once: leave out "queue"`)
	case b.domain == "" && b.descriptors != nil:
		return b, p.fail(0, `"descriptors" are asked within a domain: add "domain"`)
	case b.domain != "" && len(b.descriptors) == 0 && len(b.request.Attributes) == 0:
		return b, p.fail(0, `a "domain" is asked about "attributes" or "descriptors": add one of them`)
	}
	return b, nil
}

// meantField says what a field that is unknown may have been meant to be.
func meantField(name string, fields []string) string {
	switch strings.ToLower(name) {
	case "limit", "limit_name", "rule", "policy", "policies", "bucket":
		return `the attributes choose the limits, as in {"attributes":{"ip":"192.0.2.7"}}`
	case "key", "keys", "identifier", "id", "unique_key":
		return `a key is the attributes of the request, as in {"attributes":{"ip":"192.0.2.7"}}`
	case "hits", "hits_addend", "tokens", "amount", "quantity", "count", "n", "weight":
		return fmt.Sprintf("the number is %q", "cost")
	case "entries":
		return `descriptors are asked within a domain: {"domain":"edge","descriptors":[{"entries":[...]}]}`
	}
	if near, ok := document.Suggest(name, fields); ok {
		return fmt.Sprintf("did you mean %q?", near)
	}
	return fmt.Sprintf("an attribute goes into {\"attributes\":{%q:...}}", name)
}

// notJSON says what is to be changed in a body that is not JSON at a place.
func notJSON(src []byte, at int64) string {
	text := bytes.TrimSpace(src)
	before := bytes.TrimRight(src[:min(int(at), len(src))], " \t\r\n")
	switch {
	case len(text) > 0 && text[0] != '{' && bytes.IndexByte(text, '=') > 0:
		return `: a form is not read, write {"attributes":{"ip":"192.0.2.7"}}`
	case int(at) < len(src) && src[at] == '\'':
		return ": write double quotes"
	case int(at) < len(src) && bytes.HasSuffix(before, []byte(",")) && (src[at] == '}' || src[at] == ']'):
		return ": leave out the comma before it"
	case int(at) < len(src) && (bytes.HasSuffix(before, []byte("{")) || bytes.HasSuffix(before, []byte(","))) && src[at] != '"':
		return ": put each name in double quotes"
	}
	return ""
}

func (p *parser) attributes(req *limit.Request) error {
	return p.object(func(name string) error {
		switch {
		case name == "":
			return p.fail(p.at, "an attribute has no name")
		case utf8.RuneCountInString(name) > MaxNameLength:
			return p.fail(p.at, "an attribute's name has %d characters, at most %d are taken", utf8.RuneCountInString(name), MaxNameLength)
		case len(req.Attributes) == MaxAttributes:
			return p.fail(p.at, "more than %d attributes", MaxAttributes)
		}
		t, err := p.token()
		if err != nil {
			return err
		}
		value, ok := t.(string)
		if !ok {
			return p.fail(p.at, "the attribute %q is %s, want a string", name, kind(t))
		}
		req.Attributes = append(req.Attributes, limit.Attribute{Name: name, Value: value})
		return nil
	})
}

func (p *parser) cost(req *limit.Request) error {
	n, err := p.integer("cost", limit.MaxCount)
	if err != nil {
		return err
	}
	if n == 0 {
		req.Cost, req.Peek = 1, true
		return nil
	}
	req.Cost = int64(n)
	return nil
}

func (p *parser) declared(to *int64) error {
	n, err := p.integer("declared", limit.MaxCount)
	if err == nil && n == 0 {
		return p.fail(p.at, "declared is 0, want the most that the request can cost")
	}
	*to = int64(n)
	return err
}

func (p *parser) flag(name string, to *bool) error {
	t, err := p.token()
	if err != nil {
		return err
	}
	v, ok := t.(bool)
	if !ok {
		return p.fail(p.at, "%s is %s, want true or false", name, kind(t))
	}
	*to = v
	return nil
}

// duration reads a text such as "60s".
func (p *parser) duration(name string, to *time.Duration) error {
	t, err := p.token()
	if err != nil {
		return err
	}
	text, ok := t.(string)
	if !ok {
		return p.fail(p.at, "%s is %s, want a duration such as \"60s\"", name, kind(t))
	}
	if *to, err = time.ParseDuration(text); err != nil || *to <= 0 {
		return p.fail(p.at, "%s is %q, want a positive duration such as \"60s\"", name, text)
	}
	return nil
}

func (p *parser) permit(to *uint64) (err error) {
	*to, err = p.integer("permit", math.MaxInt64)
	return err
}

func (p *parser) integer(name string, most uint64) (uint64, error) {
	t, err := p.token()
	if err != nil {
		return 0, err
	}
	text, ok := t.(json.Number)
	if !ok {
		return 0, p.fail(p.at, "%s is %s, want a whole number from 0 to %d", name, kind(t), most)
	}
	n, ok := wholeNumber(text.String())
	if !ok || n > most {
		return 0, p.fail(p.at, "%s is %.40s, want a whole number from 0 to %d", name, text, most)
	}
	return n, nil
}

// wholeNumber reads a JSON number that JSON Schema takes for an integer, such as 2, 2.0 or 2e3.
func wholeNumber(text string) (n uint64, ok bool) {
	digits, exponent := text, 0
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		var err error
		if exponent, err = strconv.Atoi(text[i+1:]); err != nil {
			return 0, false
		}
		digits = text[:i]
	}
	digits, negative := strings.CutPrefix(digits, "-")
	whole, fraction, _ := strings.Cut(digits, ".")
	digits = strings.TrimRight(whole+fraction, "0")
	exponent += len(whole) - len(digits)
	digits = strings.TrimLeft(digits, "0")
	switch {
	case digits == "":
		return 0, true
	case negative || exponent < 0 || exponent > 19: // 10^19 is the largest power of ten below 2^64
		return 0, false
	}
	n, err := strconv.ParseUint(digits+strings.Repeat("0", exponent), 10, 64)
	return n, err == nil
}

// object reads an object and calls member after each name.
func (p *parser) object(member func(name string) error) error {
	t, err := p.token()
	if err != nil {
		return err
	}
	if t != json.Delim('{') {
		return p.fail(p.at, "found %s, want an object", kind(t))
	}
	seen := make(map[string]bool, 8)
	for {
		t, err := p.token()
		if err != nil {
			return err
		}
		if t == json.Delim('}') {
			return nil
		}
		name, ok := t.(string)
		if !ok {
			return p.fail(p.at, "found %s, want a name", kind(t))
		}
		if seen[name] {
			return p.fail(p.at, "%q stands here twice", name)
		}
		seen[name] = true
		if err := member(name); err != nil {
			return err
		}
	}
}

func (p *parser) token() (json.Token, error) {
	p.at = p.skip(p.dec.InputOffset())
	t, err := p.dec.Token()
	syntax := (*json.SyntaxError)(nil)
	switch {
	case err == nil:
		if text, ok := t.(string); ok && replaced(text, p.src[p.at:p.dec.InputOffset()]) {
			return nil, p.fail(p.at, "a \\u escape is half of a pair, so the string is not valid Unicode")
		}
		return t, nil
	case errors.Is(err, io.EOF):
		if int(p.at) < len(bytes.TrimRight(p.src, " \t\r\n")) {
			return nil, p.fail(p.at, "the body is not JSON%s", notJSON(p.src, p.at))
		}
		return nil, &atEnd{*p.fail(int64(len(p.src)), "the body ends too early").(*parseError)}
	case errors.As(err, &syntax):
		at := max(syntax.Offset-1, p.at)
		return nil, p.fail(at, "the body is not JSON: %s%s", syntax.Error(), notJSON(p.src, at))
	default:
		return nil, p.fail(int64(len(p.src)), "the body is not JSON: %s", err.Error())
	}
}

// replaced reports whether text, the value of the literal, has replacement
// characters that the literal has not: the decoder puts them in place of lone
// surrogates, and two different values would become one key.
func replaced(text string, literal []byte) bool {
	n := strings.Count(text, "\uFFFD")
	return n > 0 && n > bytes.Count(literal, []byte("\uFFFD"))+bytes.Count(bytes.ToLower(literal), []byte(`\ufffd`))
}

// atEnd is the error of a body that ends; it is io.EOF for the one place that
// wants the end.
type atEnd struct{ parseError }

func (e *atEnd) Unwrap() error { return io.EOF }

// skip moves over what stands between two tokens.
func (p *parser) skip(at int64) int64 {
	for int(at) < len(p.src) && bytes.IndexByte([]byte(" \t\r\n,:"), p.src[at]) >= 0 {
		at++
	}
	return at
}

func (p *parser) fail(at int64, format string, args ...any) error {
	before := p.src[:min(int(at), len(p.src))]
	line := 1 + bytes.Count(before, []byte("\n"))
	column := 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	return &parseError{line, column, fmt.Sprintf(format, args...)}
}

func firstInvalid(src []byte) int64 {
	for i := 0; i < len(src); {
		r, n := utf8.DecodeRune(src[i:])
		if r == utf8.RuneError && n == 1 {
			return int64(i)
		}
		i += n
	}
	return 0
}

func kind(t json.Token) string {
	switch v := t.(type) {
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(v)
	case json.Number:
		return "a number"
	case string:
		return "a string"
	case json.Delim:
		if v == '{' || v == '}' {
			return "an object"
		}
		return "a list"
	}
	return "something else"
}
