package outgoing

import (
	"context"

	"github.com/stint-io/stint/internal/accepts"
	"github.com/stint-io/stint/throttle"
)

// Criticality is the class of a request. It is sent along as X-Criticality, and the less critical a
// request is, the sooner it is held back. The zero value says nothing: no class is sent, and the
// request is treated as SheddablePlus. See [throttle.Criticality].
type Criticality = throttle.Criticality

// The classes.
const (
	Sheddable     = throttle.Sheddable     // some are expected to fail, such as batch work
	SheddablePlus = throttle.SheddablePlus // short outages are expected
	Critical      = throttle.Critical      // users see the failure
	CriticalPlus  = throttle.CriticalPlus  // a failure is seen by many
)

type criticalityKey struct{}

// WithCriticality returns a context whose requests are of class c. Without it they are of the class
// of the request that is being served, where package throttle serves it.
func WithCriticality(ctx context.Context, c Criticality) context.Context {
	return context.WithValue(ctx, criticalityKey{}, c)
}

// ImportanceOf returns the class and level of the requests of a context, as they are sent along.
func ImportanceOf(ctx context.Context) throttle.Importance {
	var i throttle.Importance
	if w := throttle.FromContext(ctx); w != nil {
		i = w.Importance()
	}
	if c, ok := ctx.Value(criticalityKey{}).(Criticality); ok && c <= CriticalPlus {
		i.Criticality = c
	}
	if i.Criticality == throttle.Default {
		return throttle.Importance{}
	}
	return i
}

// class is 0 for the most critical requests, as package accepts counts them.
func class(c Criticality) int {
	if c == throttle.Default {
		c = SheddablePlus
	}
	return min(int(CriticalPlus-min(c, CriticalPlus)), accepts.Classes-1)
}
