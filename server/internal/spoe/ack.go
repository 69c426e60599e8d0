package spoe

import (
	"maps"
	"math"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/limit"
)

// The variables that are always set, or that have figures. A header field of a limit's own with the name of one of
// them does not replace it.
const (
	varAllowed     = "allowed"
	varRefused     = "refused"
	varStatus      = "status"
	varReason      = "reason"
	varLimit       = "limit"
	varQuota       = "quota"
	varRemaining   = "remaining"
	varRetryAfter  = "retry_after"
	varDelay       = "delay_ms"
	varStoreFailed = "store_failed"
	varError       = "error"
	varBody        = "body"
	varContentType = "content_type"
)

var reserved = []string{
	varAllowed, varRefused, varStatus, varReason, varLimit, varQuota, varRemaining, varRetryAfter, varDelay, varStoreFailed,
	varError, varBody, varContentType,
}

func setVar(b []byte, name string) []byte {
	return appendText(append(b, actionSet, setArgs, scopeTransaction), name)
}

func setBool(b []byte, name string, v bool) []byte {
	kind := typeBool
	if v {
		kind |= boolTrue
	}
	return append(setVar(b, name), kind)
}

func setNumber(b []byte, name string, n int64) []byte {
	return appendVarint(append(setVar(b, name), typeInt64), uint64(n))
}

func setText(b []byte, name, s string) []byte {
	return appendText(append(setVar(b, name), typeString), s)
}

// appendProblem appends the ACK to a query that cannot be decided.
func appendProblem(b []byte, q *query, problem string) []byte {
	start := len(b)
	b = begin(b, frameAck, q.stream, q.frame)
	return end(setText(b, varError, problem), start)
}

// appendAck appends the ACK with a decision. What does not fit into most bytes is left out: the body first, then
// header fields, so that the decision itself always arrives.
func appendAck(b []byte, q *query, d *limit.Decision, o answer.Options, most int) []byte {
	start := len(b)
	b = begin(b, frameAck, q.stream, q.frame)
	code := http.StatusOK
	if !d.Allowed {
		code = answer.Status(d)
	}
	b = setBool(setBool(b, varAllowed, d.Allowed), varRefused, !d.Allowed)
	b = setNumber(b, varStatus, int64(code))
	if wait := d.RetryAfter(); !d.Allowed && wait != limit.Never {
		b = setNumber(b, varRetryAfter, max(1, int64((wait+time.Second-1)/time.Second)))
	}
	if ms := d.Delay.Milliseconds(); d.Allowed && ms > 0 {
		b = setNumber(b, varDelay, ms)
	}
	if storeFailed(d) {
		b = setBool(b, varStoreFailed, true)
	}
	b = appendLimit(b, start, d, most)
	b = appendFields(b, start, d, o, most)
	if !d.Allowed {
		b = appendBody(b, start, d, most)
	}
	return end(b, start)
}

// fits returns b, or what it was before where it has become longer than a frame may be.
func fits(b []byte, start, before, most int) []byte {
	if len(b)-start-prefixLen > most {
		return b[:before]
	}
	return b
}

// appendLimit names the limit that refused, and why; or the tightest one. Its figures are told where they are known.
func appendLimit(b []byte, start int, d *limit.Decision, most int) []byte {
	r := d.Tightest()
	if first := d.Refused(); first != nil && !d.Allowed {
		r = first
	}
	if r == nil {
		return b
	}
	if !r.Allowed {
		b = fits(setText(b, varReason, r.Reason.String()), start, len(b), most)
	}
	if !r.StoreFailed && r.Quota != math.MaxInt64 {
		figures := setNumber(setNumber(b, varQuota, r.Quota), varRemaining, min(max(r.Remaining, 0), r.Quota))
		b = fits(figures, start, len(b), most)
	}
	return fits(setText(b, varLimit, r.Limit), start, len(b), most)
}

// appendFields sets a variable for each header field of the answer, and for each that marks the request: ratelimit,
// ratelimit_policy, location and the like.
func appendFields(b []byte, start int, d *limit.Decision, o answer.Options, most int) []byte {
	h := make(http.Header, 8)
	answer.Header(h, d, o)
	for _, t := range d.Tags {
		h.Add(t.Name, t.Value)
	}
	for _, name := range slices.Sorted(maps.Keys(h)) {
		v := variable(name)
		if slices.Contains(reserved, v) {
			continue
		}
		before := len(b)
		b = fits(setText(b, v, strings.Join(h[name], ", ")), start, before, most)
	}
	return b
}

// appendBody sets the body of a refusal and its type: the problem document, or what the limit has of its own.
func appendBody(b []byte, start int, d *limit.Decision, most int) []byte {
	before := len(b)
	body, kind := "", "application/problem+json"
	if a := d.Action; a != nil && a.HasBody {
		body, kind = a.Body, a.ContentType
	} else {
		// HAProxy would write the line feed at its end as %0A.
		body = strings.TrimSuffix(string(answer.Problem(make([]byte, 0, 512), d)), "\n")
	}
	return fits(setText(setText(b, varContentType, kind), varBody, body), start, before, most)
}

// variable is the name of a header field as HAProxy can have it in a variable.
func variable(field string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'A' && r <= 'Z':
			return r + 'a' - 'A'
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		default:
			return '_'
		}
	}, field)
}

func storeFailed(d *limit.Decision) bool {
	for i := range d.Results {
		if r := &d.Results[i]; r.StoreFailed && !r.Shadow {
			return true
		}
	}
	return false
}
