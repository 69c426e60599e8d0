package client

import (
	"context"
	"crypto/tls"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"

	"github.com/stint-io/stint/internal/gen/leasepb"
	"github.com/stint-io/stint/internal/lease"
	"github.com/stint-io/stint/internal/leasewire"
)

// grpcTransport speaks the lease protocol of proto/stint/lease/v1.
type grpcTransport struct {
	tls     *tls.Config
	options []grpc.DialOption
	member  lease.Member
}

// keepAlive is how long a connection may be silent before it is probed. Not shorter:
// servers take more for an attack, and reports come each second anyway. Not longer: a
// connection that a middlebox forgot is to be found while leases run.
const keepAlive = 10 * time.Second

// Connect implements Transport.
func (t *grpcTransport) Connect(ctx context.Context, address string) (Stream, error) {
	credential := insecure.NewCredentials()
	if t.tls != nil {
		credential = credentials.NewTLS(t.tls)
	}
	options := append([]grpc.DialOption{
		grpc.WithTransportCredentials(credential),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepAlive, Timeout: keepAlive / 2}),
	}, t.options...)
	conn, err := grpc.NewClient(address, options...)
	if err != nil {
		return nil, err
	}
	stream, err := leasepb.NewLeasesClient(conn).Hold(ctx)
	if err != nil {
		_ = conn.Close() // what it could not begin it has said above
		return nil, err
	}
	return &grpcStream{conn: conn, stream: stream, member: t.member}, nil
}

type grpcStream struct {
	conn   *grpc.ClientConn
	stream leasepb.Leases_HoldClient
	member lease.Member
}

// Send implements Stream.
func (s *grpcStream) Send(r *lease.Report) error {
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
	g := &lease.Grant{To: s.member}
	if err := leasewire.FromGrant(g, in); err != nil {
		return nil, err
	}
	return g, nil
}

// Close implements Stream.
func (s *grpcStream) Close() { _ = s.conn.Close() }
