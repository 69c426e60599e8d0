package statsd_test

import (
	"bufio"
	"context"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
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

// By TCP: what has grown, once; names as gostats writes tags; what grew since comes at the end.
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
	a.Store(5 + 12_340)
	stop()
	if !lines.Scan() || lines.Text() != "a.__env=x.__zone=b:12342|c" || lines.Scan() {
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
		for i, end := range "abcdefghij" {
			each(name+strings.Repeat("m", 30*i)+string(end), 7) // each is longer than the one before
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

// A connection that breaks is followed by another, and statistics go on.
func TestBreaks(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	var a atomic.Uint64
	run(t, statsd.Options{URL: "tcp://" + l.Addr().String(), Read: func(each func(string, uint64)) { each("a", a.Add(1)) }})
	for range 2 {
		conn, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		if lines := bufio.NewScanner(conn); !lines.Scan() || !strings.HasPrefix(lines.Text(), "a:") {
			t.Errorf("%q %v", lines.Text(), lines.Err())
		}
		if err := conn.(*net.TCPConn).SetLinger(0); err != nil { // so that the next write fails
			t.Fatal(err)
		}
		_ = conn.Close()
	}
}

// Without an interval it is 10 s, and the end is one more.
func TestDefaultInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reads []time.Duration
		begun := time.Now()
		ctx, stop := context.WithTimeout(t.Context(), 25*time.Second)
		defer stop()
		statsd.New(statsd.Options{URL: "udp://127.0.0.1:1", Read: func(func(string, uint64)) { reads = append(reads, time.Since(begun)) }}).Run(ctx)
		if want := []time.Duration{10 * time.Second, 20 * time.Second, 25 * time.Second}; !slices.Equal(reads, want) {
			t.Errorf("read at %v, want %v", reads, want)
		}
	})
}

// What is wrong with the options is said.
func TestBadOptions(t *testing.T) {
	for want, o := range map[string]statsd.Options{
		"want tcp://HOST:PORT": {URL: "http://a:1"},
		"write it as":          {URL: "udp://a"},
		"at least 100ms":       {URL: "udp://a:1", Interval: 1},
		"is not NAME=VALUE":    {URL: "udp://a:1", Tags: []string{"a=b\nc:1|c"}},
		`"a=" is not`:          {URL: "udp://a:1", Tags: []string{"x=y", "a="}},
		`"=b" is not`:          {URL: "udp://a:1", Tags: []string{"=b"}},
		`"a" is not`:           {URL: "udp://a:1", Tags: []string{"a"}},
	} {
		if err := o.Check(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
