// Package orca reads what a server reports of one request's cost by Open Request Cost
// Aggregation (xds.data.orca.v3.OrcaLoadReport), in the forms that Envoy and gRPC exchange:
//
//	endpoint-load-metrics: TEXT request_cost.cpu=12.5, cpu_utilization=0.3
//	endpoint-load-metrics: JSON {"request_cost": {"cpu": 12.5}, "cpu_utilization": 0.3}
//	endpoint-load-metrics: BIN <base64 of the message>
//	endpoint-load-metrics-bin: <base64 of the message; over gRPC the message>
//
// It takes request_cost and nothing else. Resources bear the names that the server gives them;
// "cpu" is CPU time in milliseconds. Reports are bounded, and one with a fault is none.
package orca

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"

	"github.com/stint-io/stint/internal/costs"
)

// The names of the header fields, trailer fields and metadata.
const (
	Field       = "Endpoint-Load-Metrics"
	FieldBinary = "Endpoint-Load-Metrics-Bin"
	MetadataKey = "endpoint-load-metrics-bin" // of gRPC, where the value is the message itself
	MetadataTxt = "endpoint-load-metrics"
)

// The bounds of a report. Not smaller: named metrics of an application travel in the same report.
// Not larger: gRPC refuses metadata of more than 16 KiB by default.
const (
	maxBytes   = 16 << 10
	maxEntries = 64
	maxName    = 128
)

var (
	errTooLarge = fmt.Errorf("orca: a report has at most %d bytes, %d costs and %d bytes in a name", maxBytes, maxEntries, maxName)
	errSeveral  = errors.New("orca: several reports for one request: send one")
)

// FromHeader returns the cost of a request from the header or trailer fields of its answer. The
// usage is nil where nothing is reported, or by an error.
func FromHeader(h http.Header) (costs.Usage, error) {
	for _, name := range [...]string{Field, http.TrailerPrefix + Field} {
		if values := h[name]; len(values) > 1 {
			return nil, errSeveral
		} else if len(values) == 1 {
			return Parse(values[0])
		}
	}
	for _, name := range [...]string{FieldBinary, http.TrailerPrefix + FieldBinary} {
		if values := h[name]; len(values) > 1 {
			return nil, errSeveral
		} else if len(values) == 1 {
			return parseBase64(values[0])
		}
	}
	return nil, nil
}

// FromMetadata is FromHeader for the header or trailer metadata of a gRPC call, whose keys are in
// lower case.
func FromMetadata(md map[string][]string) (costs.Usage, error) {
	if values := md[MetadataKey]; len(values) > 1 {
		return nil, errSeveral
	} else if len(values) == 1 {
		return ParseMessage([]byte(values[0]))
	}
	if values := md[MetadataTxt]; len(values) > 1 {
		return nil, errSeveral
	} else if len(values) == 1 {
		return Parse(values[0])
	}
	return nil, nil
}

// Parse reads the value of the field Endpoint-Load-Metrics.
func Parse(value string) (costs.Usage, error) {
	if len(value) > maxBytes {
		return nil, errTooLarge
	}
	form, rest, _ := strings.Cut(strings.TrimSpace(value), " ")
	switch form {
	case "TEXT":
		return parseText(rest)
	case "JSON":
		return parseJSON(rest)
	case "BIN":
		return parseBase64(rest)
	default:
		return nil, fmt.Errorf("orca: a report begins with TEXT, JSON or BIN, not with %.16q", form)
	}
}

// add adds one cost, if it is one.
func add(u *costs.Usage, name string, cost float64) error {
	switch {
	case name == "" || !(cost >= 0) || math.IsInf(cost, 1):
		return fmt.Errorf("orca: the cost of %.64q is %v: it must have a name and be a number, 0 or more", name, cost)
	case len(name) > maxName || len(*u) >= maxEntries:
		return errTooLarge
	}
	if *u == nil {
		*u = costs.Usage{}
	}
	(*u)[name] = cost
	return nil
}

func parseText(text string) (costs.Usage, error) {
	var u costs.Usage
	for text != "" {
		var pair string
		pair, text, _ = strings.Cut(text, ",")
		key, value, ok := strings.Cut(strings.TrimSpace(pair), "=")
		if !ok {
			return nil, fmt.Errorf("orca: %.64q is no pair of a name and a number, such as request_cost.cpu=12.5", pair)
		}
		name, ok := strings.CutPrefix(strings.TrimSpace(key), "request_cost.")
		if !ok {
			continue
		}
		cost, err := strconv.ParseFloat(strings.TrimSpace(value), 64)
		if err != nil {
			return nil, fmt.Errorf("orca: the cost of %.64q is %.64q, which is no number", name, value)
		}
		if err := add(&u, name, cost); err != nil {
			return nil, err
		}
	}
	return u, nil
}

func parseJSON(text string) (costs.Usage, error) {
	// Both spellings are JSON of protobuf.
	var report struct {
		Snake map[string]float64 `json:"request_cost"`
		Camel map[string]float64 `json:"requestCost"`
	}
	if err := json.Unmarshal([]byte(text), &report); err != nil {
		return nil, fmt.Errorf("orca: a report that begins with JSON is none: %w", err)
	}
	var u costs.Usage
	for _, part := range [...]map[string]float64{report.Snake, report.Camel} {
		for name, cost := range part {
			if err := add(&u, name, cost); err != nil {
				return nil, err
			}
		}
	}
	return u, nil
}

func parseBase64(text string) (costs.Usage, error) {
	if len(text) > maxBytes {
		return nil, errTooLarge
	}
	// With padding or without, as gRPC takes binary metadata.
	message, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(strings.TrimSpace(text), "="))
	if err != nil {
		return nil, fmt.Errorf("orca: a binary report is base64: %w", err)
	}
	return ParseMessage(message)
}

// fieldRequestCost is the number of OrcaLoadReport.request_cost, a map<string, double>.
const fieldRequestCost = 4

// ParseMessage reads an OrcaLoadReport in Protobuf's wire format. The generated type is not used:
// it brings Envoy's xDS types and their validation into every program with a middleware.
func ParseMessage(b []byte) (costs.Usage, error) {
	if len(b) > maxBytes {
		return nil, errTooLarge
	}
	var u costs.Usage
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return nil, fmt.Errorf("orca: a report is no message: %w", protowire.ParseError(n))
		}
		b = b[n:]
		if number != fieldRequestCost || kind != protowire.BytesType {
			if n = protowire.ConsumeFieldValue(number, kind, b); n < 0 {
				return nil, fmt.Errorf("orca: field %d of a report: %w", number, protowire.ParseError(n))
			}
			b = b[n:]
			continue
		}
		entry, n := protowire.ConsumeBytes(b)
		if n < 0 {
			return nil, fmt.Errorf("orca: request_cost of a report: %w", protowire.ParseError(n))
		}
		b = b[n:]
		name, cost, err := parseEntry(entry)
		if err != nil {
			return nil, err
		}
		if err := add(&u, name, cost); err != nil {
			return nil, err
		}
	}
	return u, nil
}

// parseEntry reads an entry of a map<string, double>: key is field 1, value field 2.
func parseEntry(b []byte) (name string, cost float64, _ error) {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return "", 0, fmt.Errorf("orca: an entry of request_cost: %w", protowire.ParseError(n))
		}
		b = b[n:]
		switch {
		case number == 1 && kind == protowire.BytesType:
			var key []byte
			key, n = protowire.ConsumeBytes(b)
			name = string(key)
		case number == 2 && kind == protowire.Fixed64Type:
			var value uint64
			value, n = protowire.ConsumeFixed64(b)
			cost = math.Float64frombits(value)
		default:
			n = protowire.ConsumeFieldValue(number, kind, b)
		}
		if n < 0 {
			return "", 0, fmt.Errorf("orca: an entry of request_cost: %w", protowire.ParseError(n))
		}
		b = b[n:]
	}
	return name, cost, nil
}
