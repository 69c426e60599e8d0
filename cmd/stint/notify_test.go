package main

import (
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// manager is the socket on which systemd listens to the services that it has started.
func manager(t *testing.T, name string) (*net.UnixConn, func() string) {
	t.Helper()
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: name, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := conn.Close(); err != nil {
			t.Error(err)
		}
	})
	return conn, func() string {
		t.Helper()
		if err := conn.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
			t.Fatal(err)
		}
		buf := make([]byte, 4096)
		n, err := conn.Read(buf)
		if err != nil {
			t.Fatal(err)
		}
		return string(buf[:n])
	}
}

// TestServiceTellsSystemd walks through the life of a service under systemd: ready when it
// answers, and after each reload, with what was refused; stopping when it drains.
func TestServiceTellsSystemd(t *testing.T) {
	for _, socket := range []string{filepath.Join(t.TempDir(), "notify"), "@stint-test-" + filepath.Base(t.TempDir())} {
		_, next := manager(t, socket)
		config := file(t, "stint.yaml", "limits: [{name: a, rate: 5/s}]\n")
		p := serveProcess(t, []string{"NOTIFY_SOCKET=" + socket}, "--config", config)
		if got, want := next(), "READY=1\nSTATUS=1 limit, store memory"; got != want {
			t.Errorf("at the start %q, want %q", got, want)
		}
		resp, err := http.Get(p.admin + "/readyz")
		if err != nil {
			t.Fatal(err)
		}
		if err := resp.Body.Close(); err != nil || resp.StatusCode != http.StatusOK {
			t.Errorf("said that it is ready, and /readyz answers %s, %v", resp.Status, err)
		}
		for text, want := range map[string]string{
			"limits: [{name: a, rate: 5/lunch}]\n": "the former configuration is in force: ",
			"limits: [{name: a, rate: 6/s}]\n":     "STATUS=1 limit, store memory",
		} {
			if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := p.cmd.Process.Signal(syscall.SIGHUP); err != nil {
				t.Fatal(err)
			}
			if got := next(); got != "RELOADING=1" {
				t.Errorf("at a reload %q", got)
			}
			if got := next(); !strings.HasPrefix(got, "READY=1\nSTATUS=") || !strings.Contains(got, want) || strings.Count(got, "\n") != 1 {
				t.Errorf("after a reload of %q: %q, want a line with %q", text, got, want)
			}
		}
		if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if got, want := next(), "STOPPING=1\nSTATUS=draining"; got != want {
			t.Errorf("at the end %q, want %q", got, want)
		}
		if code := p.end(syscall.SIGCONT); code != exitOK {
			t.Errorf("exit code %d", code)
		}
	}
}

// TestNobodyToTell: a service serves though systemd does not listen, and says so in its log;
// it speaks to no socket of another kind.
func TestNobodyToTell(t *testing.T) {
	p := serveProcess(t, []string{"NOTIFY_SOCKET=" + filepath.Join(t.TempDir(), "gone")})
	p.await("cannot tell systemd by NOTIFY_SOCKET")
	if code := p.end(syscall.SIGTERM); code != exitOK {
		t.Errorf("exit code %d", code)
	}
	for _, socket := range []string{"", "vsock:2:1234", "relative"} {
		n := newNotifier(func(string) string { return socket })
		if err := n.ready("x"); n != (notifier{}) || err != nil {
			t.Errorf("%q: %+v, %v", socket, n, err)
		}
	}
}
