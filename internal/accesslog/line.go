package accesslog

import (
	"errors"
	"strings"

	"github.com/stint-io/stint/internal/forwarded/identify"
	"github.com/stint-io/stint/limit"
)

// What is wrong with a line.
var (
	ErrShape = errors.New("the line does not have the format of the log")
	ErrTime  = errors.New("the line has no time that can be read")
	ErrCost  = errors.New("the line has no cost that can be read")
	ErrLong  = errors.New("the line is longer than 1 MiB")
)

// Line is one request of a log.
type Line struct {
	// At is when the request came, or, with Coarse, the second in which it came.
	At     limit.Time
	Coarse bool

	// Took is how long it took, in nanoseconds; -1 = the log does not say.
	Took int64
	// Status is the HTTP status of the answer; 0 = the log does not say.
	Status int
	// Cost is what it costs, 1 unless [Want.Cost] names a field.
	Cost int64

	// Values are those of [Want.Attributes], in their order; "" = the line has none.
	Values []string
}

// Want says what to read of each line.
type Want struct {
	// Attributes are the names of limits' attributes.
	Attributes []string
	// Fields says for attributes in which field of the log they are, such as user: jwt_sub.
	// Others are looked for under the names that servers give them.
	Fields map[string]string
	// Cost is the field with the cost of a request, a whole number; "" = each costs 1.
	Cost string

	whole bool // read lines to their end, whatever is wanted of them
}

// Where a field goes. From firstValue on they are indices of attributes.
const (
	toTime = iota
	toTook
	toStatus
	toCost
	toRequest
	toMethod
	toTarget
	toQuery
	firstValue
)

// none marks a field that nobody wants.
const none = -1

// sink says what a field is for.
type sink struct {
	to   int // an index of Parser.raw, or none
	rank int // where several fields have one purpose, the one of the least rank counts
	unit unit
	ends bool // a time is when the request ended
	kind kind
}

// kind says how a value is read.
type kind uint8

const (
	asText kind = iota
	asAddress
	asHost
)

// Parser reads lines of one format. Make one with [Format.Parser]. It is used by one goroutine at a
// time.
type Parser struct {
	want   Want
	format *Format
	source fieldSource

	raw   []string
	ranks []int
	sinks []*sink // of raw
	seen  []bool  // of raw: some line had it

	method, path, host int // indices in Line.Values; -1 = not wanted
	request            bool
	queries            *identify.Plan
	queryAt            []int // index in Line.Values of each query parameter
	attrs              []limit.Attribute

	clock  clock
	coarse bool
}

// fieldSource splits a line into fields.
type fieldSource interface {
	split(p *Parser, line string) error
}

// The formats that have names.
const (
	Common   = "common"
	Combined = "combined"
	JSON     = "json"
	CSV      = "csv"
	Auto     = "auto"
)

// Format is that of a log. It is immutable and safe for concurrent use.
type Format struct {
	name    string
	pattern []piece
	open    bool   // a line may have more behind the pattern
	columns string // of CSV: the line of names
	comma   byte   // of CSV
}

// Name returns the name of the format, or its text.
func (f *Format) Name() string { return f.name }

// Names reports whether line is the line of names of the format's CSV.
func (f *Format) Names(line string) bool {
	return f.columns != "" && strings.TrimSuffix(line, "\r") == f.columns
}

// piece is a text of a pattern and the variable behind it; "" = none.
type piece struct{ text, variable string }

// put notes a field. A lone dash says that there is none.
func (p *Parser) put(s *sink, value string) {
	if s.to == none || value == "" || value == "-" {
		return
	}
	if p.raw[s.to] != "" && p.ranks[s.to] <= s.rank {
		return
	}
	p.raw[s.to], p.ranks[s.to], p.sinks[s.to] = value, s.rank, s
	p.seen[s.to] = true
}
