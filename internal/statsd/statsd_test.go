package statsd_test

import (
	"bufio"
	"context"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/statsd"
)

// run runs a sender until the test ends.
func run(t *testing.T, o statsd.Options) (stop func()) {
	t.Helper()
	o.Interval, o.Logger = 100*time.Millisecond, slog.New(slog.DiscardHandler)
	if err := o.Check(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() { statsd.New(o).Run(ctx) })
	stop = func() { cancel(); running.Wait() }
	t.Cleanup(stop)
	return stop
}

// By TCP: what has grown, once; names as gostats writes tags; after a connection that broke the same goes on, and what
// grew meanwhile comes at the end.
func TestTCP(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var a atomic.Uint64
	a.Store(3)
	stop := run(t, statsd.Options{URL: "tcp://" + l.Addr().String(), Tags: []string{"zone=b", "env=x"}, Read: func(each func(string, uint64)) {
		each("a", a.Load())
		each("zero", 0)
	}})
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(conn)
	if !lines.Scan() || lines.Text() != "a.__env=x.__zone=b:3|c" {
		t.Fatalf("%q %v", lines.Text(), lines.Err())
	}
	a.Store(5)
	stop()
	if !lines.Scan() || lines.Text() != "a.__env=x.__zone=b:2|c" || lines.Scan() {
		t.Errorf("%q %v", lines.Text(), lines.Err())
	}
}

// By UDP, with tags as Datadog writes them; no datagram is larger than a network takes.
func TestUDP(t *testing.T) {
	l, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	name := strings.Repeat("n", 300)
	run(t, statsd.Options{URL: "dogstatsd://" + l.LocalAddr().String(), Tags: []string{"env=x"}, Read: func(each func(string, uint64)) {
		for _, end := range "abcdefghij" {
			each(name+string(end), 7)
		}
	}})
	got := 0
	for buffer := make([]byte, 1<<16); got < 10; {
		n, _, err := l.ReadFrom(buffer)
		if err != nil {
			t.Fatal(err)
		}
		text := strings.TrimSuffix(string(buffer[:n]), "\n")
		if n > 1432 {
			t.Errorf("a datagram of %d bytes", n)
		}
		for line := range strings.SplitSeq(text, "\n") {
			if got++; !strings.HasPrefix(line, name) || !strings.HasSuffix(line, ":7|c|#env:x") {
				t.Errorf("%q", line)
			}
		}
	}
}

// A server that is not there keeps nobody waiting, and loses nothing: all comes when it is there.
func TestAway(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := l.Addr().String()
	_ = l.Close()
	var reads atomic.Int64
	again := make(chan struct{})
	run(t, statsd.Options{URL: "tcp://" + addr, Read: func(each func(string, uint64)) {
		if reads.Add(1) == 2 {
			close(again)
		}
		each("a", 4)
	}})
	<-again
	if l, err = net.Listen("tcp", addr); err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	if lines := bufio.NewScanner(conn); !lines.Scan() || lines.Text() != "a:4|c" {
		t.Errorf("%q", lines.Text())
	}
}

// What is wrong with the options is said.
func TestBadOptions(t *testing.T) {
	for want, o := range map[string]statsd.Options{
		"want tcp://HOST:PORT": {URL: "http://a:1"},
		"write it as":          {URL: "udp://a"},
		"at least 100ms":       {URL: "udp://a:1", Interval: 1},
		"is not NAME=VALUE":    {URL: "udp://a:1", Tags: []string{"a=b\nc:1|c"}},
	} {
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
