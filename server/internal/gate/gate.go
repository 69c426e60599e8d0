// Package gate answers gateways that ask before they pass a request on: nginx
// auth_request, Caddy forward_auth, Traefik forwardAuth, HAProxy.
//
// It translates: what the gateway says of the client's request into attributes,
// and the decision into a status and header fields that the gateway understands.
// It decides nothing and never reads a body.
//
// # Paths
//
//	/v1/gate/forward-auth   200, or the refusal itself (429, header fields and problem body)
//	/v1/gate/nginx          204, or 403 with the real status in X-Stint-Status
//
// Each decision has X-Stint-Decision, allow or reject: an answer without it, such as
// a 503 of a proxy in between, is none. The RateLimit field marks
// refusals with a 5xx status, unless the fields are off. A limit with on_exceed: redirect refuses
// with its status and Location; one with on_exceed: tag allows, with the header fields that mark
// the request.
//
// Any method is answered. Options are further segments of the path, in any
// order, and never the query: gateways put the client's own query there.
//
//	cost=5                  how much the request takes; 0 only looks
//	attr.NAME=VALUE         an attribute of every request through this gateway, before all others
//	from=x-forwarded        read X-Forwarded-Method, -Uri, -Proto and -Host only
//	from=x-original         read X-Original-Method, -URI and -URL only
//	wait=2s                 how long the answer may be held back for limits with on_exceed: queue and
//	                        for leaky buckets, at most ten seconds: less than the gateway waits,
//	                        which else does as if there were no limiter. Without it nothing waits
//	duplicates=refuse       a request that has a header field, cookie or query parameter which limits read
//	                        more than once, or one that servers take for it, is refused as malformed
//	once=x-request-id       the gateway sets this header field to a new value for each
//	                        request of a client: a repeat within ten seconds gets the
//	                        decision of the first and takes nothing
//	location=absolute       a redirect to a path becomes one to the client's own site, by the scheme and host
//	                        that the gateway says: Traefik takes a path for one of the service that it asks
//	refuse=4xx              a refusal whose status would be 5xx is answered with 429, and that status in
//	                        X-Stint-Status: Envoy takes a 5xx for an outage, and lets the request pass
//
// as in /v1/gate/nginx/once=x-request-id/attr.route=checkout. Values are percent
// decoded. A path with an unknown option, or one that stands there twice, is
// answered with 400. Write nothing into the path that a client sends: a slash in it
// would begin an option.
//
// # Trust
//
// Header fields that describe the client's request are read from trusted peers
// only; any other peer is taken for the client. A client can send what its
// gateway does not overwrite, so a request with two descriptions that differ is
// refused as malformed, and once is off unless the gateway's configuration, which
// knows who writes the header field, turns it on. Whatever a client sends, the
// answer to a bad description is a refusal in the gateway's own terms and never
// an error, as gateways are often configured to let requests pass on errors.
package gate

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/forwarded"
	"github.com/stint-io/stint/internal/forwarded/identify"
	"github.com/stint-io/stint/limit"
)

// Prefix is where the endpoints are.
const Prefix = "/v1/gate/"

const (
	// decisionField distinguishes a refusal with a 5xx status, which a limit may ask
	// for, from the absence of a decision.
	decisionField = "X-Stint-Decision"
	decidedAllow  = "allow"
	decidedReject = "reject"
	// statusField gives gateways the status that 403 or 429 stands for.
	statusField = "X-Stint-Status"
	// delayField says how long a request should still be held back, in seconds.
	delayField = "X-Stint-Delay"

	// longestWait bounds what the option wait may ask for. Not longer: the server gives a request
	// fifteen seconds in all.
	longestWait = 10 * time.Second
)

// Options configure the endpoints. The zero value trusts no proxy, so that the
// gateway itself is the client; this is seldom what is wanted.
type Options struct {
	// Trusted are the gateways.
	Trusted *forwarded.Trusted

	// Answer says which header fields are sent.
	Answer answer.Options

	// MaxDelay is how long the answer about a request is held back when a leaky
	// bucket asks for it. 0 answers at once, and leaves the delay to those who
	// read X-Stint-Delay (seconds): most gateways wait some 100 ms and then do
	// as if there were no limiter.
	MaxDelay time.Duration
}

type gate struct {
	taker limit.Taker
	o     Options
	plan  *identify.Live
	seen  repeats
}

// New returns the handler of all paths below [Prefix]. It is safe for concurrent
// use and owns no goroutine.
//
// A place in flight that a concurrency limit gives is held until the limit's
// time-out, as gateways do not report when a request ends.
func New(taker limit.Taker, o Options) http.Handler {
	g := &gate{taker: taker, o: o}
	g.o.Answer.MarkRefusals = true
	g.plan = identify.NewLive(nil)
	if reader, ok := taker.(limit.AttributeReader); ok {
		g.plan = identify.NewLive(reader.Attributes)
	}
	g.seen.init()
	return g
}

// ServeHTTP implements [http.Handler].
func (g *gate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	var route route
	if fault := route.parse(r.URL.EscapedPath()); fault != nil {
		answer.WriteError(w, fault.status, fault.text)
		return
	}
	client, trusted := g.o.Trusted.ClientIP(r.RemoteAddr, r.Header)
	origin := forwarded.Origin{}
	if trusted {
		origin = forwarded.OriginalFrom(r.Header, route.from)
	}
	if origin.Conflict {
		refuseConflict(w, route.nginx)
		return
	}
	if route.unique {
		if name := g.plan.Plan().Ambiguous(r.Header, forwarded.Query(origin.URI)); name != "" {
			refuse(w, route.nginx, http.StatusBadRequest, identify.AmbiguousText(name))
			return
		}
	}
	if origin.Method == "" {
		origin.Method = r.Method
	}
	if origin.Host == "" {
		origin.Host = forwarded.Host(r.Host)
	}
	req := limit.Request{
		Attributes: g.attributes(make([]limit.Attribute, 0, 16), &route, client, &origin, r.Header),
		Cost:       route.cost,
		Peek:       route.peek,
	}
	d, err := g.take(r, &route, req, client, trusted, &origin)
	if err != nil {
		answer.WriteUnavailable(w)
		return
	}
	if route.absolute && !d.Allowed {
		d = absolute(d, &origin)
	}
	g.write(r.Context(), w, &route, &d)
}

// attributes describes the client's request.
func (g *gate) attributes(dst []limit.Attribute, route *route, client netip.Addr, o *forwarded.Origin, h http.Header) []limit.Attribute {
	dst = append(dst, route.attributes[:route.n]...)
	if ip := forwarded.IP(client); ip != "" {
		dst = append(dst, limit.Attribute{Name: "ip", Value: ip})
	}
	dst = append(dst, limit.Attribute{Name: "method", Value: o.Method})
	dst = identify.AppendPath(dst, o.URI)
	if o.Host != "" {
		dst = append(dst, limit.Attribute{Name: "host", Value: o.Host})
	}
	if o.Scheme != "" {
		dst = append(dst, limit.Attribute{Name: "proto", Value: o.Scheme})
	}
	return g.plan.Plan().Append(dst, h, forwarded.Query(o.URI))
}

// take decides, or finds that the same request was decided already.
func (g *gate) take(r *http.Request, route *route, req limit.Request, client netip.Addr, trusted bool, o *forwarded.Origin) (limit.Decision, error) {
	if route.once == "" || !trusted {
		return g.ask(r.Context(), route, req)
	}
	lines := r.Header[route.once]
	if len(lines) != 1 || lines[0] == "" || len(lines[0]) > maxID {
		return g.ask(r.Context(), route, req)
	}
	id := g.seen.id(client, r.URL.EscapedPath(), lines[0], o.Method, o.Host, o.URI)
	return g.seen.take(r.Context(), id, func() (limit.Decision, error) { return g.ask(r.Context(), route, req) })
}

// ask takes, and lets the request wait only as long as the gateway does.
func (g *gate) ask(ctx context.Context, route *route, req limit.Request) (limit.Decision, error) {
	if patient, ok := g.taker.(limit.PatientTaker); ok {
		return patient.TakeWithin(ctx, req, max(route.wait, g.o.MaxDelay))
	}
	return g.taker.Take(ctx, req)
}

// write answers with a decision.
func (g *gate) write(ctx context.Context, w http.ResponseWriter, route *route, d *limit.Decision) {
	if !d.Allowed {
		status := answer.Status(d)
		w.Header().Set(decisionField, decidedReject)
		if route.nginx {
			w.Header().Set(statusField, strconv.Itoa(status))
			status = http.StatusForbidden
		} else if route.only4xx && status >= http.StatusInternalServerError {
			w.Header().Set(statusField, strconv.Itoa(status))
			status = http.StatusTooManyRequests
		}
		answer.WriteRefusalAs(w, status, d, g.o.Answer)
		return
	}
	delay := d.Delay
	if hold := min(delay, max(route.wait, g.o.MaxDelay)); hold > 0 {
		if err := wait(ctx, hold); err != nil {
			answer.WriteUnavailable(w)
			return
		}
		delay -= hold
	}
	if delay > 0 {
		w.Header().Set(delayField, strconv.FormatFloat(delay.Seconds(), 'f', 6, 64))
	}
	w.Header().Set(decisionField, decidedAllow)
	for _, t := range d.Tags {
		w.Header().Add(t.Name, t.Value)
	}
	answer.Header(w.Header(), d, g.o.Answer)
	if route.nginx {
		w.WriteHeader(http.StatusNoContent)
		return
	}
	w.Header().Set("Content-Length", "0")
	w.WriteHeader(http.StatusOK)
}

// absolute returns the decision with a Location that needs no base, as far as the gateway says where the client
// asked. The action, which the limit owns, is not changed.
func absolute(d limit.Decision, o *forwarded.Origin) limit.Decision {
	if d.Action == nil || d.Action.Location == "" || o.Authority == "" {
		return d
	}
	scheme := map[string]string{"http": "http", "ws": "http", "https": "https", "wss": "https"}[o.Scheme]
	base, err := url.Parse(scheme + "://" + o.Authority)
	if err != nil || scheme == "" || base.Host != o.Authority || base.Hostname() == "" {
		return d
	}
	if uri, err := url.ParseRequestURI(o.URI); err == nil {
		base.Path, base.RawPath = uri.Path, uri.RawPath
	}
	to, err := base.Parse(d.Action.Location)
	if err != nil {
		return d
	}
	own := *d.Action
	own.Location = to.String()
	d.Action = &own
	return d
}

// refuseConflict refuses a request that is described twice and differently.
func refuseConflict(w http.ResponseWriter, nginx bool) {
	refuse(w, nginx, http.StatusBadRequest, "header fields that describe the original request contradict each other; "+
		"the gateway must overwrite or remove what clients send (or pin one family with from=)")
}

// Guard refuses what a page in a user's browser can send here. A gateway describes the request that it asks
// about by X-Forwarded-* or X-Original-* fields. A page of another origin cannot set those: a browser first
// asks for permission, which this service never gives. Fields such as Sec-Fetch-Site would not tell the two
// apart, as gateways pass them on.
func Guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !forwarded.Described(r.Header) {
			Refuse(w, r, http.StatusForbidden, "a gateway describes the request that it asks about by X-Forwarded-* or X-Original-* fields, and none came: "+
				"set X-Forwarded-For at least")
			return
		}
		next.ServeHTTP(w, r)
	})
}

// Refuse refuses a request to a path below [Prefix], in a way that its gateway takes for a refusal.
func Refuse(w http.ResponseWriter, r *http.Request, status int, text string) {
	w.Header().Set("Cache-Control", "no-store")
	mode, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, Prefix), "/")
	refuse(w, mode == "nginx", status, text)
}

func refuse(w http.ResponseWriter, nginx bool, status int, text string) {
	sent := status
	w.Header().Set(decisionField, decidedReject)
	if nginx {
		w.Header().Set(statusField, strconv.Itoa(status))
		sent = http.StatusForbidden
	}
	answer.WriteErrorAs(w, sent, status, text)
}

var errGone = errors.New("gate: the gateway went away while its request was held back")

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return errGone
	}
}
