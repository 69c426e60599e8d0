package rls

import (
	"context"
	"errors"
	"time"

	pb "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/gen/kuadrantpb"
	"github.com/stint-io/stint/internal/reserve"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Reservations are costs that are taken before they are known. [reserve.Book] has them.
type Reservations interface {
	ReserveDescriptors(ctx context.Context, domain string, descriptors []engine.Descriptor, cost int64, ttl time.Duration) (reserve.Reservation, limit.Decision, error)
	Commit(ctx context.Context, id string, actual int64) (reserve.Reservation, error)
}

// Kuadrant is the service that Kuadrant's filter calls, with the messages of Limitador: it asks before a request, and
// reports afterwards what it has cost; or it reserves an estimate and commits. It is safe for concurrent use.
type Kuadrant struct {
	kuadrantpb.UnimplementedRateLimitServiceServer
	service *Service
	book    Reservations
}

// NewKuadrant returns a service that asks as s does, and whose reservations are in book.
func NewKuadrant(s *Service, book Reservations) *Kuadrant { return &Kuadrant{service: s, book: book} }

// CheckRateLimit says whether the hits of a request would be admitted, and counts nothing. A hits_addend of 0, for
// those that report afterwards, asks for one.
func (k *Kuadrant) CheckRateLimit(ctx context.Context, req *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	return k.service.ask(ctx, req, func(q *engine.Query) {
		q.Peek = true
		for i := range q.Descriptors {
			q.Descriptors[i].Cost, q.Descriptors[i].Refund = max(q.Descriptors[i].Cost, 1), false
		}
	})
}

// Report counts the hits of a request that is over, also above the limit. The overall code is OK: there is nothing to
// refuse any more. The statuses say how the limits stand.
func (k *Kuadrant) Report(ctx context.Context, req *pb.RateLimitRequest) (*pb.RateLimitResponse, error) {
	return k.service.ask(ctx, req, func(q *engine.Query) { q.CountRefused = true })
}

// Reserve takes an estimate. An amount of 0 holds nothing and asks whether there is room for one; such a request, and
// one to which no limit applies, has an empty ID, with which Commit reports.
func (k *Kuadrant) Reserve(ctx context.Context, in *kuadrantpb.ReserveRequest) (*kuadrantpb.ReserveResponse, error) {
	req := &pb.RateLimitRequest{Domain: in.GetDomain(), Descriptors: in.GetDescriptors()}
	if in.GetAmount() == 0 {
		resp, err := k.CheckRateLimit(ctx, req)
		return &kuadrantpb.ReserveResponse{Code: resp.GetOverallCode()}, err
	}
	ttl, err := lifetime(in.GetTtl())
	if err != nil {
		return nil, err
	}
	c := k.service.calls.Get().(*call)
	defer k.service.release(c)
	if err := c.translate(req); err != nil {
		k.service.counts.Errors.Add(1)
		return nil, err
	}
	amount := int64(min(in.GetAmount(), limit.MaxCount))
	r, d, err := k.book.ReserveDescriptors(ctx, in.GetDomain(), c.query.Descriptors, amount, ttl)
	if err != nil {
		k.service.counts.Errors.Add(1)
		return nil, fromBook(ctx, err)
	}
	if d.Allowed {
		k.service.counts.OK.Add(1)
		return &kuadrantpb.ReserveResponse{Code: pb.RateLimitResponse_OK, ReservationId: r.ID}, nil
	}
	if k.service.opts.Shadow {
		k.service.counts.OK.Add(1)
		k.service.counts.Shadowed.Add(1)
		return &kuadrantpb.ReserveResponse{Code: pb.RateLimitResponse_OK}, nil
	}
	k.service.counts.OverLimit.Add(1)
	return &kuadrantpb.ReserveResponse{Code: pb.RateLimitResponse_OVER_LIMIT}, nil
}

// Commit counts what a request has cost and gives back the rest of its estimate. Of an ID that is not known (any more)
// it reports the amount. The same commit again changes nothing; another one is a FailedPrecondition.
func (k *Kuadrant) Commit(ctx context.Context, in *kuadrantpb.CommitRequest) (*kuadrantpb.CommitResponse, error) {
	if in.GetActualAmount() > limit.MaxCount {
		return nil, invalid("actual_amount is %d, at most %d is taken", in.GetActualAmount(), int64(limit.MaxCount))
	}
	if in.GetReservationId() != "" {
		r, err := k.book.Commit(ctx, in.GetReservationId(), int64(in.GetActualAmount()))
		if !errors.Is(err, reserve.ErrUnknown) {
			if err != nil {
				return nil, fromBook(ctx, err)
			}
			return &kuadrantpb.CommitResponse{ReservationReleased: !r.Late}, nil
		}
	}
	_, err := k.service.ask(ctx, &pb.RateLimitRequest{Domain: in.GetDomain(), Descriptors: in.GetDescriptors()}, func(q *engine.Query) {
		q.CountRefused = true
		for i := range q.Descriptors {
			q.Descriptors[i].Cost, q.Descriptors[i].Refund = int64(in.GetActualAmount()), false
		}
	})
	return new(kuadrantpb.CommitResponse), err
}

// lifetime reads a ttl, of which a caller's expression may make anything: it is clamped to what a reservation may last.
// Without one, or with 0, it is the default.
func lifetime(d *durationpb.Duration) (time.Duration, error) {
	if err := d.CheckValid(); d != nil && err != nil {
		return 0, invalid("ttl cannot be read: %v", err)
	}
	ttl := d.AsDuration()
	switch {
	case ttl < 0:
		return 0, invalid("ttl is %v, want a positive one", ttl)
	case ttl == 0:
		return reserve.DefaultTTL, nil
	}
	return min(max(ttl, reserve.MinTTL), reserve.MaxTTL), nil
}

func fromBook(ctx context.Context, err error) error {
	switch {
	case errors.Is(err, reserve.ErrSettled):
		return status.Error(codes.FailedPrecondition, err.Error())
	case errors.Is(err, reserve.ErrBad):
		return status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, store.ErrFull):
		return status.Error(codes.ResourceExhausted, "too many reservations are open")
	}
	return toStatus(ctx, err)
}
