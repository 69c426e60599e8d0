package rls

import (
	"math"
	"net/http"
	"slices"
	"time"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stint-io/stint/internal/answer"
	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
)

// parts is what one descriptor's status is made of, in one allocation.
type parts struct {
	status pb.RateLimitResponse_DescriptorStatus
	limit  pb.RateLimitResponse_RateLimit
	reset  durationpb.Duration
}

// single is the whole response to the most common request, one descriptor.
type single struct {
	response pb.RateLimitResponse
	answer   parts
	statuses [1]*pb.RateLimitResponse_DescriptorStatus
}

// response translates the decision.
func (s *Service) response(req *pb.RateLimitRequest, q *engine.Query) *pb.RateLimitResponse {
	var resp *pb.RateLimitResponse
	var answers []parts
	var now time.Time // read only if a status needs it
	n := len(q.Descriptors)
	if n == 1 {
		one := new(single)
		resp = &one.response
		resp.Statuses = one.statuses[:]
		fill(&one.answer, q, 0, &now)
		resp.Statuses[0] = &one.answer.status
	} else {
		resp = &pb.RateLimitResponse{Statuses: make([]*pb.RateLimitResponse_DescriptorStatus, n)}
		answers = make([]parts, n)
		for i := range answers {
			fill(&answers[i], q, i, &now)
			resp.Statuses[i] = &answers[i].status
		}
	}
	resp.OverallCode = pb.RateLimitResponse_OK
	over := !q.Decision.Allowed && !s.opts.Shadow
	if over {
		resp.OverallCode = pb.RateLimitResponse_OVER_LIMIT
		addRetryAfter(resp, q.Decision.RetryAfter())
		addAction(resp, q.Decision.Action)
	}
	addWarning(resp, &q.Decision)
	for _, t := range q.Decision.Tags {
		resp.RequestHeadersToAdd = append(resp.RequestHeadersToAdd, &corev3.HeaderValue{Key: t.Name, Value: t.Value})
	}
	if s.opts.Headers {
		s.addHeaders(resp, q)
	}
	s.addMetadata(resp, req, q)
	return resp
}

// addWarning names the limits that are used beyond their soft threshold, as over HTTP. Envoy passes the
// field on with the answer of an admitted request too.
func addWarning(resp *pb.RateLimitResponse, d *limit.Decision) {
	if !slices.ContainsFunc(d.Results, func(r limit.Result) bool { return r.Soft }) {
		return
	}
	const name = "X-Ratelimit-Warning"
	h := http.Header{}
	answer.Header(h, d, answer.Options{RateLimitFields: answer.Off})
	for _, value := range h[name] {
		resp.ResponseHeadersToAdd = append(resp.ResponseHeadersToAdd, &corev3.HeaderValue{Key: "X-RateLimit-Warning", Value: value})
	}
}

// addAction adds what the refusing limit wants the answer to have. The status is the proxy's: its
// filter has one for all refusals.
func addAction(resp *pb.RateLimitResponse, a *limit.Action) {
	if a == nil {
		return
	}
	add := func(name, value string) {
		resp.ResponseHeadersToAdd = append(resp.ResponseHeadersToAdd, &corev3.HeaderValue{Key: name, Value: value})
	}
	for _, field := range a.Header {
		add(field.Name, field.Value)
	}
	if a.Location != "" {
		add("Location", a.Location)
	}
	if a.HasBody {
		add("Content-Type", a.ContentType)
		resp.RawBody = []byte(a.Body)
	}
}

// fill writes the status of descriptor i. The tightest of its enforced limits
// speaks for it; a rule of Envoy's in shadow mode only where there is no other. A
// limit whose store failed has a code and no figures: Envoy makes no header fields
// of a status without a current limit, and any number would be invented.
func fill(a *parts, q *engine.Query, i int, now *time.Time) {
	st := &a.status
	st.Code = pb.RateLimitResponse_OK
	var best *limit.Result
	var hit *engine.Hit
	unlimited := false
	hits := q.HitsOf(i)
	for j := range hits {
		h := &hits[j]
		if h.Result < 0 {
			continue
		}
		r := &q.Decision.Results[h.Result]
		switch {
		case h.Variant != nil && h.Variant.Policy.Unlimited:
			unlimited = true
		case r.Shadow && (h.Limit == nil || !h.Limit.Envoy):
		case best == nil, tighter(r, best):
			best, hit = r, h
		}
	}
	if best == nil {
		if unlimited {
			st.LimitRemaining = math.MaxUint32
		}
		return
	}
	if !best.Allowed && !best.Shadow {
		st.Code = pb.RateLimitResponse_OVER_LIMIT
	}
	if best.StoreFailed {
		return
	}
	st.CurrentLimit = &a.limit
	a.limit.Name = nameOf(hit)
	setRate(&a.limit, hit.Policy())
	if best.Allowed {
		st.LimitRemaining = clamp(best.Remaining)
	}
	reset := best.ResetAfter
	if best.Algorithm == limit.Concurrency {
		// Places come free when requests end, and the time-out of those
		// that never do is no reset.
		reset = limit.Never
	}
	if w := hit.Policy(); reset == 0 && w.Algorithm == limit.FixedWindow && w.Align != limit.AlignFirstHit && w.Rate.Period > 0 {
		// An empty window is as good as new at once, but Envoy's service
		// says when it ends.
		if now.IsZero() {
			*now = time.Now()
		}
		windows := limit.NewFixedCounter(w)
		_, end := windows.Window(limit.At(*now))
		reset = time.Duration(end - limit.At(*now))
	}
	if reset < limit.Never {
		a.reset.Seconds = ceilSeconds(reset)
		st.DurationUntilReset = &a.reset
	}
}

// tighter reports whether r says more about its descriptor than o: enforced
// before shadow, refused before allowed, known before unknown, the longer wait, the
// lesser rest.
func tighter(r, o *limit.Result) bool {
	switch {
	case r.Shadow != o.Shadow:
		return !r.Shadow
	case r.Allowed != o.Allowed:
		return !r.Allowed
	case r.StoreFailed != o.StoreFailed:
		return !r.StoreFailed
	case !r.Allowed:
		return r.RetryAfter > o.RetryAfter
	default:
		return r.Remaining < o.Remaining
	}
}

// nameOf returns the name that a client sees.
func nameOf(h *engine.Hit) string {
	switch {
	case h.Limit == nil:
		return ""
	case h.Limit.Envoy:
		return h.Limit.Alias
	default:
		return h.Limit.Name
	}
}

func ceilSeconds(d time.Duration) int64 {
	s := int64(d / time.Second)
	if d%time.Second > 0 {
		s++
	}
	return s
}
