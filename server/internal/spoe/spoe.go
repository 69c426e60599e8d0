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
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/server/internal/access"
)

// Server serves connections. It is safe for concurrent use; New makes it.
type Server struct {
	opts    Options
	figures figures

	ending atomic.Bool
	mu     sync.Mutex
	conns  map[net.Conn]struct{}
}

// New returns a server.
func New(o Options) *Server {
	if o.MaxConnections == 0 {
		o.MaxConnections = MaxConnections
	}
	return &Server{opts: o, conns: map[net.Conn]struct{}{}}
}

// Serve takes connections from l and answers them until ctx ends. Then it closes l, answers for a moment what is on
// its way, takes leave of the gateways, and returns when all connections are closed: at the latest when cut does. The
// error is that of the listener, nil after the end of ctx.
func (s *Server) Serve(ctx, cut context.Context, l net.Listener) error {
	stop := context.AfterFunc(ctx, func() {
		s.ending.Store(true)
		_ = l.Close() // Accept has its error
		s.each(func(c net.Conn) { _ = c.SetReadDeadline(time.Now().Add(linger)) })
	})
	defer stop()
	abort := context.AfterFunc(cut, func() { s.each(func(c net.Conn) { _ = c.Close() }) })
	defer abort()
	var running sync.WaitGroup
	defer running.Wait()
	for pause := time.Duration(0); ; {
		raw, err := l.Accept()
		switch {
		case err != nil && ctx.Err() != nil:
			return nil
		case err != nil && temporary(err):
			pause = min(max(2*pause, 5*time.Millisecond), time.Second)
			select {
			case <-time.After(pause):
			case <-ctx.Done():
			}
			continue
		case err != nil:
			return err
		}
		pause = 0
		running.Go(func() { s.serve(cut, raw) })
	}
}

// temporary reports whether it may help to accept again: too many files are open, or a gateway has gone.
func temporary(err error) bool {
	var one net.Error
	return errors.As(err, &one) && !errors.Is(err, net.ErrClosed)
}

func (s *Server) each(do func(net.Conn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		do(c)
	}
}

// add makes a connection one of those that are served.
func (s *Server) add(c net.Conn) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.conns) >= s.opts.MaxConnections {
		return false
	}
	s.conns[c] = struct{}{}
	return true
}

func (s *Server) remove(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.conns, c)
}

// serve serves one connection until it ends.
func (s *Server) serve(ctx context.Context, raw net.Conn) {
	defer func() { _ = raw.Close() }()
	if !s.add(raw) {
		s.figures.full.Add(1)
		_ = raw.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = raw.Write(appendDisconnect(nil, statusNoRoom, "too many connections")) // or he sees it closed
		return
	}
	defer s.remove(raw)
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
