// Package httplimit protects a net/http handler with limits: it describes the
// request, takes, and answers 429 where the decision is a refusal.
//
//	http.ListenAndServe(addr, httplimit.New(taker)(handler))
//
// It decides nothing itself and does not wrap the ResponseWriter: flushing,
// hijacking and streaming work as before.
//
// Each request has these attributes, in this order:
//
//   - those of [WithAttributes], and key of [WithKey]; where a name occurs twice the first one counts
//   - ip, the client's address: see [WithTrustedProxies] and [WithIPv6Prefix]
//   - method
//   - path, without query and cleaned of //, /./ and /../
//   - host, in lower case, without port
//   - those that [WithRequestAttributes] names
//   - the header fields, cookies, query parameters and the size that the taker's
//     limits read, if it is a [limit.AttributeReader] as that of stint.Open is
//
// Answers have the header fields RateLimit and RateLimit-Policy of each limit
// that applied ([WithHeaders] turns them off), X-RateLimit-Warning with the names
// of limits that are used beyond their soft threshold, and on a refusal
// Retry-After and an RFC 9457 problem document as the body.
//
// A limit may ask for more (on_exceed in a limits file): an answer of its own, a redirect, or that
// the request waits for its turn. A request that a limit lets through although it is over it has
// the header field X-RateLimit-Degraded, or another that the limit names, for the handler.
package httplimit

import (
	"context"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/forwarded"
	"github.com/stint-io/stint/internal/forwarded/identify"
	"github.com/stint-io/stint/internal/held"
	"github.com/stint-io/stint/limit"
)

// Draft names the version of the RateLimit header fields. The zero value is
// [Draft10].
type Draft = answer.Draft

// The versions of the RateLimit and RateLimit-Policy fields.
const (
	Draft11 = answer.Draft11 // draft-ietf-httpapi-ratelimit-headers-11: as Draft10, and permits in flight are named as such
	Draft10 = answer.Draft10 // lists of limits: r and t, q and w
	Draft07 = answer.Draft07 // one limit: limit, remaining and reset
	Draft06 = answer.Draft06 // one limit: RateLimit-Limit, -Remaining and -Reset; RateLimit-Policy
	Draft03 = answer.Draft03 // as Draft06, with the policies in RateLimit-Limit
	Off     = answer.Off     // none of these
)

// OnError says what becomes of a request about which no decision could be made.
type OnError uint8

// The choices.
const (
	// Reject answers 503. It is the default: what a limit does when its store
	// fails is said in the limit, so what is left here is a request that the
	// limiter does not understand, and a client must not get past a limit by
	// sending one.
	Reject OnError = iota
	// Allow lets the request pass without limit.
	Allow
)

// Option changes what [New] builds.
type Option func(*middleware)

// WithAttributes adds attributes, such as the user that an outer handler has
// found. f is called once for each request, concurrently.
func WithAttributes(f func(*http.Request) []limit.Attribute) Option {
	return func(m *middleware) { m.attributes = f }
}

// WithKey adds the attribute key, by which stint.Per("key", rate) or a limit with key: [key] counts: f says who sends a
// request, such as the user of its session. "" = nobody, so that the request has no such attribute. f is called once for
// each request, concurrently. It goes with [WithAttributes], and comes after those.
func WithKey(f func(*http.Request) string) Option {
	return func(m *middleware) { m.key = f }
}

// WithRequestAttributes adds the attributes named, of these kinds:
// "header:x-api-key", "cookie:session" and "query:tenant"; "header:*" for every
// header field (at most 256); "size" for the length of the body in bytes, where
// the client declares it. The attribute's name is the whole text. What a request
// does not have is no attribute; of what it has several times, the first counts;
// values are cut at 1 KiB. Names of other kinds are ignored, so that it can be
// given all that a set of rules reads.
func WithRequestAttributes(names ...string) Option {
	return func(m *middleware) {
		m.plan = identify.NewPlan(names)
	}
}

// WithoutDuplicates answers 400 to a request that has a header field, cookie or query parameter which the limits read more
// than once, or one that servers take for it, such as X_Api_Key for X-Api-Key: the first counts here, and many servers take
// the last, so that a client would be counted under one key and served under another. Use it where another server reads
// the request again; a Go handler takes the first, too.
func WithoutDuplicates() Option { return func(m *middleware) { m.unique = true } }

// WithTrustedProxies believes X-Forwarded-For, Forwarded or X-Real-IP (the first
// that is there) from these proxies, and from these only. A list is read from
// the right and the first address that is not among proxies is the client. Every
// proxy must overwrite or append to X-Forwarded-For. The default trusts no proxy:
// the client is the peer of the connection.
func WithTrustedProxies(proxies ...netip.Prefix) Option {
	return func(m *middleware) { m.trusted = forwarded.TrustPrefixes(proxies) }
}

// WithIPv6Prefix cuts IPv6 addresses in the attribute ip to a prefix of that length, 1 to 127, such as 2001:db8:0:1::/64,
// for a Taker that counts by the attribute as it is. By default it has the whole address: the limits of a file match it,
// and cut it to their ipv6_prefix, 64, where they count by it.
func WithIPv6Prefix(bits int) Option {
	return func(m *middleware) { m.ipv6Bits = bits }
}

// WithHeaders sets the version of the RateLimit header fields. The default is
// [Draft10].
func WithHeaders(d Draft) Option {
	return func(m *middleware) { m.answer.RateLimitFields = d }
}

// WithXRateLimit adds the older fields X-RateLimit-Limit, -Remaining and -Reset
// (seconds from now) of the tightest limit, and X-RateLimit-Retry-After on
// refusals.
func WithXRateLimit() Option {
	return func(m *middleware) { m.answer.XRateLimit = true }
}

// WithOnError sets what becomes of a request about which no decision could be
// made. The default is [Reject].
func WithOnError(o OnError) Option {
	return func(m *middleware) { m.onError = o }
}

// WithCost sets what a request takes; the default is 1. A request that costs 0
// takes nothing and passes while one that costs 1 would. A negative cost is an
// error, to which [WithOnError] applies.
func WithCost(f func(*http.Request) int64) Option {
	return func(m *middleware) { m.cost = f }
}

// WithDenied answers refused requests in place of the problem document. The
// header fields are set already; [limit.Decision.Status] is the status that the
// limit asks for. f must not keep the Decision.
func WithDenied(f func(http.ResponseWriter, *http.Request, *limit.Decision)) Option {
	return func(m *middleware) { m.denied = f }
}

// WithHooks calls h for each decision, and of each request about which none could be
// made.
func WithHooks(h limit.Hooks) Option {
	return func(m *middleware) { m.hooks = &h }
}

type middleware struct {
	hooks      *limit.Hooks // nil = none
	taker      limit.Taker
	finisher   limit.Finisher                        // nil when the taker holds no concurrency limits
	attributes func(*http.Request) []limit.Attribute // nil = none
	key        func(*http.Request) string            // nil = none
	plan       *identify.Plan                        // of WithRequestAttributes
	read       *identify.Live                        // what the taker's limits read
	trusted    *forwarded.Trusted
	ipv6Bits   int
	unique     bool // see WithoutDuplicates
	answer     answer.Options
	onError    OnError
	cost       func(*http.Request) int64
	denied     func(http.ResponseWriter, *http.Request, *limit.Decision)
	// room holds attribute slices between requests.
	room sync.Pool
}

// New returns a middleware that asks taker about each request before the handler
// sees it. If taker is a [limit.Finisher], its permit is released when
// the handler returns or panics. If a leaky bucket asks for a delay, the request
// waits that long, or until its context is done, which is answered with 503.
//
// New panics if taker is nil.
//
// The middleware is safe for concurrent use and starts no goroutine.
func New(taker limit.Taker, opts ...Option) func(http.Handler) http.Handler {
	if taker == nil {
		panic("httplimit: New: the taker is nil: give a limiter, as of stint.Per, and look at the error that came with it")
	}
	m := &middleware{taker: taker, plan: identify.NewPlan(nil), read: identify.NewLive(nil)}
	m.finisher, _ = taker.(limit.Finisher)
	if reader, ok := taker.(limit.AttributeReader); ok {
		m.read = identify.NewLive(reader.Attributes)
	}
	m.room.New = func() any {
		room := make([]limit.Attribute, 0, 16)
		return &room
	}
	for _, o := range opts {
		o(m)
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { m.serve(w, r, next) })
	}
}

func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if m.unique {
		for _, plan := range [...]*identify.Plan{m.plan, m.read.Plan()} {
			if name := plan.Ambiguous(r.Header, r.URL.RawQuery); name != "" {
				answer.WriteError(w, http.StatusBadRequest, identify.AmbiguousText(name))
				return
			}
		}
	}
	room := m.room.Get().(*[]limit.Attribute)
	defer m.free(room)
	*room = m.describe((*room)[:0], r)
	req := limit.Request{Attributes: *room}
	if m.cost != nil {
		req.Cost = m.cost(r)
		req.Peek = req.Cost == 0
	}
	d, err := m.taker.Take(r.Context(), req)
	if m.hooks != nil {
		decided := d // a copy: without hooks no Decision goes to the heap
		m.hooks.Decided(r.Context(), &decided, err)
	}
	if err != nil {
		if m.onError == Allow {
			next.ServeHTTP(w, r)
		} else {
			answer.WriteUnavailable(w)
		}
		return
	}
	if d.Permit != 0 && m.finisher != nil {
		defer held.Hold(r.Context(), m.finisher, req, d.Permit, d.PermitFor).Release()
	}
	switch {
	case !d.Allowed && m.denied != nil:
		// A copy, so that only refused requests pay for a Decision on the heap.
		refusal := d
		answer.Header(w.Header(), &refusal, m.answer)
		m.denied(w, r, &refusal)
	case !d.Allowed:
		answer.WriteRefusal(w, &d, m.answer)
	case d.Delay > 0 && !wait(r.Context(), d.Delay):
		answer.WriteUnavailable(w)
	default:
		answer.Header(w.Header(), &d, m.answer)
		if len(d.Tags) > 0 || r.Header[degraded] != nil {
			r = marked(r, d.Tags)
		}
		if d.Permit != 0 {
			r = r.WithContext(context.WithValue(r.Context(), permitKey{}, true))
		}
		next.ServeHTTP(w, r)
	}
}

type permitKey struct{}

// HoldsPermit reports whether the request with this context holds a permit of a concurrency limit, which is released
// when its handler returns. A handler that has another server do the work should not return before that has ended it,
// even if the client has gone: more would run there than the limit says.
func HoldsPermit(ctx context.Context) bool { return ctx.Value(permitKey{}) != nil }

// degraded is limit.DegradedHeader as [http.Header] spells it. A client that sends it is not
// believed.
const degraded = "X-Ratelimit-Degraded"

// marked returns a copy of r with the marks of the limits that let it through although it is over
// them: a handler must not change the request that it was given.
func marked(r *http.Request, tags []limit.Attribute) *http.Request {
	r = r.WithContext(r.Context())
	r.Header = r.Header.Clone()
	r.Header.Del(degraded)
	for _, t := range tags {
		r.Header.Del(t.Name)
	}
	for _, t := range tags {
		r.Header.Add(t.Name, t.Value)
	}
	return r
}

// describe appends the attributes of r to dst.
func (m *middleware) describe(dst []limit.Attribute, r *http.Request) []limit.Attribute {
	if m.attributes != nil {
		dst = append(dst, m.attributes(r)...)
	}
	if m.key != nil {
		if key := m.key(r); key != "" {
			dst = append(dst, limit.Attribute{Name: "key", Value: key})
		}
	}
	client, _ := m.trusted.ClientIP(r.RemoteAddr, r.Header)
	if ip := forwarded.Network(client, m.ipv6Bits); ip != "" {
		dst = append(dst, limit.Attribute{Name: "ip", Value: ip})
	}
	dst = identify.AppendURL(append(dst, limit.Attribute{Name: "method", Value: r.Method}), r.URL)
	dst = append(dst, limit.Attribute{Name: "host", Value: forwarded.Host(r.Host)})
	if r.TLS != nil && r.TLS.ServerName != "" {
		dst = append(dst, limit.Attribute{Name: "sni", Value: forwarded.Host(r.TLS.ServerName)})
	}
	read := m.read.Plan()
	if m.plan.Size() || read.Size() {
		size := "unknown" // a condition that reads it cannot be evaluated
		if r.ContentLength >= 0 {
			size = strconv.FormatInt(r.ContentLength, 10)
		}
		dst = append(dst, limit.Attribute{Name: "size", Value: size})
	}
	dst = m.plan.Append(dst, r.Header, r.URL.RawQuery)
	return read.Append(dst, r.Header, r.URL.RawQuery)
}

func (m *middleware) free(room *[]limit.Attribute) {
	// Values belong to requests and must not outlive them here.
	clear(*room)
	m.room.Put(room)
}

// wait waits for d and reports whether ctx lived that long.
func wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
