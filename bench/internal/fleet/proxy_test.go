package fleet

import (
	"bytes"
	"io"
	"net"
	"testing"
	"time"
)

// What is sent arrives later by the delay, whole and in order, and is counted; the end
// of a connection is passed on.
func TestProxyDelaysAndCounts(t *testing.T) {
	echo, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	go func() {
		c, err := echo.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		_, _ = io.Copy(c, c)
	}()
	const delay = 30 * time.Millisecond
	p, err := StartProxy(echo.Addr().String(), delay)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c, err := net.DialTimeout("tcp4", p.Addr(), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	want := bytes.Repeat([]byte("0123456789"), 20_000)
	start := time.Now()
	go func() { _, _ = c.Write(want) }()
	got := make([]byte, len(want))
	if _, err := io.ReadFull(c, got); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(start); took < 2*delay {
		t.Errorf("there and back in %v, want at least %v", took, 2*delay)
	}
	if !bytes.Equal(got, want) {
		t.Error("what came back is not what was sent")
	}
	if up, down := p.Bytes(); up != int64(len(want)) || down != int64(len(want)) {
		t.Errorf("counted %d and %d bytes of %d", up, down, len(want))
	}
	p.Close()
	if _, err := c.Read(got); err == nil {
		t.Error("the connection outlives the proxy")
	}
}

func TestClockGoesOn(t *testing.T) {
	at := After(5 * time.Millisecond)
	if d := Until(at); d <= 0 || d > 5*time.Millisecond {
		t.Errorf("5 ms ahead is %v from here", d)
	}
	<-time.After(6 * time.Millisecond)
	if Until(at) > 0 {
		t.Error("6 ms later it has not come")
	}
}
