// Package answer turns a [limit.Decision] into what an HTTP client sees: header
// fields, a status and a problem document.
//
// It decides nothing. It never writes a key, and what a shadow limit says never
// reaches a client. gRPC has its own room below it, grpcerror, so that HTTP
// servers do not link protobuf.
package answer

import (
	"fmt"
	"math"
	"net/http"
	"strconv"
	"time"

	"github.com/stint-io/stint/limit"
)

// Draft names the version of draft-ietf-httpapi-ratelimit-headers whose syntax
// the RateLimit and RateLimit-Policy fields follow. The zero value is [Draft10].
type Draft string

// The versions. The draft renames its parameters from time to time; a new
// version becomes a new name here, so that clients never meet a silent change.
const (
	// Draft11 is as Draft10, and says of permits in flight that they are (qu). Its r may be used within its t, which
	// it calls the effective window: Draft10 here has these figures as well.
	Draft11 Draft = "draft-11"
	Draft10 Draft = "draft-10" // lists of limits: r and t, q and w
	// Draft07 has one limit in RateLimit, as limit, remaining and reset.
	Draft07 Draft = "draft-07"
	// Draft06 has one limit in RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset; policies in RateLimit-Policy.
	Draft06 Draft = "draft-06"
	// Draft03 is as Draft06, with the policies in RateLimit-Limit.
	Draft03 Draft = "draft-03"
	Off     Draft = "off" // none of these fields is sent
)

const drafts = Draft11 + ", " + Draft10 + ", " + Draft07 + ", " + Draft06 + ", " + Draft03 + " or " + Off

// ParseDraft returns the version of that name. The empty name is [Draft10].
func ParseDraft(name string) (Draft, error) {
	switch d := Draft(name); d {
	case "":
		return Draft10, nil
	case Draft11, Draft10, Draft07, Draft06, Draft03, Off:
		return d, nil
	default:
		return "", fmt.Errorf("answer: unknown version %q of the RateLimit fields, want %s", name, drafts)
	}
}

// Options says which header fields are sent. The zero value sends RateLimit and
// RateLimit-Policy as draft-10 has them, and no X-RateLimit fields.
type Options struct {
	// RateLimitFields is the version of the RateLimit fields; "" is draft-10.
	RateLimitFields Draft

	// XRateLimit adds X-RateLimit-Limit, -Remaining and -Reset (seconds from
	// now) of the tightest limit and, on a refusal, X-RateLimit-Retry-After.
	XRateLimit bool

	// MarkRefusals keeps limits that refused because their store failed in the
	// RateLimit field, with nothing remaining: there are gateways that see by the
	// field alone whether a 5xx is a refusal or the absence of a decision.
	MarkRefusals bool

	// Members appends further members to the problem document of a refusal, each with a comma before it; nil = none.
	Members func(dst []byte) []byte

	// Dashboard is the URL of the dashboard's page of a limit up to its name, which problem documents then link; "" = none
	// is linked.
	Dashboard string
}

// Header adds to h what d says about its limits.
//
// On every answer: RateLimit-Policy and RateLimit with one member for each
// enforced limit (at most eight, those that refused before the others, because
// gateways read answers into buffers of 4 KiB), or what older versions have in their place, the X-RateLimit fields if asked
// for, and X-RateLimit-Warning with the names of the limits that are used beyond
// their soft threshold. On a refusal: Retry-After in whole seconds, at least 1
// and never early; it is left out when no wait helps, as for a cost above what
// the limit can ever admit; then the fields of the refusing limit's own, and Location if it
// redirects.
//
// RateLimit, RateLimit-Policy and X-RateLimit-Warning are lists: members that h
// has already are kept. All other fields are replaced. Unlimited policies and
// shadow limits are not shown, nor are limits whose store failed, as it is not known
// what they have left; such a refusal has its Retry-After all the same.
func Header(h http.Header, d *limit.Decision, o Options) {
	var f fields
	f.text.Grow(estimate(d))
	switch o.RateLimitFields {
	case "", Draft10, Draft11:
		f.units = o.RateLimitFields == Draft11
		f.members(fieldPolicy, d, o.MarkRefusals)
		f.members(fieldRateLimit, d, o.MarkRefusals)
	case Draft07, Draft06, Draft03:
		f.older(d, o.RateLimitFields)
	}
	retry, wait := retrySeconds(d)
	if o.XRateLimit {
		f.tightest(d)
		if wait {
			f.integer(fieldXRetry, retry)
		}
	}
	if wait {
		f.integer(fieldRetryAfter, retry)
	}
	f.warning(d)
	f.flush(h)
	if a := d.Action; a != nil && !d.Allowed {
		for _, field := range a.Header {
			h.Set(field.Name, field.Value)
		}
		if a.Location != "" {
			h.Set("Location", a.Location)
		}
	}
}

// Status returns the HTTP status of d's refusal: what the limit asks for if that
// is a client or server error, or a redirect that says where to, else 429. It is 200 when d
// allows.
func Status(d *limit.Decision) int {
	switch {
	case d.Allowed:
		return http.StatusOK
	case d.Status >= 400 && d.Status <= 599:
		return d.Status
	case d.Status >= 300 && d.Status <= 399 && d.Action != nil && d.Action.Location != "":
		return d.Status
	default:
		return http.StatusTooManyRequests
	}
}

// WriteRefusal answers a refused request: header fields, status and a problem
// document, or the body that the refusing limit has of its own, that no cache may keep.
func WriteRefusal(w http.ResponseWriter, d *limit.Decision, o Options) {
	WriteRefusalAs(w, Status(d), d, o)
}

// WriteRefusalAs is WriteRefusal with another status on the status line, for
// gateways that understand few; the problem document keeps the real one.
func WriteRefusalAs(w http.ResponseWriter, status int, d *limit.Decision, o Options) {
	Header(w.Header(), d, o)
	if d.Action != nil && d.Action.HasBody {
		write(w, status, d.Action.ContentType, []byte(d.Action.Body))
		return
	}
	writeProblem(w, status, refusal(make([]byte, 0, 512), d, o))
}

// WriteUnavailable answers a request about which no decision could be made: 503
// and a problem document that does not say why, as the reason is the operator's.
func WriteUnavailable(w http.ResponseWriter) {
	w.Header().Set(fieldRetryAfter.String(), "1")
	writeProblem(w, http.StatusServiceUnavailable, appendProblem(make([]byte, 0, 256),
		problem{
			kind: typeCapacity, title: titleCapacity, status: http.StatusServiceUnavailable,
			detail: "the rate limiter could not decide",
		}))
}

// WriteError answers a request that cannot be understood: status and a problem
// document with detail as its text.
func WriteError(w http.ResponseWriter, status int, detail string) {
	WriteErrorAs(w, status, status, detail)
}

// WriteErrorAs is WriteError with another status on the status line.
func WriteErrorAs(w http.ResponseWriter, lineStatus, status int, detail string) {
	writeProblem(w, lineStatus, AppendError(make([]byte, 0, 256), status, detail))
}

// ProblemType is the media type of problem documents.
const ProblemType = "application/problem+json"

// AppendError appends the problem document of [WriteError].
func AppendError(dst []byte, status int, detail string) []byte {
	return appendProblem(dst, problem{kind: typeBlank, title: http.StatusText(status), status: status, detail: detail})
}

func writeProblem(w http.ResponseWriter, status int, body []byte) {
	write(w, status, ProblemType, body)
}

func write(w http.ResponseWriter, status int, kind string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Cache-Control", "no-store")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	// A client that has gone is none of ours; HEAD requests drop the body.
	_, _ = w.Write(body)
}

// retrySeconds returns the seconds of Retry-After, and whether a wait helps.
func retrySeconds(d *limit.Decision) (int64, bool) {
	if d.Allowed {
		return 0, false
	}
	wait := d.RetryAfter()
	if wait == limit.Never {
		return 0, false
	}
	return max(1, seconds(wait)), true
}

// AppendSeconds appends d as a JSON number of seconds with up to nine decimals, or null for
// [limit.Never].
func AppendSeconds(dst []byte, d time.Duration) []byte {
	if d == limit.Never {
		return append(dst, "null"...)
	}
	dst = strconv.AppendInt(dst, int64(d/time.Second), 10)
	rest := d % time.Second
	if rest == 0 {
		return dst
	}
	var digits [20]byte
	text := strconv.AppendInt(digits[:0], int64(rest+time.Second), 10)
	text[0] = '.'
	for text[len(text)-1] == '0' {
		text = text[:len(text)-1]
	}
	return append(dst, text...)
}

// seconds returns d in whole seconds, rounded up.
func seconds(d time.Duration) int64 {
	if d <= 0 {
		return 0
	}
	s := int64(d / time.Second)
	if d%time.Second != 0 {
		s++
	}
	return s
}

// shown reports whether clients may see the figures of r. An unlimited policy has
// none, and those of a limit whose store failed are not known.
func shown(r *limit.Result) bool { return !r.Shadow && !r.StoreFailed && r.Quota != math.MaxInt64 }

// marked reports whether r is a refusal to be shown although its store failed.
func marked(r *limit.Result) bool {
	return !r.Shadow && !r.Allowed && r.StoreFailed && r.Quota != math.MaxInt64
}
