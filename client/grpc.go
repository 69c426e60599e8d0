package client

import (
	"context"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/keepalive"

	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/leasewire"
)

// grpcTransport speaks the lease protocol of proto/stint/lease/v1.
type grpcTransport struct {
	secure  secure
	options []grpc.DialOption
}

// NewTransport returns the transport that a Client of these options uses where they have none: gRPC,
// with TLS, token and DialOptions as there. It is for a Transport that takes some streams elsewhere.
func NewTransport(o Options) Transport {
	return &grpcTransport{secure: secure{tls: o.TLS, files: o.TLSFiles, token: o.Token, tokenFile: o.TokenFile}, options: o.DialOptions}
}

// keepAlive is how long a connection may be silent before it is probed. Not shorter:
// servers take more for an attack, and reports come each second anyway. Not longer: a
// connection that a middlebox forgot is to be found while leases run.
const keepAlive = 10 * time.Second

// Connect implements Transport.
func (t *grpcTransport) Connect(ctx context.Context, address string) (Stream, error) {
	secured, err := t.secure.options(address)
	if err != nil {
		return nil, err
	}
	options := append(append(secured,
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepAlive, Timeout: keepAlive / 2}),
	), t.options...)
	conn, err := grpc.NewClient(address, options...)
	if err != nil {
		return nil, err
	}
	stream, err := leasepb.NewLeasesClient(conn).Hold(ctx)
	if err != nil {
		_ = conn.Close() // what it could not begin it has said above
		return nil, err
	}
	return &grpcStream{conn: conn, stream: stream}, nil
}

type grpcStream struct {
	conn   *grpc.ClientConn
	stream leasepb.Leases_HoldClient
	member atomic.Pointer[lease.Member] // whose stream it is; nil before the first report
}

// Send implements Stream.
func (s *grpcStream) Send(r *lease.Report) error {
	if s.member.Load() == nil {
		m := r.Member // not the whole report
		s.member.Store(&m)
	}
	out := new(leasepb.Report) // gRPC may keep it
	if err := leasewire.ToReport(out, r); err != nil {
		return err
	}
	return s.stream.Send(out)
}

// CloseSend implements Stream.
func (s *grpcStream) CloseSend() error { return s.stream.CloseSend() }

// Receive implements Stream.
func (s *grpcStream) Receive() (*lease.Grant, error) {
	in, err := s.stream.Recv()
	if err != nil {
		return nil, err
	}
	g := &lease.Grant{}
	if m := s.member.Load(); m != nil {
		g.To = *m
	}
	if err := leasewire.FromGrant(g, in); err != nil {
		return nil, err
	}
	return g, nil
}

// Close implements Stream.
func (s *grpcStream) Close() { _ = s.conn.Close() }
