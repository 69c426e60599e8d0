// Package rpc is stint's own gRPC service: decisions, and costs that are reserved before they are known. It translates
// calls into those of the engine and of the reservations. It decides nothing.
package rpc

import (
	"context"
	"errors"
	"math"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/reserve"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/stintpb"
	"github.com/stint-io/stint/store"
)

// Bounds on the attributes of a request: those of the HTTP API.
const (
	maxAttributes = 64
	maxName       = 256
)

// longestWait is how long an answer is held back by limits with on_exceed: queue, as over HTTP.
const longestWait = 5 * time.Second

// Service is the service. It is safe for concurrent use.
type Service struct {
	stintpb.UnimplementedLimitsServer
	engine *engine.Engine
	book   *reserve.Book
}

// New returns a service that asks e, and whose reservations are in b.
func New(e *engine.Engine, b *reserve.Book) *Service { return &Service{engine: e, book: b} }

// Take implements [stintpb.LimitsServer].
func (s *Service) Take(ctx context.Context, in *stintpb.TakeRequest) (*stintpb.Decision, error) {
	req, err := request(in.GetAttributes())
	if err != nil {
		return nil, err
	}
	req.Cost, req.CountRefused, req.IdempotencyKey = 1, in.GetCountRefused(), in.GetIdempotencyKey()
	if in.Cost != nil {
		req.Cost = in.GetCost()
	}
	if req.Cost < 0 || req.Cost > limit.MaxCount {
		return nil, status.Errorf(codes.InvalidArgument, "cost is %d, want 0 to %d", req.Cost, int64(limit.MaxCount))
	}
	if req.Cost == 0 {
		req.Cost, req.Peek = 1, true
	}
	d, err := s.engine.TakeWithin(ctx, req, longestWait)
	if err != nil {
		return nil, toStatus(ctx, err)
	}
	if req.Peek {
		for i := range d.Results {
			d.Results[i].Cost = 0 // whether 1 would be admitted was asked, and 0 was taken
		}
	}
	return decision(&d), nil
}

// Finish implements [stintpb.LimitsServer].
func (s *Service) Finish(ctx context.Context, in *stintpb.FinishRequest) (*stintpb.FinishResponse, error) {
	req, err := request(in.GetAttributes())
	if err == nil && in.GetPermit() == 0 {
		err = status.Error(codes.InvalidArgument, "permit is missing, want that of the answer to Take")
	}
	if err == nil {
		if err = s.engine.Finish(ctx, req, in.GetPermit()); err != nil {
			err = toStatus(ctx, err)
		}
	}
	if err != nil {
		return nil, err
	}
	return new(stintpb.FinishResponse), nil
}

// Reserve implements [stintpb.LimitsServer].
func (s *Service) Reserve(ctx context.Context, in *stintpb.ReserveRequest) (*stintpb.ReserveResponse, error) {
	req, err := request(in.GetAttributes())
	if err != nil {
		return nil, err
	}
	ttl, err := lifetime(in.GetTtl())
	if err != nil {
		return nil, err
	}
	if req.Cost = in.GetCost(); req.Cost == 0 && len(s.engine.Set().Estimates().By) == 0 {
		req.Cost = 1 // as over HTTP; otherwise it is estimated
	}
	r, d, err := s.book.Reserve(ctx, req, ttl, in.GetChargeExpired())
	if err != nil {
		return nil, toStatus(ctx, err)
	}
	out := &stintpb.ReserveResponse{Decision: decision(&d)}
	if d.Allowed {
		out.Reservation = reservation(&r)
	}
	return out, nil
}

// Renew implements [stintpb.LimitsServer].
func (s *Service) Renew(ctx context.Context, in *stintpb.RenewRequest) (*stintpb.Reservation, error) {
	ttl, err := lifetime(in.GetTtl())
	if err != nil {
		return nil, err
	}
	r, err := s.book.Renew(ctx, in.GetId(), in.GetUsed(), ttl)
	return settled(ctx, &r, err)
}

// Commit implements [stintpb.LimitsServer].
func (s *Service) Commit(ctx context.Context, in *stintpb.CommitRequest) (*stintpb.Reservation, error) {
	r, err := s.book.Commit(ctx, in.GetId(), in.GetActual())
	return settled(ctx, &r, err)
}

// Release implements [stintpb.LimitsServer].
func (s *Service) Release(ctx context.Context, in *stintpb.ReleaseRequest) (*stintpb.Reservation, error) {
	r, err := s.book.Release(ctx, in.GetId())
	return settled(ctx, &r, err)
}

func request(attrs map[string]string) (req limit.Request, err error) {
	if len(attrs) > maxAttributes {
		return req, status.Errorf(codes.InvalidArgument, "there are %d attributes, at most %d are taken", len(attrs), maxAttributes)
	}
	for name, value := range attrs {
		if name == "" || len(name) > maxName {
			return req, status.Errorf(codes.InvalidArgument, "the name of an attribute has %d bytes, want 1 to %d", len(name), maxName)
		}
		req.Attributes = append(req.Attributes, limit.Attribute{Name: name, Value: value})
	}
	return req, nil
}

// lifetime reads a ttl; 0 = there is none.
func lifetime(d *durationpb.Duration) (time.Duration, error) {
	if d == nil {
		return 0, nil
	}
	if err := d.CheckValid(); err != nil {
		return 0, status.Errorf(codes.InvalidArgument, "ttl cannot be read: %v", err)
	}
	ttl := d.AsDuration()
	if ttl < reserve.MinTTL || ttl > reserve.MaxTTL {
		return 0, status.Errorf(codes.InvalidArgument, "ttl is %v, want %v to %v", ttl, reserve.MinTTL, reserve.MaxTTL)
	}
	return ttl, nil
}

func decision(d *limit.Decision) *stintpb.Decision {
	out := &stintpb.Decision{Allowed: d.Allowed, Repeated: d.Repeated, Permit: d.Permit}
	if !d.Allowed {
		out.Status, out.RetryAfter, out.Action = int32(d.Status), duration(d.RetryAfter()), action(d.Action)
	}
	if d.Delay > 0 {
		out.Delay = durationpb.New(d.Delay)
	}
	for i := range d.Results {
		r := &d.Results[i]
		one := &stintpb.Limit{
			Name: r.Limit, Allowed: r.Allowed, Reason: r.Reason.String(), Cost: r.Cost, Shadow: r.Shadow, StoreFailed: r.StoreFailed, Soft: r.Soft,
			Quota: r.Quota, Remaining: r.Remaining, RetryAfter: duration(r.RetryAfter), ResetAfter: duration(r.ResetAfter),
		}
		if r.Quota == math.MaxInt64 {
			one.Unlimited, one.Quota, one.Remaining = true, 0, 0
		}
		out.Limits = append(out.Limits, one)
	}
	for _, t := range d.Tags {
		if out.Tags == nil {
			out.Tags = make(map[string]string, len(d.Tags))
		}
		out.Tags[t.Name] = t.Value
	}
	return out
}

// action is nil where the limit asks for no more than a status.
func action(a *limit.Action) *stintpb.Action {
	if a == nil {
		return nil
	}
	out := &stintpb.Action{Location: a.Location}
	if a.HasBody {
		out.Body, out.ContentType = &a.Body, a.ContentType
	}
	for _, f := range a.Header {
		out.Header = append(out.Header, &stintpb.Field{Name: f.Name, Value: f.Value})
	}
	return out
}

// duration is nil for one without end.
func duration(d time.Duration) *durationpb.Duration {
	if d == limit.Never {
		return nil
	}
	return durationpb.New(d)
}

var states = map[reserve.State]stintpb.Reservation_State{
	reserve.Open:      stintpb.Reservation_STATE_OPEN,
	reserve.Committed: stintpb.Reservation_STATE_COMMITTED,
	reserve.Released:  stintpb.Reservation_STATE_RELEASED,
	reserve.Expired:   stintpb.Reservation_STATE_EXPIRED,
}

func reservation(r *reserve.Reservation) *stintpb.Reservation {
	return &stintpb.Reservation{
		Id: r.ID, State: states[r.State], Reserved: r.Reserved, Used: r.Used, Actual: r.Actual,
		Clamped: r.Clamped, Extended: r.Extended, Late: r.Late, Ends: timestamppb.New(r.Ends),
	}
}

func settled(ctx context.Context, r *reserve.Reservation, err error) (*stintpb.Reservation, error) {
	if err != nil {
		return nil, toStatus(ctx, err)
	}
	return reservation(r), nil
}

func toStatus(ctx context.Context, err error) error {
	code := codes.Unavailable
	switch {
	case errors.Is(err, reserve.ErrUnknown):
		code = codes.NotFound
	case errors.Is(err, reserve.ErrSettled):
		code = codes.FailedPrecondition
	case errors.Is(err, reserve.ErrBad), errors.Is(err, engine.ErrBadRequest):
		code = codes.InvalidArgument
	case errors.Is(err, engine.ErrKeysFull):
	case errors.Is(err, store.ErrFull):
		return status.Error(codes.ResourceExhausted, "too many reservations are open")
	case ctx.Err() != nil:
		return status.FromContextError(ctx.Err()).Err()
	default:
		return status.Error(code, "the store does not answer")
	}
	return status.Error(code, err.Error())
}
