// Package listen opens listeners on an address that a flag has: host:port, or unix:PATH for a socket of this machine.
package listen

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"net/url"
	"os"
	"strings"
	"syscall"
)

// mode is that of a socket: its owner and group may connect.
const mode = 0o660

// Path returns the path of addr if that is unix:PATH, which may be written as a URL, unix:///PATH.
func Path(addr string) (string, bool) {
	path, ok := strings.CutPrefix(addr, "unix:")
	if rest, found := strings.CutPrefix(path, "//"); ok && found {
		path = "/" + strings.TrimLeft(rest, "/")
	}
	return path, ok
}

// Check returns what is wrong with addr.
func Check(addr string) error {
	path, ok := Path(addr)
	switch {
	case !ok:
		_, _, err := net.SplitHostPort(addr)
		return err
	case path == "" || path == "/":
		return errors.New("the path of the socket is missing")
	case len(path) >= len(syscall.RawSockaddrUnix{}.Path):
		return fmt.Errorf("the path of the socket has %d bytes, and the system takes %d at most", len(path), len(syscall.RawSockaddrUnix{}.Path)-1)
	}
	return nil
}

// Local reports whether no other machine reaches addr. An address with a fault counts as one.
func Local(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if _, socket := Path(addr); socket || err != nil {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// Listen listens on addr. A socket that a process left behind is replaced, one that a process listens on is not. The owner and the
// group of the process may connect to it, and it is removed when the listener is closed.
func Listen(ctx context.Context, addr string) (net.Listener, error) {
	var config net.ListenConfig
	path, ok := Path(addr)
	if !ok {
		return config.Listen(ctx, "tcp", addr)
	}
	if info, err := os.Lstat(path); err == nil && info.Mode().Type() == fs.ModeSocket {
		c, err := new(net.Dialer).DialContext(ctx, "unix", path)
		if err == nil {
			_ = c.Close()
		} else if errors.Is(err, syscall.ECONNREFUSED) {
			if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return nil, err
			}
		}
	}
	l, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(path, mode); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

// Text is addr as a flag has it.
func Text(addr net.Addr) string {
	if addr.Network() == "unix" {
		return "unix:" + addr.String()
	}
	return addr.String()
}

// URL is where addr is, for people and clients: http://127.0.0.1:8080, or http+unix://%2Frun%2Fstint.sock.
func URL(scheme string, addr net.Addr) string {
	if addr.Network() == "unix" {
		return scheme + "+unix://" + url.PathEscape(addr.String())
	}
	return scheme + "://" + addr.String()
}
