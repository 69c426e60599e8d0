package listen_test

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/listen"
)

// TestSocket: a socket that was left behind is replaced, one in use and a file are not, and others cannot connect.
func TestSocket(t *testing.T) {
	t.Chdir(t.TempDir())
	path := filepath.Join(t.TempDir(), "x.sock")
	left, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	left.SetUnlinkOnClose(false)
	if l, err := listen.Listen(t.Context(), "unix:"+path); err == nil {
		t.Errorf("it listens on %v, on which another does", l.Addr())
	}
	if err := left.Close(); err != nil {
		t.Fatal(err)
	}
	for _, addr := range []string{"unix:" + path, "unix://" + path, "unix:./relative.sock"} {
		l, err := listen.Listen(t.Context(), addr)
		if err != nil {
			t.Fatal(err)
		}
		socket, _ := listen.Path(addr)
		if info, err := os.Stat(socket); err != nil || info.Mode().Perm() != 0o660 {
			t.Errorf("%s: %v, %v, want the mode 0660", addr, info, err)
		}
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Error(err)
		} else if err := c.Close(); err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(socket); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", socket, err)
		}
	}
	if err := os.WriteFile(path, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := listen.Listen(t.Context(), "unix:"+path); err == nil {
		t.Error("it listens in place of a file")
	}
	if text, err := os.ReadFile(path); string(text) != "keep" {
		t.Errorf("the file has %q, %v", text, err)
	}
}

func TestCheck(t *testing.T) {
	for addr, want := range map[string]bool{
		"127.0.0.1:0": true, ":8080": true, "unix:x.sock": true, "unix:/run/stint.sock": true, "unix:///run/stint.sock": true,
		"": false, "8080": false, "unix:": false, "unix://": false, "unix:" + strings.Repeat("x", 200): false, "/run/stint.sock": false,
	} {
		if err := listen.Check(addr); (err == nil) != want {
			t.Errorf("%q: %v, want good %v", addr, err, want)
		}
	}
	for addr, want := range map[string]bool{"127.0.0.1:1": true, "localhost:1": true, "[::1]:1": true, "unix:/x": true, ":1": false, "192.0.2.7:1": false, "example.com:1": false} {
		if listen.Local(addr) != want {
			t.Errorf("%q: local %v, want %v", addr, !want, want)
		}
	}
}
