package accept

import (
	"context"
	"io"
	"net"
	"testing"
)

// TestSources: one source does not take all connections.
func TestSources(t *testing.T) {
	s := New(50)
	for range 100 {
		s.Add(&from{addr: "192.0.2.7"})
	}
	other := &from{addr: "192.0.2.8"}
	if s.Open() >= 50 || !s.Add(other) {
		t.Fatalf("one source has %d connections of 50, and another has none", s.Open())
	}
	open := s.Open()
	s.Remove(other)
	s.Remove(other)
	if s.Open() != open-1 {
		t.Errorf("%d open after one of %d has ended", s.Open(), open)
	}
}

// from is a connection of a source.
type from struct {
	net.Conn
	addr string
}

func (f *from) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.ParseIP(f.addr)} }

// There are at most so many connections; the end of the one context has them read for a moment, that of the other closes
// those that go on, and Serve returns when all have ended.
func TestServe(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	cut, abort := context.WithCancel(t.Context())
	s, added, ended := New(1), make(chan bool), make(chan error, 1)
	go func() {
		ended <- s.Serve(ctx, cut, l, func(c net.Conn) {
			ok := s.Add(c)
			added <- ok
			if ok {
				defer s.Remove(c)
				_, _ = io.Copy(io.Discard, c) // to its end
				<-cut.Done()
			}
			_ = c.Close()
		})
	}()
	for _, want := range []bool{true, false} {
		c, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if got := <-added; got != want {
			t.Errorf("added: %v, want %v", got, want)
		}
	}
	if s.Open() != 1 || s.Ending() {
		t.Errorf("%d open, ending: %v", s.Open(), s.Ending())
	}
	stop()
	abort()
	if err := <-ended; err != nil || s.Open() != 0 || !s.Ending() {
		t.Errorf("%v, %d open, ending: %v", err, s.Open(), s.Ending())
	}
}
