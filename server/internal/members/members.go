// Package members is what the members of a cluster tell each other beside leases, over gRPC: marks of usage, and
// changes of keys that are made by hand. It translates, and decides nothing. Who may call is asked before: the
// role is member.
package members

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/stint-io/stint/internal/gen/memberpb"
	"github.com/stint-io/stint/internal/usage"
	"github.com/stint-io/stint/store"
)

// Service answers other members. Set its fields before it is called; then it is safe for concurrent use.
type Service struct {
	memberpb.UnimplementedMembersServer
	// Told takes what another member has counted; nil = this process keeps no usage of others.
	Told func(ctx context.Context, m usage.Message) (usage.Reply, error)
}

var errAlone = status.Error(codes.FailedPrecondition, "this server takes nothing from other members: it has no --cluster, or its counters are in a store that all share")

// Usage implements the service of the protocol.
func (s *Service) Usage(ctx context.Context, m *memberpb.Marks) (*memberpb.Kept, error) {
	if s.Told == nil {
		return nil, errAlone
	}
	told := usage.Message{After: string(m.After), Last: string(m.Last), Sum: m.Sum}
	for _, one := range m.Marks {
		told.Marks = append(told.Marks, store.Mark{Key: string(one.GetKey()), N: one.GetN()})
	}
	r, err := s.Told(ctx, told)
	switch {
	case err == nil:
		return &memberpb.Kept{Start: r.Start, Same: r.Same}, nil
	case errors.Is(err, usage.ErrMarks):
		return nil, status.Error(codes.InvalidArgument, err.Error())
	case errors.Is(err, store.ErrFull):
		return nil, status.Error(codes.ResourceExhausted, err.Error())
	}
	return nil, status.Error(codes.Unavailable, err.Error())
}

// Tell hands what this process has counted to another member.
func Tell(ctx context.Context, conn grpc.ClientConnInterface, m usage.Message) (usage.Reply, error) {
	out := &memberpb.Marks{After: []byte(m.After), Last: []byte(m.Last), Sum: m.Sum}
	for _, one := range m.Marks {
		out.Marks = append(out.Marks, &memberpb.Mark{Key: []byte(one.Key), N: one.N})
	}
	kept, err := memberpb.NewMembersClient(conn).Usage(ctx, out)
	if err != nil {
		return usage.Reply{}, err
	}
	return usage.Reply{Start: kept.GetStart(), Same: kept.GetSame()}, nil
}
