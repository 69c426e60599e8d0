package httpclient_test

import (
	"bufio"
	"fmt"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stint-io/stint/middleware/httpclient"
	"github.com/stint-io/stint/middleware/outgoing"
)

// A refusal whose body never comes holds up neither the retry nor the caller.
func TestRefusalWithoutItsBody(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			go func() {
				if _, err := http.ReadRequest(bufio.NewReader(c)); err == nil {
					fmt.Fprint(c, "HTTP/1.1 503 Busy\r\nContent-Length: 100\r\n\r\n")
				}
			}()
		}
	}()
	transport, err := httpclient.New(&http.Transport{}, httpclient.Policy{Retry: outgoing.Retry{Percent: 100, Reserve: 10, Base: time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan int, 1)
	go func() {
		res, err := (&http.Client{Transport: transport}).Get("http://" + l.Addr().String())
		if err != nil {
			done <- 0
			return
		}
		res.Body.Close()
		done <- res.StatusCode
	}()
	select {
	case status := <-done:
		if status != http.StatusServiceUnavailable {
			t.Errorf("status %d", status)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the caller waits for the body of an answer that it never gets")
	}
}
