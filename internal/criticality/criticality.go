// Package criticality has the four classes of requests of Google's SRE book, and carries the class
// of a request from a server's handler to the requests that it sends.
package criticality

import "context"

// Header is the HTTP header field and the gRPC metadata key that has the class.
const Header = "x-criticality"

// Class says how much a request matters. Lower values matter more. The zero value is CriticalPlus,
// so a class that is not known is [Default] and not the zero value.
type Class uint8

// The classes.
const (
	CriticalPlus  Class = iota // its failure is seen at once and by many
	Critical                   // the default for requests that users wait for
	SheddablePlus              // may fail for minutes: it is tried again, or a batch
	Sheddable                  // may fail often, and for hours

	// Count is how many classes there are.
	Count int = iota
)

// Default is the class of a request that says none.
const Default = Critical

var names = [Count]string{"critical_plus", "critical", "sheddable_plus", "sheddable"}

// String returns the name as it stands on the wire, such as "sheddable_plus".
func (c Class) String() string {
	if int(c) < Count {
		return names[c]
	}
	return "unknown"
}

// Parse returns the class of that name. It does not know others.
func Parse(name string) (Class, bool) {
	for i, n := range names {
		if n == name {
			return Class(i), true
		}
	}
	return Default, false
}

type key struct{}

// NewContext returns a context whose requests have class c.
func NewContext(ctx context.Context, c Class) context.Context {
	return context.WithValue(ctx, key{}, c)
}

// FromContext returns the class of a context, and whether it has one; [Default] if not.
func FromContext(ctx context.Context) (Class, bool) {
	c, ok := ctx.Value(key{}).(Class)
	if !ok || int(c) >= Count {
		return Default, false
	}
	return c, true
}
