package grpcserver

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/test/bufconn"
)

// Frames of HTTP/2 (RFC 9113, section 6).
const (
	framePing   = 6
	frameGoAway = 7
)

// TestPings: a proxy may ping an idle connection each second, as it does to notice a server that hangs.
func TestPings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := bufconn.Listen(1 << 10)
		s := grpc.NewServer(Options(Config{Streams: context.Background(), Fault: func(string, any) {}})...)
		go func() { _ = s.Serve(l) }()
		defer s.Stop()
		conn, err := l.Dial()
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		write(t, conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+"\x00\x00\x00\x04\x00\x00\x00\x00\x00")
		for i := range byte(20) {
			time.Sleep(time.Second)
			write(t, conn, "\x00\x00\x08\x06\x00\x00\x00\x00\x00"+"1234567"+string(rune(i)))
			for {
				kind, body := frame(t, conn)
				if kind == frameGoAway {
					t.Fatalf("after ping %d the server goes away: %s", i, body)
				}
				if kind == framePing && body[7] == i {
					break
				}
			}
		}
	})
}

func write(t *testing.T, conn net.Conn, text string) {
	t.Helper()
	if _, err := io.WriteString(conn, text); err != nil {
		t.Fatal(err)
	}
}

func frame(t *testing.T, conn net.Conn) (kind byte, body []byte) {
	t.Helper()
	var head [9]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		t.Fatal(err)
	}
	body = make([]byte, binary.BigEndian.Uint32(head[:4])>>8)
	if _, err := io.ReadFull(conn, body); err != nil {
		t.Fatal(err)
	}
	return head[3], body
}
