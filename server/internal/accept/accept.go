// Package accept takes the connections of a listener, bounds how many there are, and ends them. It reads nothing from
// them: what is spoken is up to the function that serves them.
package accept

import (
	"context"
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/connlimit"
)

// Linger is for how long a connection is read from after the listener has closed: what is on its way is answered.
const Linger = 250 * time.Millisecond

// Conns are the connections of a listener. Its methods are safe for concurrent use; New makes it.
type Conns struct {
	bound  *connlimit.Conns
	ending atomic.Bool
	mu     sync.Mutex
	conns  map[net.Conn]func() // what ends its part in bound
}

// New returns Conns with at most so many connections at a time, at least 1, and a bound for each source.
func New(most int) *Conns { return &Conns{bound: connlimit.New(most), conns: map[net.Conn]func(){}} }

// Serve takes connections from l and calls serve with each, in a goroutine of its own, until ctx ends. Then it closes
// l, has what is on its way read for [Linger], and returns when every serve has: connections that were added are
// closed when cut ends. The error is that of the listener, nil after the end of ctx.
func (s *Conns) Serve(ctx, cut context.Context, l net.Listener, serve func(net.Conn)) error {
	stop := context.AfterFunc(ctx, func() {
		s.ending.Store(true)
		_ = l.Close() // Accept has its error
		s.each(func(c net.Conn) { _ = c.SetReadDeadline(time.Now().Add(Linger)) })
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
		running.Go(func() { serve(conn) })
	}
}

// temporary reports whether it may help to accept again: too many files are open, or a client has gone.
func temporary(err error) bool {
	var one net.Error
	return errors.As(err, &one) && !errors.Is(err, net.ErrClosed)
}

func (s *Conns) each(do func(net.Conn)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for c := range s.conns {
		do(c)
	}
}

// Add makes a connection one of those that are served; false = there are as many as there may be, of its source or of
// all.
func (s *Conns) Add(c net.Conn) bool {
	leave, ok := s.bound.Enter(c.RemoteAddr())
	if !ok {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.conns[c] = leave
	return true
}

// Remove undoes Add.
func (s *Conns) Remove(c net.Conn) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if leave := s.conns[c]; leave != nil {
		leave()
	}
	delete(s.conns, c)
}

// Open is how many connections are served.
func (s *Conns) Open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.conns)
}

// Ending says whether the end of Serve has begun.
func (s *Conns) Ending() bool { return s.ending.Load() }
