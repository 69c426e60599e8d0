package client

import (
	"context"
	"sync"
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

	mu    sync.Mutex
	conns map[string]*sharedConn // by address
}

// sharedConn is a connection that carries the streams to one member, of all shards that it
// coordinates.
type sharedConn struct {
	*grpc.ClientConn
	streams int // guarded by the transport's mu; the last that ends closes the connection
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
	conn, err := t.enter(address)
	if err != nil {
		return nil, err
	}
	stream, err := leasepb.NewLeasesClient(conn).Hold(ctx)
	if err != nil {
		t.leave(address, conn)
		return nil, err
	}
	return &grpcStream{leave: func() { t.leave(address, conn) }, stream: stream}, nil
}

// Dial connects to an address as a Client of these options does, with TLS, token and DialOptions as there.
// It is for other services of the same port. The caller closes the connection. An error says what is
// wrong with a file, or with the address.
func Dial(address string, o Options) (*grpc.ClientConn, error) {
	s := secure{tls: o.TLS, files: o.TLSFiles, token: o.Token, tokenFile: o.TokenFile}
	return s.dial(address, o.DialOptions)
}

// dial makes a connection, by the files as they are now.
func (s *secure) dial(address string, more []grpc.DialOption) (*grpc.ClientConn, error) {
	secured, err := s.options(address)
	if err != nil {
		return nil, err
	}
	return grpc.NewClient(address, append(append(secured,
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: keepAlive, Timeout: keepAlive / 2}),
	), more...)...)
}

// enter returns the connection to an address, which carries one more stream until leave. A new one is
// made with the certificates and the token as they are now.
func (t *grpcTransport) enter(address string) (*sharedConn, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if conn := t.conns[address]; conn != nil {
		conn.streams++
		return conn, nil
	}
	made, err := t.secure.dial(address, t.options)
	if err != nil {
		return nil, err
	}
	if t.conns == nil {
		t.conns = map[string]*sharedConn{}
	}
	conn := &sharedConn{ClientConn: made, streams: 1}
	t.conns[address] = conn
	return conn, nil
}

func (t *grpcTransport) leave(address string, conn *sharedConn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	// A stream may have ended because the connection, the token or a certificate is no good any more:
	// those that are opened from here on have a new one.
	if t.conns[address] == conn {
		delete(t.conns, address)
	}
	if conn.streams--; conn.streams == 0 {
		_ = conn.Close() // nothing is left to be sent
	}
}

type grpcStream struct {
	leave  func()
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
func (s *grpcStream) Close() { s.leave() }
