package server_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/stint-io/stint/internal/redistest"
	"github.com/stint-io/stint/internal/testca"
	"github.com/stint-io/stint/server"
)

func withRESP(o *server.Options) { o.RESPAddr = "127.0.0.1:0" }

// tool runs a program of Redis against the listener and returns what it prints.
func (s *service) tool(program string, args ...string) string {
	s.t.Helper()
	_, port, err := net.SplitHostPort(s.Addrs().RESP.String())
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(s.t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, append([]string{"-h", "127.0.0.1", "-p", port}, args...)...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("%s %v: %v\n%s", program, args, err, out)
	}
	return string(out)
}

// rueidis is a client of Redis that speaks RESP3 and pipelines by itself.
func (s *service) rueidis(adjust ...func(*rueidis.ClientOption)) (rueidis.Client, error) {
	o := rueidis.ClientOption{InitAddress: []string{s.Addrs().RESP.String()}, DisableCache: true, ForceSingleClient: true}
	for _, f := range adjust {
		f(&o)
	}
	c, err := rueidis.NewClient(o)
	if err == nil {
		s.t.Cleanup(c.Close)
	}
	return c, err
}

// What people use with Redis works as it is: redis-cli, redis-benchmark, and a client that speaks RESP3.
func TestClientsOfRedis(t *testing.T) {
	s := start(t, "limits: [{name: per-ip, key: [ip], rate: 5/hour}]", withRESP)
	for _, c := range []struct{ args, want string }{
		{"CL.THROTTLE user123 15 30 60", "0\n16\n15\n-1\n2\n"},
		{"-2 GCRA user 15 30 60 TOKENS 16", "0\n16\n0\n-1\n32\n"},
		{"-3 RL.TAKE 5 ip 192.0.2.7", "allowed 1\nlimit per-ip\nquota 5\nremaining 0\nretry_after_ms -1\nreset_after_ms 3600000\ndelay_ms 0\nreason \n"},
		{"-3 PING", "PONG\n"},
	} {
		if got := s.tool("redis-cli", strings.Fields(c.args)...); got != c.want {
			t.Errorf("redis-cli %s: %q, want %q", c.args, got, c.want)
		}
	}
	if out := s.tool("redis-cli", "NO.SUCH"); !strings.Contains(out, "CL.THROTTLE") {
		t.Errorf("an unknown command: %s", out)
	}
	if out := s.tool("redis-benchmark", "-q", "-n", "5000", "-c", "20", "-P", "16", "-r", "100", "CL.THROTTLE", "key:__rand_int__", "100", "1000", "1"); !strings.Contains(out, "requests per second") || strings.Contains(out, "rror") {
		t.Errorf("redis-benchmark: %s", out)
	}
	c, err := s.rueidis(func(o *rueidis.ClientOption) { o.ClientName = "test" })
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	var admitted atomic.Int64
	for range 20 {
		all.Go(func() {
			for range 25 {
				five, err := c.Do(t.Context(), c.B().Arbitrary("CL.THROTTLE").Keys("shared").Args("99", "1", "86400").Build()).AsIntSlice()
				if err != nil || len(five) != 5 {
					t.Errorf("%v, %v", five, err)
					return
				}
				admitted.Add(1 - five[0])
			}
		})
	}
	all.Wait()
	if n := admitted.Load(); n != 100 {
		t.Errorf("%d of 500 were admitted, want 100", n)
	}
	m, err := c.Do(t.Context(), c.B().Arbitrary("RL.PEEK").Args("1", "ip", "192.0.2.7").Build()).ToMap()
	if err != nil {
		t.Fatal(err)
	}
	reason, limit := m["reason"], m["limit"]
	if text, err := reason.ToString(); err != nil || text != "rate_exceeded" {
		t.Errorf("%q, %v", text, err)
	}
	if text, err := limit.ToString(); err != nil || text != "per-ip" {
		t.Errorf("%q, %v", text, err)
	}
	if a := s.do("GET", s.admin+"/metrics", ""); !strings.Contains(a.body, `stint_resp_commands_total{command="CL.THROTTLE",outcome="refused"}`) || !strings.Contains(a.body, "stint_resp_connections 1") && !strings.Contains(a.body, "stint_resp_connections 2") {
		t.Errorf("metrics:\n%s", a.body)
	}
}

// One limit of the file is one bucket, whether it is asked by HTTP or here; a reservation of one door is known to the other.
func TestRESPAndHTTPShareLimits(t *testing.T) {
	s := start(t, "limits: [{name: per-ip, key: [ip], rate: 3/hour}]", withRESP)
	if got := s.post("/v1/take", `{"attributes":{"ip":"192.0.2.7"},"cost":2}`).status; got != 200 {
		t.Fatal(got)
	}
	if out := s.tool("redis-cli", "RL.TAKE", "1", "ip", "192.0.2.7"); !strings.HasPrefix(out, "allowed\n1\n") {
		t.Error(out)
	}
	if got := s.post("/v1/take", `{"attributes":{"ip":"192.0.2.7"}}`).status; got != 429 {
		t.Error(got)
	}
	id := strings.Split(s.tool("redis-cli", "RL.RESERVE", "3", "60000", "ip", "192.0.2.8"), "\n")[3]
	if a := s.post("/v1/commit", `{"id":"`+id+`","actual":1}`); a.status != 200 || !strings.Contains(a.body, `"committed"`) {
		t.Errorf("%d %s", a.status, a.body)
	}
}

// With tokens, every connection says who it is: by AUTH, HELLO or a certificate. Who is taken out of the file may do nothing
// from then on, also on a connection that is open.
func TestRESPIdentities(t *testing.T) {
	g := startAuth(t, withRESP)
	secure := func(names *testca.Names, user, token string) (rueidis.Client, error) {
		return g.rueidis(func(o *rueidis.ClientOption) { o.TLSConfig, o.Username, o.Password = g.config(names), user, token })
	}
	throttle := func(c rueidis.Client) error {
		return c.Do(t.Context(), c.B().Arbitrary("CL.THROTTLE").Keys("k").Args("99", "1", "1").Build()).Error()
	}
	for _, tt := range []struct {
		user, token string
		names       *testca.Names
		connect     string // the error
		take        string
	}{
		{"", "", nil, "NOAUTH", ""},
		{"", "token-of-nobody-0000", nil, "WRONGPASS", ""},
		{"orders", takeToken, nil, "WRONGPASS", ""},
		{"edge", takeToken, nil, "", ""},
		{"", takeToken, nil, "", ""},
		{"", adminToken, nil, "NOPERM", ""},
		{"", "", &testca.Names{CommonName: "edge"}, "", ""},
	} {
		c, err := secure(tt.names, tt.user, tt.token)
		if (err == nil) != (tt.connect == "") || err != nil && !strings.Contains(err.Error(), tt.connect) {
			t.Errorf("%+v: %v", tt, err)
			continue
		}
		if err == nil {
			if err := throttle(c); err != nil {
				t.Errorf("%+v: %v", tt, err)
			}
		}
	}
	ca := testca.File(t.TempDir(), "ca.crt", g.ca.PEM)
	if out := g.tool("redis-cli", "--tls", "--cacert", ca, "--no-auth-warning", "-a", takeToken, "CL.THROTTLE", "a", "0", "1", "1"); out != "0\n1\n0\n-1\n1\n" {
		t.Errorf("redis-cli by TLS: %q", out)
	}
	conn, err := tls.Dial("tcp", g.Addrs().RESP.String(), g.config(nil))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	say := func(text, want string) {
		t.Helper()
		buf := make([]byte, 512)
		if _, err := fmt.Fprint(conn, text); err != nil {
			t.Fatal(err)
		}
		if n, err := conn.Read(buf); err != nil || !strings.HasPrefix(string(buf[:n]), want) {
			t.Fatalf("%q: %q, %v", text, buf[:n], err)
		}
	}
	say("PING\r\n", "-NOAUTH ")
	say("MULTI\r\n", "-NOAUTH ")
	say("AUTH "+takeToken+"\r\n", "+OK")
	say("PING\r\n", "+PONG")
	say("MULTI\r\n", "+OK")
	say("DEL a\r\n", "+QUEUED")
	say("RESET\r\n", "+RESET")
	say("DEL a\r\n", "-NOAUTH ")
	say("AUTH "+takeToken+"\r\n", "+OK")
	say("EXEC\r\n", "-ERR EXEC without MULTI")
	testca.File(g.dir, "take.token", []byte("another-token-of-edge\n"))
	if err := g.Reload(); err != nil {
		t.Fatal(err)
	}
	say("PING\r\n", "-NOAUTH ")
}

// A server that stops answers what has come, and does not wait for clients that say nothing.
func TestRESPStops(t *testing.T) {
	s := start(t, "limits: [{name: per-ip, key: [ip], rate: 5/hour}]", withRESP)
	conn, err := net.Dial("tcp", s.Addrs().RESP.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	half, err := net.Dial("tcp", s.Addrs().RESP.String())
	if err != nil {
		t.Fatal(err)
	}
	defer half.Close()
	fmt.Fprint(half, "*2\r\n$4\r\nEC")
	const many = 500
	fmt.Fprint(conn, strings.Repeat("PING\r\n", many))
	began := time.Now()
	if err := s.stop(); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %v to stop", took)
	}
	if all, err := io.ReadAll(conn); err != nil || len(all) != many*len("+PONG\r\n") {
		t.Errorf("%d bytes of answers, %v", len(all), err)
	}
}

// A client that asks and never reads is cut or waits; others are answered meanwhile, and what is kept for it is bounded:
// the server stops to read.
func TestRESPSlowReader(t *testing.T) {
	s := start(t, "limits: [{name: per-ip, key: [ip], rate: 5/hour}]", withRESP)
	conn, err := net.Dial("tcp", s.Addrs().RESP.String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ask := []byte(strings.Repeat("ECHO "+strings.Repeat("x", 1000)+"\r\n", 100))
	stuck := false
	for range 2000 { // 200 MB if it went on
		_ = conn.SetWriteDeadline(time.Now().Add(500 * time.Millisecond))
		if _, err := conn.Write(ask); err != nil {
			var timeout net.Error
			stuck = errors.As(err, &timeout) && timeout.Timeout()
			break
		}
	}
	if !stuck {
		t.Error("the server goes on reading for a client that takes no answers")
	}
	if out := s.tool("redis-cli", "PING"); out != "PONG\n" {
		t.Errorf("another client: %q", out)
	}
}

// Where the counters are in Redis, buckets of limits that come along are refused: each server would have its own.
func TestRESPOnASharedStore(t *testing.T) {
	s := startRedis(t, redistest.Start(t), "limits: [{name: per-ip, key: [ip], rate: 5/hour}]", withRESP)
	if out := s.tool("redis-cli", "CL.THROTTLE", "a", "1", "1", "1"); !strings.Contains(out, "store: memory") {
		t.Error(out)
	}
	if out := s.tool("redis-cli", "RL.TAKE", "1", "ip", "::1"); !strings.HasPrefix(out, "allowed\n1\n") {
		t.Error(out)
	}
}

// A bucket of a day is as empty after a restart as it was before; one of a second is full.
func TestRESPLongBucketsOutliveTheProcess(t *testing.T) {
	dir := t.TempDir()
	kept := func(o *server.Options) { o.StateDir, o.FirstStart = dir, true }
	for _, limited := range []string{"0\n", "1\n"} {
		s := start(t, "limits: [{name: per-ip, key: [ip], rate: 5/hour}]", withRESP, kept)
		if out := s.tool("redis-cli", "CL.THROTTLE", "a", "1", "2", "86400", "2"); !strings.HasPrefix(out, limited+"2\n0\n") {
			t.Errorf("%q, want it to begin with %q", out, limited)
		}
		if out := s.tool("redis-cli", "CL.THROTTLE", "a", "1", "2", "1", "1"); !strings.HasPrefix(out, "1\n2\n0\n") {
			t.Errorf("the same under other terms: %q", out)
		}
		if out := s.tool("redis-cli", "CL.THROTTLE", "b", "1", "2000000", "1", "2"); !strings.HasPrefix(out, "0\n2\n0\n") {
			t.Errorf("a short one: %q", out)
		}
		if out := s.tool("redis-cli", "CL.THROTTLE", "c", "0", "1", "1800"); !strings.HasPrefix(out, "0\n1\n0\n") {
			t.Errorf("one of half an hour is not kept: %q", out)
		}
		if err := s.stop(); err != nil {
			t.Fatal(err)
		}
	}
}

// A client that closes its direction with its last command, as a shell pipe does, has its answer and then the end, also
// where the end comes together with the command, of which nothing wakes the connection later. One that sends its
// command in pieces has its answer as well.
func TestRESPHalfClosed(t *testing.T) {
	s := start(t, "limits: [{name: per-ip, key: [ip], rate: 5/hour}]", withRESP)
	var all sync.WaitGroup
	for i := range 64 {
		all.Go(func() {
			for range 8 {
				c, err := net.Dial("tcp", s.Addrs().RESP.String())
				if err != nil {
					t.Error(err)
					return
				}
				_ = c.SetDeadline(time.Now().Add(20 * time.Second))
				for _, piece := range []string{"PI", "NG\r\nECHO x", "\r\n"}[i%3:] {
					_, err = io.WriteString(c, piece)
				}
				if err == nil {
					err = c.(*net.TCPConn).CloseWrite()
				}
				text, readErr := io.ReadAll(c)
				if err = errors.Join(err, readErr, c.Close()); err != nil || i%3 == 0 && string(text) != "+PONG\r\n$1\r\nx\r\n" {
					t.Errorf("%q, %v", text, err)
				}
			}
		})
	}
	all.Wait()
}
