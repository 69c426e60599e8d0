// Package rls speaks Envoy's rate limit service, version 3, over gRPC and as
// POST /json, and the service of Kuadrant's filter, which has the same messages: it translates requests into queries
// of the engine and decisions into responses. It decides nothing.
//
// Where it differs from the service of Envoy's own project: an override without a
// unit is an InvalidArgument and not a crash, keys never collide, everything has
// a bound, and a refusal names its limits in the dynamic metadata.
package rls

import (
	"cmp"
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	ratelimitv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/limit"
)

// Bounds on what one request may hold. Envoy sends a handful of descriptors of a
// few entries each, as its configuration says. Values have no bound
// of their own, only the message has: clients choose them, a long one counts by its
// SHA-256, and an error would let it pass a proxy that fails open.
const (
	MaxDescriptors = 1000
	MaxEntries     = 100
	MaxKeyBytes    = 256
	MaxDomainBytes = 256
)

// Options are the choices of a Service. The zero value is Envoy's default: no
// headers but Retry-After, no metadata but that of refusals.
type Options struct {
	// Headers adds RateLimit-Limit, RateLimit-Remaining and RateLimit-Reset to
	// the response, in the form of Envoy's service.
	Headers bool
	// LimitHeader, RemainingHeader and ResetHeader are other names for them;
	// "" = those names.
	LimitHeader, RemainingHeader, ResetHeader string
	// Metadata adds domain, descriptors, hitsAddend and the metadata of the
	// rules to the dynamic metadata, in the form of Envoy's service.
	Metadata bool
	// Shadow makes the overall code OK whatever the limits say. The statuses say
	// what they would say otherwise, and what is let pass is counted.
	Shadow bool
	// Loaded reports whether there is a configuration; nil = there always is. Without one, every
	// request is answered with Unavailable.
	Loaded func() bool
}

// Service is the rate limit service. It is safe for concurrent use.
type Service struct {
	pb.UnimplementedRateLimitServiceServer
	engine *engine.Engine
	opts   Options
	calls  sync.Pool // of *call
	counts Counts
}

// Counts are the answers that a Service has given, by overall code.
type Counts struct {
	OK, OverLimit, Errors atomic.Uint64
	// Shadowed are those OK that Options.Shadow made so.
	Shadowed atomic.Uint64
	// Unavailable are those errors that are no fault of the request.
	Unavailable atomic.Uint64
}

// New returns a service that asks e.
func New(e *engine.Engine, opts Options) *Service {
	opts.LimitHeader = cmp.Or(opts.LimitHeader, HeaderLimit)
	opts.RemainingHeader = cmp.Or(opts.RemainingHeader, HeaderRemaining)
	opts.ResetHeader = cmp.Or(opts.ResetHeader, HeaderReset)
	s := &Service{engine: e, opts: opts}
	s.calls.New = func() any { return new(call) }
	return s
}

// Counts returns the live counts of the service.
func (s *Service) Counts() *Counts { return &s.counts }

// call is the scratch of one request.
type call struct {
	query engine.Query
	attrs []limit.Attribute
}

// errNotLoaded refuses to answer, so that the proxy does what it is told to do then (failure_mode_deny).
var errNotLoaded = status.Error(codes.Unavailable, "no rate limit configuration loaded")

// ShouldRateLimit decides one request.
func (s *Service) ShouldRateLimit(ctx context.Context, req *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	return s.ask(ctx, req, nil)
}

// ask decides one request; change, unless it is nil, says how it differs from one that takes.
func (s *Service) ask(ctx context.Context, req *pb.RateLimitRequest, change func(*engine.Query)) (*pb.RateLimitResponse, error) {
	c := s.calls.Get().(*call)
	defer s.release(c)
	err := errNotLoaded
	if s.opts.Loaded == nil || s.opts.Loaded() {
		err = c.translate(req)
	}
	if err == nil {
		if change != nil {
			change(&c.query)
			defer func() { c.query.Peek, c.query.CountRefused = false, false }()
		}
		err = s.engine.Decide(ctx, &c.query)
	}
	if c.query.CountRefused {
		c.query.Decision.Allowed = true // a report is of what has been: nothing is refused
	}
	if err != nil {
		s.counts.Errors.Add(1)
		if err = toStatus(ctx, err); status.Code(err) == codes.Unavailable {
			s.counts.Unavailable.Add(1)
		}
		return nil, err
	}
	resp := s.response(req, &c.query)
	if resp.OverallCode == pb.RateLimitResponse_OK {
		s.counts.OK.Add(1)
		if !c.query.Decision.Allowed {
			s.counts.Shadowed.Add(1)
		}
	} else {
		s.counts.OverLimit.Add(1)
	}
	return resp, nil
}

// release keeps the scratch unless one request made it large.
func (s *Service) release(c *call) {
	if cap(c.attrs) <= 256 && c.query.Small() {
		s.calls.Put(c)
	}
}

func toStatus(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, engine.ErrBadRequest):
		return status.Error(codes.InvalidArgument, err.Error())
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	}
	if _, ok := status.FromError(err); ok {
		return err
	}
	return status.Error(codes.Unavailable, err.Error())
}

func invalid(format string, args ...any) error {
	return status.Errorf(codes.InvalidArgument, "rls: "+format, args...)
}

// translate fills in the query.
func (c *call) translate(req *pb.RateLimitRequest) error {
	switch {
	case req.Domain == "":
		return invalid("rate limit domain must not be empty")
	case len(req.Domain) > MaxDomainBytes:
		return invalid("the domain has %d bytes, at most %d are taken", len(req.Domain), MaxDomainBytes)
	case len(req.Descriptors) == 0:
		return invalid("rate limit descriptor list must not be empty")
	case len(req.Descriptors) > MaxDescriptors:
		return invalid("the request has %d descriptors, at most %d are taken", len(req.Descriptors), MaxDescriptors)
	}
	cost := int64(max(req.HitsAddend, 1))
	total := 0
	for i, d := range req.Descriptors {
		if len(d.GetEntries()) > MaxEntries {
			return invalid("descriptor %d has %d entries, at most %d are taken", i, len(d.Entries), MaxEntries)
		}
		total += len(d.GetEntries())
	}
	if cap(c.attrs) < total {
		c.attrs = make([]limit.Attribute, 0, total)
	}
	c.attrs = c.attrs[:0]
	q := &c.query
	q.Domain, q.Descriptors = req.Domain, q.Descriptors[:0]
	for i, d := range req.Descriptors {
		from := len(c.attrs)
		for j, e := range d.GetEntries() {
			if len(e.GetKey()) > MaxKeyBytes {
				return invalid("entry %d of descriptor %d has a key of %d bytes, at most %d are taken", j, i, len(e.Key), MaxKeyBytes)
			}
			c.attrs = append(c.attrs, limit.Attribute{Name: e.GetKey(), Value: e.GetValue()})
		}
		out := engine.Descriptor{Attributes: c.attrs[from:len(c.attrs):len(c.attrs)], Described: true, Cost: cost}
		if h := d.GetHitsAddend(); h != nil {
			if h.Value > limit.MaxCount {
				return invalid("hits_addend of descriptor %d is %d, at most %d is taken", i, h.Value, int64(limit.MaxCount))
			}
			out.Cost = int64(h.Value)
		}
		out.Refund = d.GetIsNegativeHits()
		if o := d.GetLimit(); o != nil {
			rate, err := overrideRate(i, o)
			if err != nil {
				return err
			}
			out.Override, out.HasOverride = rate, true
		}
		q.Descriptors = append(q.Descriptors, out)
	}
	return nil
}

func overrideRate(i int, o *ratelimitv3.RateLimitDescriptor_RateLimitOverride) (limit.Rate, error) {
	unit := periodOf(pb.RateLimitResponse_RateLimit_Unit(o.GetUnit()))
	if unit == 0 {
		return limit.Rate{}, invalid("the limit override of descriptor %d has the unit %v, set unit to one of SECOND, MINUTE, HOUR, DAY, MONTH, YEAR", i, o.GetUnit())
	}
	n := int64(1)
	if m := o.GetUnitMultiplier(); m != nil {
		n = int64(m.GetValue())
	}
	if most := int64(limit.Never / unit); n == 0 || n > most {
		return limit.Rate{}, invalid("the limit override of descriptor %d has the unit_multiplier %d, want 1 to %d with %v", i, n, most, o.GetUnit())
	}
	return limit.Rate{Count: int64(o.GetRequestsPerUnit()), Period: time.Duration(n) * unit}, nil
}
