// Package httpthrottle protects a net/http server from more work than it can do: requests run, wait
// or are turned away as a [throttle.Throttle] decides.
//
//	t, err := throttle.New(throttle.Options{Rate: 1.6}) // 80 % of two cores
//	handler = httpthrottle.New(t)(mux)
//
// It says which route a request belongs to, who sends it and how important it is, and what it
// has cost if the handler reports that; it decides nothing itself.
//
// The route is the pattern of the http.ServeMux that New wraps, else that of one around it, else
// the method with the first segment of the path. The user is the client's address. The header field
// X-Criticality says how important a request is, such as critical or "sheddable;level=3": from
// strangers it only lowers the class, see [WithTrustedPeers]. The context of the request carries
// it on: a client of package outgoing sends it with the requests that the handler makes.
//
// A request that is refused, evicted, or has waited too long, is answered once: with 503, since it
// is the server that is busy and not the client that asked too often (that is 429, of
// package httplimit), Retry-After and an RFC 9457 problem document that has the reason. So is one
// that is cancelled while it runs, when its handler returns: what the handler writes after that
// is not sent, and an answer that had begun is cut off, so that no client takes a part for all.
//
// What a request has cost is, in this order: what the handler says by [throttle.SetCost]; the
// request_cost of an ORCA report in its header or trailer fields (Endpoint-Load-Metrics, in which
// cpu is CPU time in milliseconds); what the throttle's Meter measures.
//
// Flushing, hijacking, streaming and http.ResponseController work as before. A request holds its place until its handler
// returns. A connection that is hijacked, and an event stream (text/event-stream), hold it until they have begun: they may
// be open for days and do little. [WithPlace] says otherwise.
package httpthrottle

import (
	"net/http"
	"net/netip"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/costs/orca"
	"github.com/stint-io/stint/internal/forwarded"
	"github.com/stint-io/stint/internal/forwarded/identify"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/throttle"
)

// Option changes what [New] builds.
type Option func(*middleware)

// WithRoute sets the route of a request: requests of one are expected to cost the same. Return
// patterns, and never paths with identifiers: a throttle knows some 1,000 routes.
func WithRoute(f func(*http.Request) string) Option {
	return func(m *middleware) { m.route = f }
}

// WithRouteKeys adds to the route the values of "query:kind", "header:x-report" or "cookie:plan",
// for those by which the cost of a route differs. Each should have few values.
func WithRouteKeys(names ...string) Option {
	return func(m *middleware) { m.keys = identify.NewPlan(names) }
}

// WithUser sets who sends a request, such as the account that an outer handler has found. Users
// share what is served fairly, and of a class that is shed in part the same users are always shed.
// The default is the client's address.
func WithUser(f func(*http.Request) string) Option {
	return func(m *middleware) { m.user = f }
}

// WithKey sets who shares what is served fairly, if that is not the user. See [ByRoute].
func WithKey(f func(*http.Request) string) Option {
	return func(m *middleware) { m.key = f }
}

// ByRoute lets the routes rather than the users share what is served: a cheap route does not wait
// behind a dear one, whoever calls them.
func ByRoute() Option { return func(m *middleware) { m.byRoute = true } }

// WithCriticality sets the class of requests that say nothing, which is also the highest that a
// stranger's may have. The default is [throttle.SheddablePlus].
func WithCriticality(c throttle.Criticality) Option {
	return func(m *middleware) { m.class = c }
}

// WithImportance sets the class of requests, and perhaps the level, in place of the field
// X-Criticality.
func WithImportance(f func(*http.Request) throttle.Importance) Option {
	return func(m *middleware) { m.importance = f }
}

// WithTrustedPeers believes the X-Criticality of these peers whole. They are the other end of the
// connection: own services, and only proxies that remove the field of strangers.
func WithTrustedPeers(peers ...netip.Prefix) Option {
	return func(m *middleware) { m.peers = forwarded.TrustPrefixes(peers) }
}

// WithTrustedProxies believes X-Forwarded-For, Forwarded or X-Real-IP (the first that is there)
// from these proxies, for the client's address. The default trusts no proxy.
func WithTrustedProxies(proxies ...netip.Prefix) Option {
	return func(m *middleware) { m.proxies = forwarded.TrustPrefixes(proxies) }
}

// WithCost sets the CPU time that a request will take, where the program knows it; 0 = as
// predicted.
func WithCost(f func(*http.Request) time.Duration) Option {
	return func(m *middleware) { m.cost = f }
}

// WithThreadClock measures what a request costs by the clock of a thread, to which its handler is
// bound while it runs: see [throttle.Work.Pin]. For handlers that mostly compute; a proxy mostly
// waits.
func WithThreadClock() Option { return func(m *middleware) { m.pin = true } }

// WithExempt lets requests pass that neither wait nor count, such as health checks: a server that
// fails them because it is busy is taken out of service, and the others are busier still.
func WithExempt(f func(*http.Request) bool) Option {
	return func(m *middleware) { m.exempt = f }
}

// WithoutReports removes ORCA reports from answers, after they were read: what a request costs is
// not every client's business.
func WithoutReports() Option { return func(m *middleware) { m.hide = true } }

// WithRefused answers refused requests in place of the problem document, and is called once for
// each. f must set the status, which [limit.Decision.Status] has, and must not keep the Decision.
func WithRefused(f func(http.ResponseWriter, *http.Request, *limit.Decision)) Option {
	return func(m *middleware) { m.refused = f }
}

// Place says for how long a request holds its place.
type Place uint8

// The choices.
const (
	PlaceByAnswer    Place = iota // an event stream until it has begun, any other until it has ended
	PlaceUntilAnswer              // until the answer has begun
	PlaceUntilEnd                 // until the answer has ended
)

// WithPlace sets for how long a request holds its place: until the answer has begun, for long polls and streams that do
// little; until it has ended, for event streams that are work, such as the tokens of a language model.
func WithPlace(f func(*http.Request) Place) Option { return func(m *middleware) { m.place = f } }

// WithRequest sets all that the throttle has to know of a request, in place of the options for its parts.
func WithRequest(f func(*http.Request) throttle.Request) Option {
	return func(m *middleware) { m.request = f }
}

type middleware struct {
	request    func(*http.Request) throttle.Request
	place      func(*http.Request) Place
	throttle   *throttle.Throttle
	route      func(*http.Request) string
	keys       *identify.Plan
	user, key  func(*http.Request) string
	byRoute    bool
	class      throttle.Criticality
	importance func(*http.Request) throttle.Importance
	peers      *forwarded.Trusted
	proxies    *forwarded.Trusted
	cost       func(*http.Request) time.Duration
	exempt     func(*http.Request) bool
	hide       bool
	pin        bool
	refused    func(http.ResponseWriter, *http.Request, *limit.Decision)
}

// New returns a middleware by which requests wait until t lets them run. Put it outermost, so that
// what waits or is refused costs as little as can be. It is safe for concurrent use and starts no
// goroutine. Functions of options are called once for each request, concurrently.
func New(t *throttle.Throttle, opts ...Option) func(http.Handler) http.Handler {
	m := newMiddleware(opts)
	m.throttle = t
	return func(next http.Handler) http.Handler {
		mux, _ := next.(interface {
			Handler(*http.Request) (http.Handler, string)
		})
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if m.exempt != nil && m.exempt(r) {
				next.ServeHTTP(w, r)
				return
			}
			pattern := ""
			if mux != nil && m.route == nil {
				_, pattern = mux.Handler(r)
			}
			if pattern == "" {
				pattern = r.Pattern
			}
			m.serve(w, r, next, pattern)
		})
	}
}

func newMiddleware(opts []Option) *middleware {
	m := &middleware{keys: identify.NewPlan(nil)}
	for _, o := range opts {
		o(m)
	}
	return m
}

func (m *middleware) serve(w http.ResponseWriter, r *http.Request, next http.Handler, pattern string) {
	work, d, err := m.throttle.Start(r.Context(), m.describe(r, pattern))
	switch {
	case err != nil:
		// Its client has gone, or its context has ended otherwise: whoever still listens is told.
		answer.WriteError(w, http.StatusServiceUnavailable, "the request was given up while it waited")
		return
	case !d.Allowed:
		m.refuse(w, r, &d)
		return
	}
	defer work.Done()
	out := &response{ResponseWriter: w, work: work, ctx: work.Context(), m: m, r: r}
	inner := r.WithContext(out.ctx)
	// Also where the handler panics: what it has cost is known, and the server removes the files
	// of the request that it knows.
	defer func() {
		out.report()
		r.Pattern, r.MultipartForm = inner.Pattern, inner.MultipartForm
	}()
	if m.pin {
		defer work.Pin()()
	}
	next.ServeHTTP(out, inner)
	out.end()
}

// refuse answers a refused request.
func (m *middleware) refuse(w http.ResponseWriter, r *http.Request, d *limit.Decision) {
	if m.refused != nil {
		answer.Header(w.Header(), d, answer.Options{})
		m.refused(w, r, d)
		return
	}
	answer.WriteRefusal(w, d, answer.Options{})
}

// describe returns what the throttle has to know of r.
func (m *middleware) describe(r *http.Request, pattern string) throttle.Request {
	if m.request != nil {
		return m.request(r)
	}
	importance := m.importanceOf(r)
	q := throttle.Request{
		Route: m.routeOf(r, pattern), User: m.userOf(r),
		Criticality: importance.Criticality, Level: importance.Level, HasLevel: importance.HasLevel,
	}
	switch {
	case m.byRoute:
		q.Key = q.Route
	case m.key != nil:
		q.Key = identify.Bound(m.key(r))
	}
	if m.cost != nil {
		q.Cost = max(0, m.cost(r))
	}
	return q
}

func (m *middleware) userOf(r *http.Request) string {
	if m.user != nil {
		return identify.Bound(m.user(r))
	}
	client, _ := m.proxies.ClientIP(r.RemoteAddr, r.Header)
	return forwarded.Network(client, forwarded.SubscriberBits)
}

// maxImportance bounds the field X-Criticality. Not smaller: there may be parameters to come.
const maxImportance = 256

func (m *middleware) importanceOf(r *http.Request) throttle.Importance {
	if m.importance != nil {
		return m.importance(r)
	}
	var said throttle.Importance
	// Several fields, or what cannot be understood, say nothing.
	if lines := r.Header[throttle.Header]; len(lines) == 1 && len(lines[0]) <= maxImportance {
		if i, err := throttle.ParseImportance(lines[0]); err == nil {
			said = i
		}
	}
	if said.Criticality == throttle.Default {
		return throttle.Importance{Criticality: m.class}
	}
	if _, trusted := m.peers.Peer(r.RemoteAddr); trusted {
		return said
	}
	return said.FromStranger(m.class)
}

// routeOf returns the signature of r.
func (m *middleware) routeOf(r *http.Request, pattern string) string {
	route := ""
	switch {
	case m.route != nil:
		route = identify.Bound(m.route(r))
	case pattern == "":
		route = method(r) + " " + firstSegment(r.URL.Path)
	case strings.Contains(pattern, " "):
		route = pattern // it has the method
	default:
		route = method(r) + " " + pattern
	}
	if found := m.keys.Append(nil, r.Header, r.URL.RawQuery); len(found) > 0 {
		for _, a := range found {
			route += " " + a.Name + "=" + a.Value
		}
		route = identify.Bound(route)
	}
	return route
}

// method returns the method of r. Clients may send any word, which shall not be a route each.
func method(r *http.Request) string {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodConnect, http.MethodOptions, http.MethodTrace:
		return r.Method
	default:
		return "OTHER"
	}
}

// maxSegment bounds what is taken of a path. Not larger: names of routes are short.
const maxSegment = 64

func firstSegment(path string) string {
	path = strings.TrimLeft(path, "/")
	path, _, _ = strings.Cut(path[:min(len(path), maxSegment)], "/")
	return "/" + path
}

// reported returns the ORCA report in h, if there is one and it can be understood, and removes it
// if it is to be hidden.
func (m *middleware) reported(h http.Header) throttle.Usage {
	usage, _ := orca.FromHeader(h)
	if m.hide {
		for _, name := range [...]string{orca.Field, orca.FieldBinary} {
			delete(h, name)
			delete(h, http.TrailerPrefix+name)
		}
	}
	return usage
}
