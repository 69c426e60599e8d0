package proxy

import (
	"context"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"

	"github.com/stint-io/stint/internal/costs"
	"github.com/stint-io/stint/internal/forwarded"
	"github.com/stint-io/stint/internal/forwarded/identify"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/middleware/httpthrottle"
	"github.com/stint-io/stint/rules"
	"github.com/stint-io/stint/throttle"
)

// throttled has admitted requests wait until the server behind has room, as the section throttle of the
// limits file says. Without one it lets all pass.
type throttled struct {
	next    http.Handler
	trusted *forwarded.Trusted
	log     *slog.Logger
	now     atomic.Pointer[gate] // nil = no section
}

// gate is one section in force.
type gate struct {
	*throttle.Throttle
	http.Handler
	of    *throttled
	rules *rules.Throttle
	plan  *identify.Plan
}

// configure makes the section of a set the one in force. Requests that wait by the one before go on to do so,
// and what runs by it does not count for the new one.
func (t *throttled) configure(set *rules.Set) error {
	r := set.Throttle()
	if r == nil {
		t.now.Store(nil)
		return nil
	}
	if old := t.now.Load(); old != nil && old.rules.Same(r) {
		return nil
	}
	estimator, err := costs.New(costs.Options{Default: r.Cost})
	if err != nil {
		return err
	}
	o := throttle.Options{
		Concurrency: r.Concurrency, Rate: r.Rate, MaxWaiting: r.MaxWaiting, MaxWaitingCost: r.MaxWaitingCost,
		MaxWait: r.MaxWait, NewestFirst: r.NewestFirst, Predict: estimator,
		Meter: throttle.ServiceTime(), // the CPU time of this process is not that of the server behind
	}
	if r.Adaptive {
		o.Adaptive = &throttle.Adaptive{}
	}
	one, err := throttle.New(o)
	if err != nil {
		return err
	}
	g := &gate{Throttle: one, of: t, rules: r, plan: identify.NewPlan(set.Attributes())}
	g.Handler = httpthrottle.New(one, httpthrottle.WithRequest(g.request), httpthrottle.WithPlace(g.place), httpthrottle.WithoutReports())(http.HandlerFunc(t.admitted))
	t.now.Store(g)
	return nil
}

// ServeHTTP implements [http.Handler].
func (t *throttled) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if g := t.now.Load(); g != nil {
		g.ServeHTTP(w, r)
		return
	}
	t.lower(r)
	t.next.ServeHTTP(w, r)
}

// admitted tells the server behind how important a request is.
func (t *throttled) admitted(w http.ResponseWriter, r *http.Request) {
	r.Header[throttle.Header] = []string{throttle.FromContext(r.Context()).Importance().String()}
	t.next.ServeHTTP(w, r)
}

// lower holds what a stranger says of its importance to what any request may have.
func (t *throttled) lower(r *http.Request) {
	said := r.Header[throttle.Header]
	if len(said) == 0 {
		return
	}
	if _, trusted := t.trusted.Peer(r.RemoteAddr); trusted && len(said) == 1 {
		return
	}
	r.Header[throttle.Header] = []string{importance(said).FromStranger(throttle.Default).String()}
}

// importance is what a request says of itself; what is malformed says nothing.
func importance(said []string) throttle.Importance {
	if len(said) != 1 {
		return throttle.Importance{}
	}
	i, err := throttle.ParseImportance(said[0])
	if err != nil {
		return throttle.Importance{}
	}
	return i
}

// request is what the throttle has to know.
func (g *gate) request(r *http.Request) throttle.Request {
	trusted := g.of.trusted
	attrs := g.describe(make([]limit.Attribute, 0, 16), r)
	door, signature := throttle.Default, ""
	if class := g.rules.Class(attrs); class != nil {
		door, _ = throttle.ParseCriticality(class.Criticality) // the rules know no other words
		signature = class.When
	}
	if signature == "" {
		signature = firstSegment(r.URL.Path)
	}
	given := importance(r.Header[throttle.Header])
	if given.Criticality == throttle.Default {
		given = throttle.Importance{Criticality: door}
	} else if _, ok := trusted.Peer(r.RemoteAddr); !ok {
		given = given.FromStranger(door)
	}
	of := limit.Request{Attributes: attrs}
	user, known := of.Get(g.rules.User)
	if !known {
		user, _ = of.Get("ip")
	}
	key, _ := of.Get(g.rules.Key)
	return throttle.Request{
		Route: identify.Bound(r.Method + " " + signature), Criticality: given.Criticality, Level: given.Level, HasLevel: given.HasLevel,
		User: user, Key: key,
	}
}

// place says for how long a request counts.
func (g *gate) place(r *http.Request) httpthrottle.Place {
	class := g.rules.Class(g.describe(make([]limit.Attribute, 0, 16), r))
	switch {
	case class == nil || class.CountsUntil == "":
		return httpthrottle.PlaceByAnswer
	case class.CountsUntil == "answer":
		return httpthrottle.PlaceUntilAnswer
	default:
		return httpthrottle.PlaceUntilEnd
	}
}

// describe appends the attributes of r.
func (g *gate) describe(dst []limit.Attribute, r *http.Request) []limit.Attribute {
	client, _ := g.of.trusted.ClientIP(r.RemoteAddr, r.Header)
	dst = append(dst,
		limit.Attribute{Name: "ip", Value: forwarded.IP(client)},
		limit.Attribute{Name: "method", Value: r.Method},
		limit.Attribute{Name: "host", Value: forwarded.Host(r.Host)})
	dst = identify.AppendURL(dst, r.URL)
	return g.plan.Append(dst, r.Header, r.URL.RawQuery)
}

// firstSegment is the first part of a path: what stands behind it may be an identifier, and each would have a
// prediction of its own.
func firstSegment(path string) string {
	if len(path) > 1 {
		if end := strings.IndexByte(path[1:], '/'); end >= 0 {
			return path[:1+end]
		}
	}
	return path
}

// follow keeps the section in force up to date until ctx ends.
func (t *throttled) follow(ctx context.Context, changed func() <-chan struct{}, set func() *rules.Set) {
	for {
		next := changed() // before the set: what comes behind it is seen
		if err := t.configure(set()); err != nil {
			t.log.Error("the throttle of the limits file cannot be used, the one before stays in force", "error", err)
		}
		select {
		case <-next:
		case <-ctx.Done():
			return
		}
	}
}

// standing is how the throttle stands, for metrics.
func (t *throttled) standing() (s throttle.Stats, ok bool) {
	g := t.now.Load()
	if g == nil {
		return s, false
	}
	return g.Stats(), true
}

// overrun is the relative error of predicted costs.
func overrun(s *throttle.Stats) float64 {
	if s.Actual <= 0 {
		return 0
	}
	return float64(s.Error) / float64(s.Actual)
}
