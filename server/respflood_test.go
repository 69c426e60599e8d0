package server_test

import (
	"bytes"
	"net"
	"sync"
	"syscall"
	"testing"
	"time"
)

// flood sends empty lines as fast as they are taken, by several threads that wait in the kernel, until the connection ends.
func flood(t *testing.T, conn *net.TCPConn) (ended *sync.WaitGroup) {
	t.Helper()
	ended = new(sync.WaitGroup)
	for range 4 {
		f, err := conn.File()
		if err != nil {
			t.Fatal(err)
		}
		if err := syscall.SetNonblock(int(f.Fd()), false); err != nil {
			t.Fatal(err)
		}
		ended.Go(func() {
			defer f.Close()
			for lines := bytes.Repeat([]byte("\n"), 1<<16); ; {
				if _, err := f.Write(lines); err != nil {
					return
				}
			}
		})
	}
	return ended
}

// TestRESPFloods: a client of which something has always come cannot keep the server from ending, and has no more time
// to say who it is than others.
func TestRESPFloods(t *testing.T) {
	s := start(t, "limits: [{name: per-ip, key: [ip], rate: 5/hour}]", withRESP)
	conn, err := net.DialTCP("tcp", nil, s.Addrs().RESP.(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ended := flood(t, conn)
	if out := s.tool("redis-cli", "PING"); out != "PONG\n" {
		t.Errorf("another client: %q", out)
	}
	began := time.Now()
	stopped := make(chan error, 1)
	go func() { stopped <- s.stop() }()
	select {
	case err := <-stopped:
		if took := time.Since(began); err != nil || took > 20*time.Second {
			t.Errorf("it ended after %v: %v", took, err)
		}
	case <-time.After(20 * time.Second):
		t.Error("the server does not end while a client sends")
		_ = conn.Close()
	}
	ended.Wait()
}
