// Package members is what the members of a cluster ask of each other beside leases, over gRPC: usage, and
// changes of keys that are made by hand. It translates, and decides nothing. Who may call is asked before: the
// role is member.
package members

import (
	"context"
	"errors"
	"fmt"
	"time"

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
	// Name is that of this member.
	Name string
	// Usage returns a page of what this process has counted; nil = its counters are not of this process alone.
	Usage func(ctx context.Context, q usage.Query, after string) (usage.Page, error)
	// Here changes a key as another member was asked to; nil = its counters are not of this process alone.
	Here func(ctx context.Context, c keyadmin.Remote) (keyadmin.State, error)
}

var errAlone = status.Error(codes.FailedPrecondition, "this server takes nothing from other members: it has no --cluster, or its counters are in a store that all share")

// ReadUsage implements the service of the protocol.
func (s *Service) ReadUsage(ctx context.Context, m *memberpb.UsageQuery) (*memberpb.UsagePage, error) {
	if s.Usage == nil {
		return nil, errAlone
	}
	q := usage.Query{Limit: string(m.Limit), Key: attributes(m.Key)}
	if m.From != nil {
		q.From = time.Unix(*m.From, 0)
	}
	if m.To != nil {
		q.To = time.Unix(*m.To, 0)
	}
	page, err := s.Usage(ctx, q, string(m.After))
	if err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	out := &memberpb.UsagePage{Member: s.Name, Next: []byte(page.Next)}
	for _, one := range page.Marks {
		out.Marks = append(out.Marks, &memberpb.Mark{Key: []byte(one.Key), N: one.N})
	}
	return out, nil
}

// ReadUsage returns a page of what the member of that name has counted. Another that answers in its place is an error.
func ReadUsage(ctx context.Context, conn grpc.ClientConnInterface, name string, q usage.Query, after string) (page usage.Page, err error) {
	m := &memberpb.UsageQuery{Limit: []byte(q.Limit), Key: toAttributes(q.Key), After: []byte(after)}
	if from := q.From.Unix(); !q.From.IsZero() {
		m.From = &from
	}
	if to := q.To.Unix(); !q.To.IsZero() {
		m.To = &to
	}
	in, err := memberpb.NewMembersClient(conn).ReadUsage(ctx, m)
	if err != nil {
		return page, err
	}
	if in.GetMember() != name {
		return page, fmt.Errorf("the member %.100q answers at the address of %s", in.GetMember(), name)
	}
	page.Next = string(in.GetNext())
	for _, one := range in.GetMarks() {
		page.Marks = append(page.Marks, store.Mark{Key: string(one.GetKey()), N: one.GetN()})
	}
	return page, nil
}

func attributes(list []*memberpb.Attribute) (attrs []limit.Attribute) {
	for _, a := range list {
		attrs = append(attrs, limit.Attribute{Name: string(a.GetName()), Value: string(a.GetValue())})
	}
	return attrs
}

func toAttributes(attrs []limit.Attribute) (list []*memberpb.Attribute) {
	for _, a := range attrs {
		list = append(list, &memberpb.Attribute{Name: []byte(a.Name), Value: []byte(a.Value)})
	}
	return list
}

// Change implements the service of the protocol.
func (s *Service) Change(ctx context.Context, m *memberpb.KeyChange) (*memberpb.KeyState, error) {
	if s.Here == nil {
		return nil, errAlone
	}
	c := keyadmin.Remote{Action: m.Action, N: m.Amount, By: keyadmin.Change{Who: m.Who, ID: m.Request}}
	c.Key = keyadmin.Key{Limit: m.Limit, Override: m.Override, Attributes: attributes(m.Attributes)}
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
	m.Attributes = toAttributes(c.Key.Attributes)
	is, err := memberpb.NewMembersClient(conn).Change(ctx, m)
	if err != nil {
		return keyadmin.State{}, err
	}
	return keyadmin.State{
		Limit: c.Key.Limit, Override: c.Key.Override, Quota: is.GetQuota(), Used: is.GetUsed(), Remaining: is.GetRemaining(),
		Granted: is.GetGranted(), ResetAfter: is.GetResetAfter(), Changed: is.GetChanged(),
	}, nil
}
