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
	"github.com/stint-io/stint/internal/keyadmin"
	"github.com/stint-io/stint/internal/usage"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/store"
)

// Service answers other members. Set its fields before it is called; then it is safe for concurrent use.
type Service struct {
	memberpb.UnimplementedMembersServer
	// Told takes what another member has counted; nil = this process keeps no usage of others.
	Told func(ctx context.Context, m usage.Message) (usage.Reply, error)
	// Here changes a key as another member was asked to; nil = its counters are not of this process alone.
	Here func(ctx context.Context, c keyadmin.Remote) (keyadmin.State, error)
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

// Change implements the service of the protocol.
func (s *Service) Change(ctx context.Context, m *memberpb.KeyChange) (*memberpb.KeyState, error) {
	if s.Here == nil {
		return nil, errAlone
	}
	c := keyadmin.Remote{Action: m.Action, N: m.Amount, By: keyadmin.Change{Who: m.Who, ID: m.Request}}
	c.Key = keyadmin.Key{Limit: m.Limit, Override: m.Override}
	for _, a := range m.Attributes {
		c.Key.Attributes = append(c.Key.Attributes, limit.Attribute{Name: string(a.GetName()), Value: string(a.GetValue())})
	}
	is, err := s.Here(ctx, c)
	switch {
	case err == nil:
		return &memberpb.KeyState{Quota: is.Quota, Used: is.Used, Remaining: is.Remaining, Granted: is.Granted, ResetAfter: is.ResetAfter, Changed: is.Changed}, nil
	case errors.Is(err, keyadmin.ErrUnknown):
		return nil, status.Error(codes.NotFound, err.Error())
	case errors.Is(err, keyadmin.ErrBadRequest):
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	return nil, status.Error(codes.Unavailable, err.Error())
}

// Change changes a key at another member.
func Change(ctx context.Context, conn grpc.ClientConnInterface, c keyadmin.Remote) (keyadmin.State, error) {
	m := &memberpb.KeyChange{Action: c.Action, Limit: c.Key.Limit, Override: c.Key.Override, Amount: c.N, Who: c.By.Who, Request: c.By.ID}
	for _, a := range c.Key.Attributes {
		m.Attributes = append(m.Attributes, &memberpb.Attribute{Name: []byte(a.Name), Value: []byte(a.Value)})
	}
	is, err := memberpb.NewMembersClient(conn).Change(ctx, m)
	if err != nil {
		return keyadmin.State{}, err
	}
	return keyadmin.State{
		Limit: c.Key.Limit, Override: c.Key.Override, Quota: is.GetQuota(), Used: is.GetUsed(), Remaining: is.GetRemaining(),
		Granted: is.GetGranted(), ResetAfter: is.GetResetAfter(), Changed: is.GetChanged(),
	}, nil
}
