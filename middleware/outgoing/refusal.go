package outgoing

import (
	"fmt"
	"time"

	"github.com/stint-io/stint/limit"
)

// Cause says what held a request back.
type Cause uint8

// The causes.
const (
	Held      Cause = iota // the server has asked not to be called until later
	Throttled              // the server refuses too much of what it gets
	Limited                // the limit of one's own refused
	causes
)

// String returns the name of the cause: "held", "throttled" or "limited".
func (c Cause) String() string {
	switch c {
	case Held:
		return "held"
	case Throttled:
		return "throttled"
	default:
		return "limited"
	}
}

// Refusal is the error of a request that was not sent. It is found by errors.As.
type Refusal struct {
	// Host is the server that the request was for.
	Host string
	// Cause says what held the request back.
	Cause Cause
	// Decision is the refusal: that of the limit of one's own, or one that names the server's
	// policy or the throttle as its limit.
	Decision limit.Decision
}

// RetryAfter returns how long to wait before the same request may be sent; [limit.Never] when no
// wait is long enough.
func (r *Refusal) RetryAfter() time.Duration { return r.Decision.RetryAfter() }

// Error implements error.
func (r *Refusal) Error() string {
	why := "the server refuses too much"
	switch name := r.name(); r.Cause {
	case Held:
		why = fmt.Sprintf("the server asked to wait (%q)", name)
	case Limited:
		why = fmt.Sprintf("limit %q refused", name)
	}
	if wait := r.RetryAfter(); wait != limit.Never {
		return fmt.Sprintf("outgoing: not sent to %q: %s; retry after %v", r.Host, why, wait)
	}
	return fmt.Sprintf("outgoing: not sent to %q: %s; no wait helps", r.Host, why)
}

func (r *Refusal) name() string {
	if refused := r.Decision.Refused(); refused != nil {
		return refused.Limit
	}
	return ""
}

// Temporary reports true: a later request may pass.
func (r *Refusal) Temporary() bool { return r.RetryAfter() != limit.Never }

// refusal makes one of a cause that is no limit of one's own.
func refusal(host string, cause Cause, name string, reason limit.Reason, wait time.Duration) *Refusal {
	return &Refusal{Host: host, Cause: cause, Decision: limit.Decision{
		Status: 429,
		Results: []limit.Result{{
			Limit: name, Cost: 1,
			Verdict: limit.Verdict{Reason: reason, RetryAfter: wait, ResetAfter: wait},
		}},
	}}
}
