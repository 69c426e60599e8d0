// Package spoe is a door for HAProxy: an agent of its stream processing offload engine, which speaks version 2.0 of
// SPOP. A message is a request, its arguments are the attributes and the cost, and the decision comes back as variables of
// the transaction. It translates, and decides nothing; it never waits for a limit.
//
// A connection ends with a status of the protocol when what comes on it is no frame: nothing is taken for such a frame.
// A query that cannot be decided, such as one with a cost that is no number, sets the variable error, and its
// connection goes on.
package spoe

import (
	"context"
	"crypto/tls"
	"net"
	"time"

	"github.com/stint-io/stint/server/internal/accept"
	"github.com/stint-io/stint/server/internal/access"
)

// Server serves connections. It is safe for concurrent use; New makes it.
type Server struct {
	opts    Options
	figures figures

	conns *accept.Conns
}

// New returns a server.
func New(o Options) *Server {
	if o.MaxConnections == 0 {
		o.MaxConnections = MaxConnections
	}
	return &Server{opts: o, conns: accept.New(o.MaxConnections)}
}

// Serve takes connections from l and answers them until ctx ends. Then it closes l, answers for a moment what is on
// its way, takes leave of the gateways, and returns when all connections are closed: at the latest when cut does. The
// error is that of the listener, nil after the end of ctx.
func (s *Server) Serve(ctx, cut context.Context, l net.Listener) error {
	return s.conns.Serve(ctx, cut, l, func(raw net.Conn) { s.serve(cut, raw) })
}

// serve serves one connection until it ends.
func (s *Server) serve(ctx context.Context, raw net.Conn) {
	defer func() { _ = raw.Close() }()
	if !s.conns.Add(raw) {
		s.figures.full.Add(1)
		_ = raw.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = raw.Write(appendDisconnect(nil, statusNoRoom, "too many connections")) // or he sees it closed
		return
	}
	defer s.conns.Remove(raw)
	s.figures.connections.Add(1)
	c := newConn(ctx, s, raw)
	_ = raw.SetDeadline(time.Now().Add(connectTime))
	if s.opts.TLS != nil {
		secured := tls.Server(raw, s.opts.TLS.Config())
		err := secured.HandshakeContext(ctx)
		s.opts.TLS.Handshake(raw.RemoteAddr(), err)
		if err != nil {
			return
		}
		c.conn = secured
		if state := secured.ConnectionState(); s.opts.Identities != nil && len(state.VerifiedChains) > 0 {
			c.session = s.opts.Identities.Begin(access.CertificateOf(state.PeerCertificates[0]))
		}
	}
	c.run()
}
