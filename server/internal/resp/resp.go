// Package resp is a door for clients of Redis: it speaks RESP2 and RESP3. CL.THROTTLE and GCRA take from buckets whose
// limit comes with the command; RL.TAKE and its like ask the limits of the file. It translates, and decides nothing.
package resp

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/engine"
	"github.com/stint-io/stint/internal/override"
	"github.com/stint-io/stint/internal/reserve"
	"github.com/stint-io/stint/limit"
	"github.com/stint-io/stint/server/internal/access"
)

// MaxConnections is the most connections at a time. Not larger: each may hold a command of [MaxCommand] and answers.
// Not smaller: Redis takes as many by default.
const MaxConnections = 10_000

// The times that a client may take.
const (
	connectTime = 5 * time.Second        // to shake hands, and to send a token where one is asked for
	readTime    = 10 * time.Second       // to send the rest of a command
	writeTime   = 15 * time.Second       // to take answers
	linger      = 250 * time.Millisecond // after the listener has closed: commands that are on their way are answered
	longestWait = 5 * time.Second        // for a limit with on_exceed: queue
)

// Engine decides by the limits of the file. [engine.Engine] does.
type Engine interface {
	TakeWithin(ctx context.Context, req limit.Request, most time.Duration) (limit.Decision, error)
	Finish(ctx context.Context, req limit.Request, permit uint64) error
}

var _ Engine = (*engine.Engine)(nil)

// Reservations are costs that are taken before they are known. [reserve.Book] has them.
type Reservations interface {
	Reserve(ctx context.Context, req limit.Request, ttl time.Duration, charge bool) (reserve.Reservation, limit.Decision, error)
	Commit(ctx context.Context, id string, actual int64) (reserve.Reservation, error)
	Renew(ctx context.Context, id string, used int64, ttl time.Duration) (reserve.Reservation, error)
	Release(ctx context.Context, id string) (reserve.Reservation, error)
}

// TLS is the certificate of the listener.
type TLS interface {
	Config() *tls.Config
	Handshake(peer net.Addr, err error)
}

// Options are what a [Server] asks.
type Options struct {
	Engine       Engine
	Reservations Reservations
	// Buckets are those of CL.THROTTLE and GCRA; nil = NoBuckets says why there are none.
	Buckets   *override.Buckets
	NoBuckets string
	// Identities say who comes; nil = nobody is asked.
	Identities *access.Live
	TLS        TLS // nil = plain text
	Version    string
	// Fault is told what a command has panicked with.
	Fault func(command string, p any)
	// MaxConnections bounds the connections at a time; 0 = [MaxConnections].
	MaxConnections int
}

// Server serves connections. It is safe for concurrent use; New makes it.
type Server struct {
	opts    Options
	figures figures
	serial  atomic.Int64 // of connections, for CLIENT ID

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
// its way, and returns when all connections are closed: at the latest when cut does. The error is that of the
// listener, nil after the end of ctx.
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
		conn, err := l.Accept()
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
		running.Go(func() { s.serve(cut, conn) })
	}
}

// temporary reports whether it may help to accept again: too many files are open, or a client has gone.
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
	defer raw.Close()
	if !s.add(raw) {
		s.figures.refused.Add(1)
		_ = raw.SetWriteDeadline(time.Now().Add(time.Second))
		_, _ = raw.Write([]byte("-ERR max number of clients reached\r\n")) // or he sees it closed
		return
	}
	defer s.remove(raw)
	s.figures.connections.Add(1)
	c := &conn{server: s, ctx: ctx, conn: raw, id: s.serial.Add(1)}
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
		}
	}
	if s.opts.Identities == nil && s.opts.TLS != nil {
		c.known()
	}
	if s.ending.Load() { // it came while the others were told
		_ = raw.SetReadDeadline(time.Now().Add(linger))
	}
	c.run()
}
