package server_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// What is sent on a kept connection while the server ends is answered; whoever
// comes later is refused at the door. No request is ever cut.
func TestKeptConnectionsEndWithAnAnswer(t *testing.T) {
	s := start(t, "limits:\n  - {name: a, rate: 1G/s}\n")
	var clients sync.WaitGroup
	served := make(chan struct{}, 16)
	for range cap(served) {
		clients.Go(func() {
			own := &http.Client{Transport: &http.Transport{}}
			defer own.CloseIdleConnections()
			for n := 0; ; n++ {
				resp, err := own.Post(s.http+"/v1/take", "application/json", strings.NewReader(`{"attributes":{}}`))
				if errors.Is(err, syscall.ECONNREFUSED) {
					return
				}
				if err != nil {
					t.Errorf("request %d: %v", n, err)
					return
				}
				if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != http.StatusOK {
					t.Errorf("request %d: %d %v", n, resp.StatusCode, err)
				}
				resp.Body.Close()
				if n == 50 {
					served <- struct{}{}
				}
			}
		})
	}
	for range cap(served) {
		<-served
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	clients.Wait()
}

// A connection on which nothing is sent does not hold up the end.
func TestIdleConnectionIsClosed(t *testing.T) {
	s := start(t, "limits:\n  - {name: a, rate: 5/hour}\n")
	conn, err := net.Dial("tcp", s.Addrs().HTTP.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	resp, err := http.ReadResponse(r, nil)
	if err != nil || resp.Close {
		t.Fatalf("%+v %v", resp, err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		t.Fatal(err)
	}
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if b, err := r.ReadByte(); err != io.EOF {
		t.Fatalf("read %q, %v from a connection that should be closed", b, err)
	}
}
