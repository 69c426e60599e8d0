package statsd

import (
	"errors"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"
)

// breaks takes one write, and then none.
type breaks struct {
	net.Conn
	got []string
}

func (b *breaks) SetWriteDeadline(time.Time) error { return nil }
func (b *breaks) Close() error                     { return nil }
func (b *breaks) Write(p []byte) (int, error) {
	if len(b.got) > 0 {
		return 0, errors.New("it has gone")
	}
	b.got = append(b.got, string(p))
	return len(p), nil
}

// TestHalfASend: what was sent before the connection broke is not sent again.
func TestHalfASend(t *testing.T) {
	s := New(Options{URL: "udp://127.0.0.1:1", Logger: slog.New(slog.DiscardHandler), Read: func(each func(string, uint64)) {
		each("a"+strings.Repeat("x", 1000), 3)
		each("b"+strings.Repeat("x", 1000), 4)
	}})
	first := &breaks{}
	s.conn = first
	if s.flush() == nil || len(first.got) != 1 || !strings.HasPrefix(first.got[0], "a") {
		t.Fatalf("%q", first.got)
	}
	second := &breaks{}
	s.conn = second
	if err := s.flush(); err != nil || len(second.got) != 1 || !strings.HasPrefix(second.got[0], "b") {
		t.Errorf("%v: %.20q", err, second.got)
	}
	if err := s.flush(); err != nil {
		t.Errorf("nothing has grown: %v", err)
	}
}
