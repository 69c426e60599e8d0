package answer

import (
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/fixed"
	"github.com/stint-io/stint/limit"
)

const (
	// maxMembers bounds the limits in one field. Not larger: nginx reads all
	// header fields of an answer into 4 KiB. Not smaller: few requests meet more.
	maxMembers = 8
	// maxName bounds a limit's name in a field, for the same reason.
	maxName = 128
	// maxInteger is the largest sf-integer of RFC 9651: 15 digits.
	maxInteger = 999_999_999_999_999
)

// field is one of the header fields that an answer can have.
type field uint8

const (
	fieldPolicy field = iota
	fieldRateLimit
	fieldOnePolicies // of older versions: no limit is named
	fieldOne
	fieldLimit
	fieldRemaining
	fieldReset
	fieldXLimit
	fieldXRemaining
	fieldXReset
	fieldXRetry
	fieldRetryAfter
	fieldWarning
	maxFields
)

// String returns the field's name as [http.Header] spells it.
func (f field) String() string {
	switch f {
	case fieldPolicy, fieldOnePolicies:
		return "Ratelimit-Policy"
	case fieldRateLimit, fieldOne:
		return "Ratelimit"
	case fieldLimit:
		return "Ratelimit-Limit"
	case fieldRemaining:
		return "Ratelimit-Remaining"
	case fieldReset:
		return "Ratelimit-Reset"
	case fieldXLimit:
		return "X-Ratelimit-Limit"
	case fieldXRemaining:
		return "X-Ratelimit-Remaining"
	case fieldXReset:
		return "X-Ratelimit-Reset"
	case fieldXRetry:
		return "X-Ratelimit-Retry-After"
	case fieldRetryAfter:
		return "Retry-After"
	default:
		return "X-Ratelimit-Warning"
	}
}

// list reports whether the field is a list, which several can add to.
func (f field) list() bool {
	return f == fieldPolicy || f == fieldRateLimit || f == fieldWarning
}

// fields collects the values of header fields one after the other in one buffer,
// so that all of them together cost two allocations.
type fields struct {
	text  strings.Builder
	ended [maxFields]struct {
		what field
		end  int
	}
	n int

	units bool // policies say what they count, where it is not requests
}

// estimate returns about how many bytes the fields of d take.
func estimate(d *limit.Decision) int {
	n := 64
	for i := range min(len(d.Results), maxMembers) {
		n += 2 * (len(d.Results[i].Limit) + 32)
	}
	return n
}

// end closes the value of a field. An empty value is no field.
func (f *fields) end(what field) {
	if f.text.Len() == f.start() {
		return
	}
	f.ended[f.n].what, f.ended[f.n].end = what, f.text.Len()
	f.n++
}

// start is where the value being written begins.
func (f *fields) start() int {
	if f.n == 0 {
		return 0
	}
	return f.ended[f.n-1].end
}

func (f *fields) integer(what field, v int64) {
	f.number(v)
	f.end(what)
}

func (f *fields) number(v int64) {
	var digits [20]byte
	f.text.Write(strconv.AppendInt(digits[:0], v, 10))
}

func (f *fields) flush(h http.Header) {
	if f.n == 0 {
		return
	}
	text, values, start := f.text.String(), make([]string, f.n), 0
	for i := range f.n {
		what, end := f.ended[i].what, f.ended[i].end
		values[i] = text[start:end]
		start = end
		name := what.String()
		if had := h[name]; what.list() && len(had) > 0 {
			h[name] = append(had, values[i])
		} else {
			h[name] = values[i : i+1 : i+1]
		}
	}
}

// members writes a list of the limits that it shows, in the order of the
// configuration: at most maxMembers, those that refused before the others. With
// mark it shows refusals for store failures as well.
func (f *fields) members(what field, d *limit.Decision, mark bool) {
	listed := func(r *limit.Result) bool { return shown(r) || mark && marked(r) }
	refused := 0
	for i := range d.Results {
		if r := &d.Results[i]; listed(r) && !r.Allowed {
			refused++
		}
	}
	refused = min(refused, maxMembers)
	admitted := maxMembers - refused
	for i := range d.Results {
		r := &d.Results[i]
		room := &admitted
		if !r.Allowed {
			room = &refused
		}
		if !listed(r) || *room == 0 {
			continue
		}
		*room--
		f.comma()
		f.name(r.Limit)
		if what == fieldPolicy {
			f.policy(r)
		} else {
			f.state(r)
		}
	}
	f.end(what)
}

// policy writes the parameters of RateLimit-Policy.
func (f *fields) policy(r *limit.Result) {
	f.parameter(";q=", r.Quota)
	if f.units && r.Algorithm == limit.Concurrency {
		f.text.WriteString(`;qu="concurrent-requests"`)
	}
	if r.Window > 0 {
		f.parameter(";w=", seconds(r.Window))
	}
}

// state writes the parameters of RateLimit.
func (f *fields) state(r *limit.Result) {
	remaining, wait := effective(r)
	f.parameter(";r=", remaining)
	if wait != limit.Never {
		f.parameter(";t=", seconds(wait))
	}
}

func (f *fields) comma() {
	if f.text.Len() > f.start() {
		f.text.WriteString(", ")
	}
}

func (f *fields) parameter(name string, v int64) {
	f.text.WriteString(name)
	f.count(v)
}

// name writes an sf-string. It holds printable ASCII only; other bytes become
// question marks, for a damaged name is better than a field that is ignored.
func (f *fields) name(s string) {
	f.text.WriteByte('"')
	for i := range min(len(s), maxName) {
		switch c := s[i]; {
		case c < 0x20 || c > 0x7e:
			f.text.WriteByte('?')
		case c == '"' || c == '\\':
			f.text.WriteByte('\\')
			f.text.WriteByte(c)
		default:
			f.text.WriteByte(c)
		}
	}
	f.text.WriteByte('"')
}

func (f *fields) tightest(d *limit.Decision) {
	r := tightest(d)
	if r == nil || !shown(r) {
		return
	}
	f.integer(fieldXLimit, r.Quota)
	f.integer(fieldXRemaining, min(max(r.Remaining, 0), r.Quota))
	if after := ResetAfter(r); after != limit.Never {
		f.integer(fieldXReset, seconds(after))
	}
}

// tightest returns the tightest limit whose store answered, or nil.
func tightest(d *limit.Decision) *limit.Result {
	r := d.Tightest()
	if r == nil || !r.StoreFailed {
		return r
	}
	known := limit.Decision{Allowed: d.Allowed, Results: make([]limit.Result, 0, len(d.Results))}
	for i := range d.Results {
		if !d.Results[i].StoreFailed {
			known.Results = append(known.Results, d.Results[i])
		}
	}
	return known.Tightest()
}

// ResetAfter returns the value of X-RateLimit-Reset for r: when a client may expect the
// whole quota again, or [limit.Never] when it is not known. A client that waits for it
// must not be refused again.
//
// Places in flight come free when requests end. Their timeout is for callers that never
// finish; as a reset it would keep clients away from places that are free.
func ResetAfter(r *limit.Result) time.Duration {
	switch {
	case r.Algorithm != limit.Concurrency:
		return max(r.ResetAfter, r.RetryAfter)
	case r.Allowed:
		return limit.Never
	default:
		return r.RetryAfter
	}
}

func (f *fields) warning(d *limit.Decision) {
	for i, n := 0, 0; i < len(d.Results) && n < maxMembers; i++ {
		if r := &d.Results[i]; r.Soft && shown(r) {
			f.comma()
			f.name(r.Limit)
			n++
		}
	}
	f.end(fieldWarning)
}

// effective returns what RateLimit says of r: what remains, and the seconds until
// there is more ([limit.Never] when it is not known).
//
// Clients spread what remains over that time, so together they must not promise more
// than the limit's own rate: 10,000 left of 10,000 per hour and a second until there is
// more would invite 10,000 in that second from every client. What remains is true, so
// it is the time that is raised. The time of a refusal is that of Retry-After, which
// must not be earlier: where it is too short for what remains, it is left out.
func effective(r *limit.Result) (remaining int64, wait time.Duration) {
	remaining = min(max(r.Remaining, 0), r.Quota)
	pace := granted(r, remaining, true)
	if r.Allowed {
		return remaining, max(more(r, remaining), pace)
	}
	if r.RetryAfter == limit.Never {
		return remaining, limit.Never
	}
	if wait = time.Duration(max(1, seconds(r.RetryAfter))) * time.Second; wait < pace {
		return remaining, limit.Never
	}
	return remaining, wait
}

// more returns when an admitted request's limit has more than remains: the latest
// moment, for a log or a sliding window, whose state says only when all is
// there again.
func more(r *limit.Result, remaining int64) time.Duration {
	after := max(ResetAfter(r), 0)
	if after == limit.Never || r.Algorithm != limit.TokenBucket && r.Algorithm != limit.LeakyBucket {
		return after
	}
	// A bucket fills evenly: the last tokens come at the rate, the next one before.
	if rest := granted(r, r.Quota-remaining-1, false); rest < after {
		return after - rest
	}
	return after
}

// granted returns the time in which a limit's rate grants n, at most its quota; 0 when
// it has no rate.
func granted(r *limit.Result, n int64, up bool) time.Duration {
	if r.Window <= 0 || r.Quota <= 0 || n <= 0 {
		return 0
	}
	// n <= quota, so the quotient is at most the window.
	if up {
		return time.Duration(fixed.MulDivUp(uint64(n), uint64(r.Window), uint64(r.Quota)))
	}
	return time.Duration(fixed.MulDiv(uint64(n), uint64(r.Window), uint64(r.Quota)))
}
