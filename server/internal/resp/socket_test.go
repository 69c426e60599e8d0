package resp

import (
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stint-io/stint/server/internal/access"
)

// served has s serve a listener that is there before, until the test ends.
func served(t *testing.T, s *Server, l net.Listener) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(ctx, context.Background(), l) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}

// send connects, sends, and with last says that no more comes.
func send(t *testing.T, l net.Listener, in string, last bool) net.Conn {
	t.Helper()
	c, err := net.Dial("tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if _, err := io.WriteString(c, in); err != nil {
		t.Fatal(err)
	}
	if last {
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// tight is a listener whose connections have little room for answers.
type tight struct{ net.Listener }

func (l tight) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err == nil {
		err = c.(*net.TCPConn).SetWriteBuffer(16 << 10)
	}
	return c, err
}

// On a connection of the kernel each command is answered once, and the server closes it after QUIT, after a fault of the
// protocol, and when the client sends no more: also when that came together with the last command.
func TestSocketEnds(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	// Before the server accepts, so that the end is there when the command is read.
	early := send(t, l, array("PING"), true)
	s := newServer(t)
	served(t, s, l)
	for name, one := range map[string]struct {
		c    net.Conn
		want string
	}{
		"the end with the command": {early, "+PONG\r\n"},
		"QUIT":                     {send(t, l, array("PING")+array("QUIT"), false), "+PONG\r\n+OK\r\n"},
		"a fault":                  {send(t, l, "PING\r\n*x\r\n", false), "+PONG\r\n-ERR Protocol error: invalid multibulk length, want a whole number of at most 256\r\n"},
		"a half-closed one":        {send(t, l, strings.Repeat(array("PING"), 3), true), strings.Repeat("+PONG\r\n", 3)},
	} {
		got, err := io.ReadAll(one.c)
		if err != nil || string(got) != one.want {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

// More answers than the kernel has room for come whole and in order when the client reads at last.
func TestSocketIsFull(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served(t, newServer(t), tight{l})
	text := strings.Repeat("x", 50_000)
	const commands = 60
	c := send(t, l, "", false)
	sent := make(chan error, 1)
	go func() {
		for i := range commands {
			if _, err := io.WriteString(c, array("ECHO", fmt.Sprint(i, text))); err != nil {
				sent <- err
				return
			}
		}
		sent <- c.(*net.TCPConn).CloseWrite()
	}()
	got, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	if err := <-sent; err != nil {
		t.Fatal(err)
	}
	rest := string(got)
	for i := range commands {
		answer := fmt.Sprint(i, text)
		answer = fmt.Sprintf("$%d\r\n%s\r\n", len(answer), answer)
		if !strings.HasPrefix(rest, answer) {
			t.Fatalf("answer %d of %d bytes: %.80q", i, len(got), rest)
		}
		rest = rest[len(answer):]
	}
	if rest != "" {
		t.Errorf("%d bytes more", len(rest))
	}
}

// A time for the rest of a command, or for who it is, takes the place of the time for a look, which is set again when that
// is over: a client that sends no more would wait for ever otherwise, and one that sends half a command could.
func TestLooksAndDeadlines(t *testing.T) {
	c := newServer(t).conn(t.Context(), &script{in: strings.NewReader("")})
	c.socket = &socket{}
	after := func(step, in string, looks, tardy bool) {
		t.Helper()
		if in != "" {
			if err := c.reader.fill(strings.NewReader(in)); err != nil {
				t.Fatal(err)
			}
			if err := c.batch(); err != nil {
				t.Fatal(err)
			}
			c.hurry()
		} else {
			c.lookLater()
		}
		if c.socket.looks != looks || c.tardy != tardy {
			t.Errorf("%s: looks %v, tardy %v", step, c.socket.looks, c.tardy)
		}
	}
	after("a command", array("PING"), false, false)
	after("nothing more", "", true, false)
	after("another", array("PING"), true, false)
	after("nothing more", "", true, false)
	after("half of one", "*1\r\n$4\r\nPI", false, true)
	after("nothing more", "", false, true)
	after("the rest", "NG\r\n", false, false)
	after("nothing more", "", true, false)
	c.opts.Identities = new(access.Live)
	c.readBy(time.Time{})
	after("somebody unknown", "", false, false)
}
