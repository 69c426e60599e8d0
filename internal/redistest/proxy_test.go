package redistest_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stint-io/stint/internal/redistest"
)

func proxied(t *testing.T) (*redistest.Server, *redistest.Proxy) {
	t.Helper()
	s := redistest.Start(t)
	return s, redistest.StartProxy(t, s.Addr())
}

func TestProxyForwards(t *testing.T) {
	s, p := proxied(t)
	c := dial(t, p.Addr())
	long := strings.Repeat("x", 1<<20) // many chunks
	c.send("SET k v")
	c.want("+OK")
	s.Do("SET", "long", long)
	c.send("GET long")
	c.want(fmt.Sprintf("$%d", len(long)))
	c.want(long)
	// An end is passed on after what came before it.
	c.send("GET k")
	c.send("QUIT")
	c.want("$1")
	c.want("v")
	c.want("+OK")
	c.wantEnd()
}

func TestProxyManyConnections(t *testing.T) {
	s, p := proxied(t)
	var clients sync.WaitGroup
	for range 16 {
		clients.Go(func() {
			conn, err := net.DialTimeout("tcp", p.Addr(), patience)
			if err != nil {
				t.Error(err)
				return
			}
			defer conn.Close()
			for range 50 {
				if _, err := conn.Write([]byte("INCR n\r\n")); err != nil {
					t.Error(err)
				}
				if _, err := conn.Read(make([]byte, 64)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	clients.Wait()
	if got := s.Int("GET", "n"); got != 800 {
		t.Errorf("%d commands came through, want 800", got)
	}
}

func TestProxyDelay(t *testing.T) {
	_, p := proxied(t)
	c := dial(t, p.Addr())
	c.send("PING")
	c.want("+PONG")

	const delay = 100 * time.Millisecond
	p.Delay(delay)
	begin := time.Now()
	const commands = 20
	for i := range commands {
		c.send(fmt.Sprintf("ECHO %d", i)) // each in a packet of its own
	}
	for i := range commands {
		c.want(fmt.Sprintf("$%d", len(fmt.Sprint(i))))
		c.want(fmt.Sprint(i))
		if took := time.Since(begin); i == 0 && took < delay {
			t.Errorf("the first answer took %v, want at least %v", took, delay)
		}
	}
	if took := time.Since(begin); took > delay*commands/2 {
		t.Errorf("%d commands in a pipeline took %v: their delays add up", commands, took)
	}

	// A shorter delay lets nothing overtake.
	c.send("ECHO first")
	p.Delay(0)
	c.send("ECHO second")
	c.want("$5")
	c.want("first")
	c.want("$6")
	c.want("second")
}

func TestProxyCut(t *testing.T) {
	s, p := proxied(t)
	a, b := dial(t, p.Addr()), dial(t, p.Addr())
	for _, c := range []*client{a, b} {
		c.send("PING")
		c.want("+PONG")
	}
	p.Freeze()
	a.send("SET k v") // is on its way when the line is cut
	p.Cut()
	p.Thaw()
	for _, c := range []*client{a, b} {
		if got, err := c.line(patience); !errors.Is(err, syscall.ECONNRESET) {
			t.Errorf("got %q, %v, want a reset", got, err)
		}
	}
	if got := s.Text("GET", "k"); got != "" {
		t.Errorf("the server was sent %q, which was cut off", got)
	}
	eventually(t, "the server to lose its clients", func() bool { return s.Info("connected_clients") == "1" })
	c := dial(t, p.Addr())
	c.send("PING")
	c.want("+PONG")
}

func TestProxyRefuse(t *testing.T) {
	_, p := proxied(t)
	open := dial(t, p.Addr())
	open.send("PING")
	open.want("+PONG")

	p.Refuse(true)
	p.Refuse(true) // changes nothing
	wantRefused(t, p.Addr())
	open.send("PING")
	open.want("+PONG")

	p.Refuse(false)
	p.Refuse(false)
	c := dial(t, p.Addr())
	c.send("PING")
	c.want("+PONG")
}

func TestProxyFreeze(t *testing.T) {
	s, p := proxied(t)
	c := dial(t, p.Addr())
	c.send("SUBSCRIBE news")
	for _, line := range []string{"*3", "$9", "subscribe", "$4", "news", ":1"} {
		c.want(line)
	}

	p.Freeze()
	p.Freeze() // changes nothing
	if got := s.Int("PUBLISH", "news", "a"); got != 1 {
		t.Errorf("%d subscribers, want 1: the connection stays open", got)
	}
	c.wantSilence() // from the server
	late := dial(t, p.Addr())
	late.send("SET k v")
	late.wantSilence()
	if got := s.Text("GET", "k"); got != "" {
		t.Errorf("the server was sent %q", got)
	}

	p.Thaw()
	p.Thaw()
	for _, line := range []string{"*3", "$7", "message", "$4", "news", "$1", "a"} {
		c.want(line)
	}
	late.want("+OK")
}

func TestProxyRewrite(t *testing.T) {
	s, p := proxied(t)
	c := dial(t, p.Addr())
	p.Rewrite("7.0.15", "5.0.14")
	p.Rewrite("standalone", "standAlone")
	// What clients send stays as it is.
	const sent, seen = "redis 7.0.15 standalone 7.0.15", "redis 5.0.14 standAlone 5.0.14"
	c.send(`SET k "` + sent + `"`)
	c.want("+OK")
	if got := s.Text("GET", "k"); got != sent {
		t.Errorf("the server was sent %q, want %q", got, sent)
	}
	c.send("GET k")
	c.want(fmt.Sprintf("$%d", len(seen)))
	c.want(seen)

	p.Rewrite("standalone", "STANDALONE")
	p.Rewrite("7.0.15", "7.0.15")
	c.send("GET k")
	c.want(fmt.Sprintf("$%d", len(sent)))
	c.want("redis 7.0.15 STANDALONE 7.0.15")

	for _, bad := range [][2]string{{"", ""}, {"a", "bc"}, {"a\r\n", "b\r\n"}} {
		if text := failure(t, func(tb testing.TB) {
			redistest.StartProxy(tb, s.Addr()).Rewrite(bad[0], bad[1])
		}); !strings.Contains(text, "Rewrite(") {
			t.Errorf("Rewrite(%q, %q) fails with %q", bad[0], bad[1], text)
		}
	}
}

func TestProxyWithoutServer(t *testing.T) {
	s, p := proxied(t)
	c := dial(t, p.Addr())
	c.send("PING")
	c.want("+PONG")
	s.Kill()
	c.wantEnd()
	dial(t, p.Addr()).wantEnd()
	s.Restart()
	c = dial(t, p.Addr())
	c.send("PING")
	c.want("+PONG")
}
