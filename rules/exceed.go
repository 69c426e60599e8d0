package rules

import (
	"fmt"
	"math/bits"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/document"
	"github.com/stint-io/stint/limit"
)

// The keys of on_exceed.
var (
	exceedKeys   = []string{"reject", "throttle", "queue", "redirect", "tag", "ban"}
	rejectKeys   = []string{"status", "body", "content_type", "header"}
	queueKeys    = []string{"max_wait", "length"}
	redirectKeys = []string{"location", "status"}
	tagKeys      = []string{"name", "value"}
	banKeys      = []string{"for", "after", "from"}
)

// OnExceed says what becomes of a request over a limit. The zero value refuses it with 429.
type OnExceed struct {
	// Action is how a refusal looks; nil = as usual, with the Status of the limit.
	Action *limit.Action

	// MaxWait is how long a request may wait for its turn before it is refused; 0 = it does not.
	MaxWait time.Duration
	// MaxWaiting is how many may wait in one process at a time, all keys together.
	MaxWaiting int

	// Tag is the header field that lets a request over the limit through, marked; nil = it is
	// refused.
	Tag *limit.Attribute
}

const (
	// usualWaiting is how many may wait for a limit. Not more: each holds a connection and the
	// memory of its request. Not fewer: a burst should wait instead of being refused.
	usualWaiting = 1000
	maxWaiting   = 1 << 18

	// longestQueueWait bounds max_wait. Not longer: clients and gateways give up before.
	longestQueueWait = time.Minute

	// maxActionBytes bounds the header fields of an answer together, since gateways read all of
	// them into 4 KiB, and maxBody the body.
	maxActionBytes  = 2 << 10
	maxActionFields = 16
	maxBody         = 16 << 10
)

// exceed reads on_exceed.
func (b *builder) exceed(s *scope, l *Limit, n *document.Node) {
	if n.Kind == document.Text && (n.Text == "reject" || n.Text == "throttle") {
		return // the default
	}
	if n.Kind == document.Text && n.Text == "tag" {
		l.OnExceed.Tag = &limit.Attribute{Name: limit.DegradedHeader, Value: l.Name}
		return
	}
	if n.Kind != document.Map {
		s.Wants(n, "a map such as {reject: 429}", foreignExceed(n))
		return
	}
	s.known(n, "on_exceed", exceedKeys)
	reject, redirect, tag, queue := n.Get("reject"), n.Get("redirect"), n.Get("tag"), n.Get("queue")
	if throttle := n.Get("throttle"); throttle != nil {
		if reject != nil {
			s.Fault(throttle, "leave one out", "throttle is read as reject, and both are there")
			return
		}
		b.warn(s.file, throttle, "write reject; what should wait is queue", "throttle means to refuse the excess to some and to delay it to others; here it is reject")
		reject = throttle
	}
	switch {
	case redirect != nil && reject != nil:
		s.Fault(redirect, "leave one out", "redirect and reject exclude each other")
	case tag != nil && queue != nil:
		s.Fault(tag, "leave one out", "tag lets a request through, so it need not wait in a queue")
	case tag != nil && (reject != nil || redirect != nil) && n.Get("ban") == nil:
		s.Fault(tag, "leave one out, or add a ban, which is answered so", "tag lets a request through, so it is not refused")
	}
	if reject != nil {
		b.reject(s, l, reject)
	}
	if redirect != nil {
		b.redirect(s, l, redirect)
	}
	if tag != nil {
		b.tag(s, l, tag)
	}
	if queue != nil {
		b.queue(s, l, queue)
	}
	if ban := n.Get("ban"); ban != nil {
		b.banOf(s, l, ban)
	}
}

func (b *builder) reject(s *scope, l *Limit, n *document.Node) {
	status := func(n *document.Node) {
		if v, ok := s.integer(n, 400, 599); ok {
			l.Status = int(v)
		}
	}
	if n.Kind != document.Map {
		status(n)
		return
	}
	if !s.section(n, "reject", "a status such as 429, or a map such as {status: 503, body: 'try later'}", rejectKeys) {
		return
	}
	a := &limit.Action{}
	if v := n.Get("status"); v != nil {
		status(v)
	}
	a.Status = l.Status
	if v := n.Get("body"); v != nil && (v.Kind == document.Map || v.Kind == document.List) {
		s.Wants(v, "text", `quote JSON: body: '{"error": "too many requests"}'`)
	} else if v != nil {
		if text, ok := s.str(v, "text"); ok {
			if len(text) > maxBody {
				s.Fault(v, "answer with a redirect, or a reference to a page", "the body has %d bytes, want at most %d", len(text), maxBody)
			}
			a.Body, a.HasBody, a.ContentType = text, true, "text/plain; charset=utf-8"
			switch trimmed := strings.TrimSpace(text); {
			case strings.HasPrefix(trimmed, "{") || strings.HasPrefix(trimmed, "["):
				a.ContentType = "application/json"
			case strings.HasPrefix(trimmed, "<"):
				a.ContentType = "text/html; charset=utf-8"
			}
		}
	}
	if v := n.Get("content_type"); v != nil {
		if text, ok := s.str(v, "a media type"); ok && s.fieldValue(v, text) {
			if !a.HasBody {
				s.Fault(v, "add body", "content_type without a body of your own")
			}
			a.ContentType = text
		}
	}
	if v := n.Get("header"); v != nil {
		s.fields(v, a)
	}
	l.OnExceed.Action = a
}

// ownFields are header fields that the answer has from elsewhere, or that say how it is sent.
var ownFields = []string{
	"connection", "content-encoding", "content-length", "content-type", "date", "keep-alive", "location",
	"proxy-connection", "ratelimit", "ratelimit-policy", "retry-after", "te", "trailer",
	"transfer-encoding", "upgrade", "x-ratelimit-limit", "x-ratelimit-remaining", "x-ratelimit-reset",
	"x-ratelimit-retry-after", "x-ratelimit-warning",
}

// fields reads header fields.
func (s *scope) fields(n *document.Node, a *limit.Action) {
	if n.Kind != document.Map {
		s.Wants(n, "a map such as {X-Reason: quota}", "")
		return
	}
	if len(n.Fields) > maxActionFields {
		s.Fault(n, "", "%d header fields, want at most %d", len(n.Fields), maxActionFields)
		return
	}
	size := 0
	for _, f := range n.Fields {
		value, ok := s.str(f.Value, "the value of a header field")
		if !ok || !s.fieldName(f.Key, f.Key.Text) || !s.fieldValue(f.Value, value) {
			continue
		}
		if lower := strings.ToLower(f.Key.Text); slices.Contains(ownFields, lower) || strings.HasPrefix(lower, "x-stint-") {
			s.Fault(f.Key, "leave it out", "the header field %s is set by stint", f.Key.Text)
			continue
		}
		size += len(f.Key.Text) + len(value) + 4
		a.Header = append(a.Header, limit.Attribute{Name: f.Key.Text, Value: value})
	}
	if size > maxActionBytes {
		s.Fault(n, "gateways read all header fields of an answer into 4 KiB", "the header fields have %d bytes, want at most %d", size, maxActionBytes)
	}
}

// fieldName reports whether text is a token of RFC 9110.
func (s *scope) fieldName(n *document.Node, text string) bool {
	token := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	}
	if text == "" || len(text) > 128 || strings.ContainsFunc(text, func(r rune) bool { return !token(r) }) {
		s.Fault(n, "write it as X-Reason", "%q cannot be the name of a header field", text)
		return false
	}
	return true
}

// fieldValue reports whether text can stand in a header field as it is. It is ASCII: what bytes
// above mean is up to the reader.
func (s *scope) fieldValue(n *document.Node, text string) bool {
	if len(text) > maxActionBytes || strings.TrimSpace(text) != text || strings.ContainsFunc(text, func(r rune) bool { return r < ' ' || r > '~' }) {
		s.Fault(n, "use printable ASCII, without spaces around it", "%.100q cannot be the value of a header field", text)
		return false
	}
	return true
}

func (b *builder) redirect(s *scope, l *Limit, n *document.Node) {
	a := &limit.Action{Status: 302}
	at := n
	if n.Kind == document.Map {
		if !s.section(n, "redirect", "a URL, or a map such as {location: /busy.html, status: 303}", redirectKeys) {
			return
		}
		if v := n.Get("status"); v != nil {
			if status, ok := s.integer(v, 300, 399); ok {
				if a.Status = int(status); !slices.Contains([]int{301, 302, 303, 307, 308}, a.Status) {
					s.Fault(v, "write 302, 303 or 307", "%d sends nobody elsewhere", a.Status)
				}
				if a.Status == 301 || a.Status == 308 {
					b.warn(s.file, v, "write 302 or 307", "%d is for ever: browsers keep it, and do not come back when the limit has room again", a.Status)
				}
			}
		}
		if at = n.Get("location"); at == nil {
			s.Fault(n, "add location: https://example.com/busy", "a redirect does not say where to")
			return
		}
	}
	text, ok := s.str(at, "a URL, or a path")
	if !ok {
		return
	}
	u, err := url.Parse(text)
	path := strings.HasPrefix(text, "/") && !strings.HasPrefix(text, "//") && !strings.HasPrefix(text, `/\`)
	absolute := err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil
	if err != nil || !path && !absolute || len(text) > maxActionBytes || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' || strings.ContainsRune("\"<>\\^`{|}", r) }) {
		s.Fault(at, "write https://HOST/PATH or /PATH, percent-encoded", "%.100q is no place to redirect to", text)
		return
	}
	a.Location = text
	l.Status, l.OnExceed.Action = a.Status, a
	if path && l.clause.meets(u.Path) {
		b.warn(s.file, at, "redirect to a path that the limit does not match", "%s meets the limit as well: a client over the limit is sent from one redirect to the next", text)
	}
}

// meets reports whether a request for path by GET meets the clause, as far as that is known of one that met it with another
// path.
func (c *clause) meets(path string) bool {
	for i := range c.conditions {
		cond := &c.conditions[i]
		if cond.name == "path" && !cond.matches(path) || cond.name == "method" && !cond.matches("GET") {
			return false
		}
	}
	return c.expression == nil && c.unless == nil
}

func (b *builder) tag(s *scope, l *Limit, n *document.Node) {
	tag := &limit.Attribute{Name: limit.DegradedHeader, Value: l.Name}
	l.OnExceed.Tag = tag
	if n.Kind == document.Bool && n.Text == "true" {
		return
	}
	if n.Kind == document.Text {
		if s.fieldName(n, n.Text) {
			tag.Name = n.Text
		}
	} else if s.section(n, "tag", "true, the name of a header field, or a map such as {name: X-Serve, value: reduced}", tagKeys) {
		if v := n.Get("name"); v != nil {
			if text, ok := s.str(v, "the name of a header field"); ok && s.fieldName(v, text) {
				tag.Name = text
			}
		}
		if v := n.Get("value"); v != nil {
			if text, ok := s.str(v, "the value of a header field"); ok && s.fieldValue(v, text) {
				tag.Value = text
			}
		}
	}
	if lower := strings.ToLower(tag.Name); slices.Contains(ownFields, lower) || contains([]string{"host", "authorization", "cookie"}, lower) {
		s.Fault(n, "name one of your own", "the header field %s means something else to who serves the request", tag.Name)
	}
}

func (b *builder) queue(s *scope, l *Limit, n *document.Node) {
	if !s.section(n, "queue", "a map such as {max_wait: 2s}", queueKeys) {
		return
	}
	l.OnExceed.MaxWaiting = usualWaiting
	if v := n.Get("length"); v != nil {
		if length, ok := s.integer(v, 1, maxWaiting); ok {
			l.OnExceed.MaxWaiting = int(length)
		}
	}
	wait := n.Get("max_wait")
	if wait == nil {
		s.Fault(n, "add max_wait: 2s", "a queue does not say how long a request may wait")
	} else if d, ok := s.duration(wait); ok {
		if l.OnExceed.MaxWait = d; d > longestQueueWait {
			s.Wants(wait, fmt.Sprintf("a duration of at most %v", longestQueueWait), "clients and gateways give up before")
		}
	}
	if l.Sharing.Local() {
		s.Fault(n, "let instances wait with client.Limiter.Wait, or use sharing: exact", "a limit shared %s has no queue here: instances decide by themselves", sharingWays[l.Sharing])
	}
}

// banOf reads on_exceed.ban.
func (b *builder) banOf(s *scope, l *Limit, ban *document.Node) {
	if ban.Kind != document.Map {
		length := "15m"
		if _, err := limit.ParseRate("1/" + ban.Text); err == nil {
			length = ban.Text
		}
		s.Wants(ban, "a map", fmt.Sprintf("write ban: {for: %s, after: 20/minute}", length))
		return
	}
	if !s.section(ban, "ban", "a map", banKeys) {
		return
	}
	l.Ban = &Ban{}
	if length := ban.Get("for"); length == nil {
		s.Fault(ban, "add for: 15m", "a ban needs its length")
	} else if v, ok := s.duration(length); ok {
		l.Ban.For = v
	}
	s.either(ban.Get("from"), &l.Ban.FromNow, "period_end", "now")
	if after := ban.Get("after"); after != nil {
		if after.Kind == document.Int && l.Base.Policy.Rate.Period != 0 {
			_, period, _ := strings.Cut(l.Base.Policy.Rate.String(), "/")
			s.Wants(after, "a rate with its period", fmt.Sprintf("did you mean %s/%s?", after.Text, period))
		} else if r, ok := s.rate(after); ok {
			l.Ban.After = r.WithCount(writtenCount(after))
		}
	} else if l.Base.Policy.Algorithm == limit.Concurrency {
		s.Fault(ban, "add after: 20/minute", "the ban of a concurrency limit needs a rate of attempts")
	}
	if len(l.Key) == 0 {
		b.warn(s.file, ban, "add a key, such as key: ip", "the limit has no key: one client that goes over it has all clients banned")
	}
	if l.OnExceed.MaxWait > 0 {
		b.warn(s.file, ban, "leave one out, or ban after many more attempts than the limit admits", "each request that waits in the queue is counted twice or more by the ban: when it comes and when it is tried again")
	}
}

// doubtBan warns of a ban that begins before the limit refuses.
func (b *builder) doubtBan(s *scope, l *Limit, v *Variant) {
	at, p, after := s.get("on_exceed").Get("ban").Get("after"), &v.Policy, l.Ban.After
	if at == nil || after.Period == 0 || p.Algorithm == limit.Concurrency || p.Rate.Period == 0 {
		return
	}
	whose := "limit"
	if s.override != nil {
		whose = v.Detail
	}
	asked, _ := bits.Mul64(uint64(after.Count), uint64(p.Rate.Period))
	admitted, _ := bits.Mul64(uint64(p.Rate.Count), uint64(after.Period))
	askedLow, admittedLow := uint64(after.Count)*uint64(p.Rate.Period), uint64(p.Rate.Count)*uint64(after.Period)
	if asked < admitted || asked == admitted && askedLow < admittedLow || after.Count < p.Quota() && after.Period <= p.Rate.Period {
		b.warn(s.file, at, "ban after more attempts than are admitted", "the %s admits %v and %d at once, and the ban begins after %v: it bans clients that are within it", whose, p.Rate, p.Quota(), after)
	}
}

// ban gives a variant its counter of attempts.
func (b *builder) ban(s *scope, l *Limit, v *Variant) {
	if l.Ban == nil || v.Policy.Unlimited || l.Ban.For <= 0 {
		return
	}
	b.doubtBan(s, l, v)
	after := l.Ban.After
	if after == (limit.Rate{}) {
		after = v.Policy.Rate
		rate := s.override.Get("rate")
		if rate == nil {
			rate = s.get("rate")
		}
		if rate != nil && slices.Contains(buckets, v.Policy.Algorithm) {
			after = after.WithCount(writtenCount(rate)) // a window has a whole count already
		}
	}
	// The "!" in front keeps it apart from every limit's name.
	v.BanID = "!ban " + v.ID
	v.BanPolicy = limit.Policy{
		Algorithm: limit.FixedWindow, Align: limit.AlignFirstHit, Rate: after,
		CountRefused: true, Ban: l.Ban.For, BanFromNow: l.Ban.FromNow,
	}
	if err := v.BanPolicy.Validate(); err != nil {
		s.Fault(s.get("on_exceed"), "", "ban: %s", trimmed(err))
	}
}

// Uncarried says of limits whose on_exceed not every door can carry what becomes of it there.
func (s *Set) Uncarried() []Error {
	var out []Error
	say := func(l *Limit, hint, format string, args ...any) {
		if len(out) < document.MaxFaults {
			out = append(out, Error{File: l.File, Line: l.Line, Hint: hint, Message: fmt.Sprintf("limit %q: ", l.Name) + fmt.Sprintf(format, args...)})
		}
	}
	for _, l := range s.native {
		for _, text := range l.Uncarried() {
			say(l, "see docs/reference/limits-file.md, on_exceed", "%s", text)
		}
	}
	return out
}

// Uncarried says where the limit's on_exceed cannot be carried, and what happens there; nil = every
// door can.
func (l *Limit) Uncarried() (list []string) {
	o := &l.OnExceed
	if o.Action != nil && o.Action.Location != "" {
		list = append(list, "redirect is for HTTP: over gRPC, and over Envoy's protocol, a request is refused with the place in the header field location")
	}
	if o.MaxWait > 0 {
		list = append(list, "queue is not for Envoy's protocol, whose proxy waits 20 ms by default: there a request is refused at once; a gateway that asks waits as long as wait= in its path says")
	}
	if l.Base.Policy.Algorithm == limit.LeakyBucket {
		list = append(list, "a leaky bucket does not pace over Envoy's protocol, whose proxy does not wait: there a request passes at once, and the dynamic metadata has its delay; a gateway that asks waits as long as wait= in its path says")
	}
	if l.Sharing.Local() && (o.Action != nil || o.Tag != nil) {
		list = append(list, "instances that hold a lease decide by themselves and know nothing of on_exceed: it is for what the server decides")
	}
	return list
}

// purpose reads the label of the limit, and whether its usage is kept.
func (b *builder) purpose(s *scope, l *Limit) {
	if n := s.get("usage"); n != nil {
		if v, ok := s.boolean(n); ok {
			l.Usage = &v
		}
	}
	n := s.get("purpose")
	if n == nil {
		return
	}
	text, ok := s.str(n, "a word such as plan")
	if !ok {
		return
	}
	if text == "" || len(text) > 64 || strings.ContainsFunc(text, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '_' || r == '.')
	}) {
		s.Fault(n, "write a word such as provisioning, isolation or plan", "%.100q cannot be a purpose: letters, digits, - _ and . only, 64 at most", text)
		return
	}
	l.Purpose = text
}

// ExceedText says in words what becomes of a request over the limit.
func (l *Limit) ExceedText() string {
	o := &l.OnExceed
	text := ""
	if o.MaxWait > 0 {
		text = fmt.Sprintf("wait up to %v, then ", o.MaxWait)
	}
	refusal := fmt.Sprintf("refuse with %d", l.Status)
	if o.Action != nil && o.Action.Location != "" {
		refusal = fmt.Sprintf("redirect to %s with %d", o.Action.Location, l.Status)
	}
	if o.Tag != nil {
		text += fmt.Sprintf("let through with %s: %s", o.Tag.Name, o.Tag.Value)
	} else {
		text += refusal
	}
	if l.Ban == nil {
		return text
	}
	after, from := l.Ban.After, "from the end of that period"
	if after == (limit.Rate{}) {
		after = l.Base.Policy.Rate
	}
	if l.Ban.FromNow {
		from = "from then on"
	}
	text += fmt.Sprintf("; ban for %v after more than %v, %s", l.Ban.For, after, from)
	if o.Tag != nil {
		text += ", and " + refusal
	}
	return text
}
