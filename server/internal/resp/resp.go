// Package resp is a door for clients of Redis: it speaks RESP2 and RESP3. CL.THROTTLE and GCRA take from buckets whose
// limit comes with the command; RL.TAKE and its like ask the limits of the file. It translates, and decides nothing.
package resp

import (
	"context"
	"crypto/tls"
	"net"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/stint-io/stint/server/internal/accept"
	"github.com/stint-io/stint/server/internal/access"
)

// Server serves connections. It is safe for concurrent use; New makes it.
type Server struct {
	opts    Options
	figures figures
	serial  atomic.Int64 // of connections, for CLIENT ID

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
// its way, and returns when all connections are closed: at the latest when cut does. The error is that of the
// listener, nil after the end of ctx.
func (s *Server) Serve(ctx, cut context.Context, l net.Listener) error {
	return s.conns.Serve(ctx, cut, l, func(raw net.Conn) { s.serve(cut, raw) })
}

// conn is a new connection.
func (s *Server) conn(ctx context.Context, raw net.Conn) *conn {
	return &conn{opts: &s.opts, figures: &s.figures, ending: s.conns.Ending, ctx: ctx, conn: raw, id: s.serial.Add(1)}
}

// serve serves one connection until it ends.
func (s *Server) serve(ctx context.Context, raw net.Conn) {
	defer func() { _ = raw.Close() }()
	if !s.conns.Add(raw) {
		s.figures.refused.Add(1)
		_ = raw.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = raw.Write([]byte("-ERR max number of clients reached\r\n")) // or he sees it closed
		return
	}
	defer s.conns.Remove(raw)
	s.figures.connections.Add(1)
	c := s.conn(ctx, raw)
	if s.opts.TLS != nil || s.opts.Identities != nil {
		_ = raw.SetDeadline(time.Now().Add(connectTime))
	}
	if s.opts.TLS != nil {
		secured := tls.Server(raw, s.opts.TLS.Config())
		err := secured.HandshakeContext(ctx)
		s.opts.TLS.Handshake(raw.RemoteAddr(), err)
		if err != nil {
			return
		}
		c.conn = secured
		state := secured.ConnectionState()
		if s.opts.Identities != nil && len(state.VerifiedChains) > 0 {
			_ = c.identify(access.CertificateOf(state.PeerCertificates[0])) // or he has a token
			c.first = c.session
		}
	}
	if s.opts.Identities == nil && s.opts.TLS != nil {
		c.known()
	}
	if s.conns.Ending() { // it came while the others were told
		_ = raw.SetReadDeadline(time.Now().Add(accept.Linger))
	}
	c.run()
}

// Refusals returns how many commands came without a proof of who sends them, and how many from somebody without the role.
func (s *Server) Refusals() (unauthenticated, denied uint64) {
	return s.figures.unauthenticated.Load(), s.figures.denied.Load()
}

var _ prometheus.Collector = (*Server)(nil)

// Describe implements [prometheus.Collector].
func (s *Server) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{openDesc, takenDesc, protocolDesc, commandsDesc} {
		to <- d
	}
}

// Collect implements [prometheus.Collector].
func (s *Server) Collect(to chan<- prometheus.Metric) {
	open := s.conns.Open()
	f := &s.figures
	to <- prometheus.MustNewConstMetric(openDesc, prometheus.GaugeValue, float64(open))
	to <- prometheus.MustNewConstMetric(takenDesc, prometheus.CounterValue, float64(f.connections.Load()), "taken")
	to <- prometheus.MustNewConstMetric(takenDesc, prometheus.CounterValue, float64(f.refused.Load()), "refused")
	to <- prometheus.MustNewConstMetric(protocolDesc, prometheus.CounterValue, float64(f.protocol.Load()))
	for c := range f.commands {
		for o := range f.commands[c] {
			if n := f.commands[c][o].Load(); n > 0 {
				to <- prometheus.MustNewConstMetric(commandsDesc, prometheus.CounterValue, float64(n), commandNames[c], outcomeNames[o])
			}
		}
	}
}
