package redistest_test

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/stint-io/stint/internal/redistest"
)

const (
	// patience bounds every wait for something that is sure to come.
	patience = 30 * time.Second
	// quiet is how long nothing must come where nothing may.
	quiet = 150 * time.Millisecond
)

// eventually waits for something that is sure to come.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(patience)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited %v for %s", patience, what)
		}
	}
}

// client speaks to a server, or to a proxy, line by line.
type client struct {
	t    *testing.T
	conn net.Conn
	in   *bufio.Reader
}

func dial(t *testing.T, addr string) *client {
	t.Helper()
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &client{t, conn, bufio.NewReader(conn)}
}

func (c *client) send(line string) {
	c.t.Helper()
	if _, err := c.conn.Write([]byte(line + "\r\n")); err != nil {
		c.t.Fatal(err)
	}
}

// line returns the next line, or the error after waiting as long as said.
func (c *client) line(wait time.Duration) (string, error) {
	if err := c.conn.SetReadDeadline(time.Now().Add(wait)); err != nil {
		return "", err
	}
	line, err := c.in.ReadString('\n')
	return strings.TrimRight(line, "\r\n"), err
}

func (c *client) want(line string) {
	c.t.Helper()
	if got, err := c.line(patience); err != nil || got != line {
		c.t.Fatalf("got %q, %v, want %q", got, err, line)
	}
}

func (c *client) wantSilence() {
	c.t.Helper()
	if got, err := c.line(quiet); !errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("got %q, %v, want nothing within %v", got, err, quiet)
	}
}

// wantEnd wants the connection to end in the reader's sight, and not by its own
// deadline.
func (c *client) wantEnd() {
	c.t.Helper()
	if got, err := c.line(patience); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		c.t.Fatalf("got %q, %v, want the end of the connection", got, err)
	}
}

func wantRefused(t *testing.T, addr string) {
	t.Helper()
	conn, err := net.DialTimeout("tcp", addr, patience)
	if err == nil {
		conn.Close()
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		t.Fatalf("connecting to %s: %v, want it refused", addr, err)
	}
}

// refusal is a testing.TB that keeps what it was failed with.
type refusal struct {
	testing.TB
	text string
}

func (r *refusal) Fatal(args ...any) {
	r.text = fmt.Sprint(args...)
	runtime.Goexit()
}

func (r *refusal) Fatalf(format string, args ...any) { r.Fatal(fmt.Sprintf(format, args...)) }

// failure returns what f fails its test with; "" when it does not.
func failure(t *testing.T, f func(testing.TB)) string {
	t.Helper()
	r := &refusal{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		f(r)
	}()
	select {
	case <-done:
	case <-time.After(2 * patience):
		t.Fatal("it neither returned nor failed")
	}
	return r.text
}

func TestServerAnswers(t *testing.T) {
	s := redistest.Start(t, "--maxmemory", "10mb")
	if want := "redis://" + s.Addr(); s.URL() != want {
		t.Errorf("URL %s, want %s", s.URL(), want)
	}
	if got := s.Info("maxmemory"); got != "10485760" {
		t.Errorf("maxmemory %s, want 10 MB: arguments must reach the server", got)
	}
	if got := s.Text("SET", "a key", "a value"); got != "OK" {
		t.Errorf("SET gives %q", got)
	}
	if got := s.Text("GET", "a key"); got != "a value" {
		t.Errorf("GET gives %q", got)
	}
	if got := s.Text("GET", "no key"); got != "" {
		t.Errorf("GET of nothing gives %q", got)
	}
	if got := s.Int("INCRBY", "n", "41"); got != 41 {
		t.Errorf("INCRBY gives %d", got)
	}
	if got := s.Info("rdb_saves"); got != "0" {
		t.Errorf("it has saved %s times", got)
	}
	reply, err := s.Try("GET", "no key")
	if err != nil || !reply.IsNil() {
		t.Errorf("a nil reply is the error %v", err)
	}
	_, err = s.Try("INCR", "a key")
	if answer, ok := rueidis.IsRedisErr(err); !ok || !strings.Contains(answer.Error(), "not an integer") {
		t.Errorf("INCR of a text gives %v, want the server's error", err)
	}
	if text := failure(t, func(tb testing.TB) { redistest.Start(tb).Do("NOSUCH", "secret") }); !strings.Contains(text, "NOSUCH") {
		t.Errorf("Do fails with %q, want the command in it", text)
	}
}

func TestServersAreApart(t *testing.T) {
	a, b := redistest.Start(t), redistest.Start(t)
	a.Do("SET", "k", "v")
	if got := b.Text("GET", "k"); got != "" {
		t.Errorf("b holds %q, which a was given", got)
	}
}

func TestPassword(t *testing.T) {
	s := redistest.Start(t, "--requirepass", "hush")
	s.Do("SET", "k", "v")
	c := dial(t, s.Addr())
	c.send("GET k")
	c.want("-NOAUTH Authentication required.")
	s.Restart()
	s.Do("SET", "k", "v")
}

func TestFreeze(t *testing.T) {
	s := redistest.Start(t)
	c := dial(t, s.Addr())
	c.send("PING")
	c.want("+PONG")

	s.Freeze()
	c.send("PING")
	c.wantSilence()
	late := dial(t, s.Addr()) // the kernel accepts
	late.send("PING")
	late.wantSilence()

	s.Thaw()
	c.want("+PONG")
	late.want("+PONG")
	if got := s.Text("PING"); got != "PONG" {
		t.Errorf("PING gives %q", got)
	}
}

func TestKillAndRestart(t *testing.T) {
	s := redistest.Start(t)
	addr := s.Addr()
	s.Do("SET", "k", "v")
	c := dial(t, addr)

	s.Kill()
	wantRefused(t, addr)
	c.wantEnd()
	if _, err := s.Try("PING"); err == nil {
		t.Error("a killed server answers")
	}
	s.Kill() // does nothing

	s.Restart()
	if s.Addr() != addr {
		t.Errorf("it is at %s, was at %s", s.Addr(), addr)
	}
	if got := s.Text("GET", "k"); got != "" {
		t.Errorf("GET gives %q, want nothing: it does not persist", got)
	}
	before := s.Info("run_id")
	s.Restart() // of one that runs
	if s.Info("run_id") == before {
		t.Error("it has not started again")
	}
}

func TestRestartKeepsWhatIsPersisted(t *testing.T) {
	s := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	s.Do("SET", "k", "v")
	s.Restart()
	if got := s.Text("GET", "k"); got != "v" {
		t.Errorf("GET gives %q, want v", got)
	}
}

func TestServerEndsWithItsTest(t *testing.T) {
	var addrs []string
	t.Run("the test", func(t *testing.T) {
		running, frozen := redistest.Start(t), redistest.Start(t)
		frozen.Freeze()
		addrs = append(addrs, running.Addr(), frozen.Addr())
	})
	for _, addr := range addrs {
		wantRefused(t, addr)
	}
	if len(addrs) != 2 {
		t.Fatal("there were no servers")
	}
}

// TestServerEndsWhenItsTestIsKilled runs itself as another process, which waits to
// be killed.
func TestServerEndsWhenItsTestIsKilled(t *testing.T) {
	const child = "REDISTEST_CHILD"
	if os.Getenv(child) != "" {
		fmt.Println(redistest.Start(t).Addr())
		select {}
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), child+"=1", "TMPDIR="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	addr := strings.TrimSpace(line)
	dial(t, addr)
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the server to end", func() bool {
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			conn.Close()
		}
		return errors.Is(err, syscall.ECONNREFUSED)
	})
}

func TestStartFailsClearly(t *testing.T) {
	if text := failure(t, func(tb testing.TB) { redistest.Start(tb, "--no-such-argument", "1") }); !strings.Contains(text, "no-such-argument") {
		t.Errorf("a wrong argument fails with %q, want what redis-server says", text)
	}
	if text := failure(t, func(tb testing.TB) {
		s := redistest.Start(tb)
		s.Kill()
		s.Freeze()
	}); !strings.Contains(text, "call Restart first") {
		t.Errorf("freezing a killed server fails with %q, want the way out", text)
	}
	t.Setenv("PATH", t.TempDir())
	const want = "redis-server is missing: apt-get install redis-server"
	if text := failure(t, func(tb testing.TB) { redistest.Start(tb) }); text != want {
		t.Errorf("without redis-server it fails with %q, want %q", text, want)
	}
}
