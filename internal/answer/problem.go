package answer

import (
	"net/http"
	"net/url"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/stint-io/stint/limit"
)

// The problem types of draft-ietf-httpapi-ratelimit-headers.
const (
	typeQuota    = "https://iana.org/assignments/http-problem-types#quota-exceeded"
	typeCapacity = "https://iana.org/assignments/http-problem-types#temporary-reduced-capacity"
	typeAbnormal = "https://iana.org/assignments/http-problem-types#abnormal-usage-detected"
	typeBlank    = "about:blank"

	titleQuota    = "Quota exceeded"
	titleCapacity = "Temporary reduced capacity"
	titleAbnormal = "Abnormal usage detected"
)

// problem is an RFC 9457 problem document.
type problem struct {
	kind, title, detail string
	status              int
	// decision, if any, gives the extension members.
	decision *limit.Decision
	options  Options
}

// Problem appends to dst the RFC 9457 problem document of d's refusal and
// returns it. Its type is abnormal-usage-detected when a limit has banned the
// key, temporary-reduced-capacity when the status is 503, and quota-exceeded
// otherwise. Its extension members are violated-policies (at most eight names),
// reason (that of the first limit that refused) and retry_after (the exact wait in
// seconds, which the Retry-After field has rounded up to a whole second).
func Problem(dst []byte, d *limit.Decision) []byte { return refusal(dst, d, Options{}) }

// refusal is Problem with what o adds to it.
func refusal(dst []byte, d *limit.Decision, o Options) []byte {
	p := problem{kind: typeQuota, title: titleQuota, status: Status(d), decision: d, options: o}
	for i := range d.Results {
		if r := &d.Results[i]; !r.Shadow && !r.Allowed && r.Reason == limit.ReasonBanned {
			p.kind, p.title = typeAbnormal, titleAbnormal
		}
	}
	if p.kind == typeQuota && p.status == http.StatusServiceUnavailable {
		p.kind, p.title = typeCapacity, titleCapacity
	}
	return appendProblem(dst, p)
}

func appendProblem(b []byte, p problem) []byte {
	b = append(b, `{"type":`...)
	b = appendString(b, p.kind)
	b = append(b, `,"title":`...)
	b = appendString(b, p.title)
	b = append(b, `,"status":`...)
	b = strconv.AppendInt(b, int64(p.status), 10)
	if p.decision != nil {
		b = appendRefusal(b, p.decision)
		if r := p.decision.Refused(); r != nil && p.options.Dashboard != "" {
			b = append(b, `,"limit-page":`...)
			b = appendString(b, p.options.Dashboard+url.QueryEscape(r.Limit))
		}
		if p.options.Members != nil {
			b = p.options.Members(b)
		}
	} else if p.detail != "" {
		b = append(b, `,"detail":`...)
		b = appendString(b, p.detail)
	}
	return append(b, "}\n"...)
}

func appendRefusal(b []byte, d *limit.Decision) []byte {
	retry, wait := retrySeconds(d)
	first := d.Refused()
	b = append(b, `,"detail":"`...)
	if first == nil {
		b = append(b, `the request was refused`...)
	} else {
		b = append(b, `limit '`...)
		b = appendText(b, first.Limit)
		b = append(b, `' refused the request: `...)
		b = append(b, explain(first.Reason)...)
	}
	if wait {
		b = append(b, `; retry after `...)
		b = strconv.AppendInt(b, retry, 10)
		b = append(b, ` s`...)
	}
	b = append(b, `","violated-policies":[`...)
	n := 0
	for i := range d.Results {
		if r := &d.Results[i]; !r.Shadow && !r.Allowed && n < maxMembers {
			if n > 0 {
				b = append(b, ',')
			}
			b = appendString(b, r.Limit)
			n++
		}
	}
	b = append(b, ']')
	if first != nil {
		b = append(b, `,"reason":`...)
		b = appendString(b, first.Reason.String())
	}
	if wait {
		b = append(b, `,"retry_after":`...)
		exact := d.RetryAfter()
		if exact <= 0 { // the limit does not know it
			exact = time.Duration(retry) * time.Second
		}
		b = AppendSeconds(b, exact)
	}
	return b
}

// explain says for people what a reason means. It is plain ASCII without quotes.
func explain(r limit.Reason) string {
	switch r {
	case limit.ReasonRate:
		return "its rate is used up"
	case limit.ReasonConcurrency:
		return "too many requests are in flight"
	case limit.ReasonCost:
		return "the request costs more than it can ever admit"
	case limit.ReasonBanned:
		return "the client is banned for a time"
	case limit.ReasonMissing:
		return "the request lacks what the limit goes by"
	case limit.ReasonTableFull:
		return "its table is full and new clients share what is left"
	case limit.ReasonStoreFailure:
		return "its store does not answer"
	case limit.ReasonSuppressed:
		return "more is asked of it than it admits, and a part is refused"
	case limit.ReasonRecovering:
		return "its coordinator has just begun and does not know yet what is lent"
	case limit.ReasonQueueFull:
		return "the server is busy and its queue is full"
	case limit.ReasonEvicted:
		return "it made room in the queue for a more important one"
	case limit.ReasonQueueTimeout:
		return "it has waited for as long as it may"
	case limit.ReasonDeadline:
		return "it would not be done by its deadline"
	case limit.ReasonCancelled:
		return "it cost far more than was expected while others waited"
	default:
		return "it does not say why"
	}
}

func appendString(b []byte, s string) []byte {
	b = append(b, '"')
	b = appendText(b, s)
	return append(b, '"')
}

// appendText appends s as it stands inside a JSON string. Invalid UTF-8 becomes
// the replacement character.
func appendText(b []byte, s string) []byte {
	const hex = "0123456789abcdef"
	for _, c := range s {
		switch {
		case c == '"' || c == '\\':
			b = append(b, '\\', byte(c))
		case c < 0x20 || c == 0x7f || c == '<' || c == '>' || c == '&':
			// Browsers must not take any part of it for markup.
			b = append(b, '\\', 'u', '0', '0', hex[c>>4&0xf], hex[c&0xf])
		default:
			b = utf8.AppendRune(b, c)
		}
	}
	return b
}
