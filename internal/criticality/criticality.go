// Package criticality has the four classes of requests of Google's SRE book, and carries the class
// of a request from a context to the requests that are sent for it.
package criticality

import (
	"context"
	"strings"
)

// Header is the HTTP header field that has the class; in lower case it is the key of gRPC metadata.
const Header = "X-Criticality"

// Class says how much is lost when a request is not served. The zero value is [Default].
type Class uint8

// The classes. Requests of a lower class are held back before those of a higher one.
const (
	Default       Class = iota // nothing is said: as SheddablePlus
	Sheddable                  // some are expected to fail, such as batch work that is tried again
	SheddablePlus              // short outages are expected
	Critical                   // users see the failure
	CriticalPlus               // the most serious: a failure is seen by many
)

var names = [...]string{"default", "sheddable", "sheddable_plus", "critical", "critical_plus"}

// String returns the name as it stands on the wire, such as "sheddable_plus".
func (c Class) String() string {
	if int(c) < len(names) {
		return names[c]
	}
	return "unknown"
}

// Rank is 0 for the most critical class and 3 for the least.
func (c Class) Rank() int {
	if c == Default {
		c = SheddablePlus
	}
	return int(CriticalPlus - min(c, CriticalPlus))
}

// Parse returns the class that a header field names, in lower or upper case; parameters after a
// semicolon are for the server. ok is false for the empty text and for other names.
func Parse(field string) (c Class, ok bool) {
	name, _, _ := strings.Cut(strings.Trim(field, " "), ";")
	for c := Sheddable; c <= CriticalPlus; c++ {
		if strings.EqualFold(name, names[c]) {
			return c, true
		}
	}
	return Default, false
}

type key struct{}

// NewContext returns a context whose requests have class c.
func NewContext(ctx context.Context, c Class) context.Context {
	return context.WithValue(ctx, key{}, c)
}

// FromContext returns the class of a context, [Default] if it has none.
func FromContext(ctx context.Context) Class {
	if c, ok := ctx.Value(key{}).(Class); ok && c <= CriticalPlus {
		return c
	}
	return Default
}
