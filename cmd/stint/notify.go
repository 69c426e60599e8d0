package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"time"
)

// notifier tells systemd how the service is, as sd_notify(3) says: one datagram of lines
// NAME=VALUE for each change. Its zero value, for a process that no systemd has started, tells nobody.
// It is not safe for concurrent use.
type notifier struct {
	socket string // a path; one that begins with @ is abstract
}

// newNotifier reads NOTIFY_SOCKET. Sockets that are neither a path nor abstract, such as
// those of virtual machines, are not spoken to.
func newNotifier(env func(string) string) notifier {
	if s := env("NOTIFY_SOCKET"); strings.HasPrefix(s, "/") || strings.HasPrefix(s, "@") {
		return notifier{s}
	}
	return notifier{}
}

// ready says that the listeners accept connections, and what systemctl status shows.
func (n notifier) ready(status string) error { return n.send("READY=1", "STATUS="+oneLine(status)) }

// reloading says that the configuration is read again, until the next ready.
func (n notifier) reloading() error { return n.send("RELOADING=1") }

// stopping says that the service drains.
func (n notifier) stopping() error { return n.send("STOPPING=1", "STATUS=draining") }

func (n notifier) send(lines ...string) error {
	if n.socket == "" {
		return nil
	}
	// systemd reads at once; whoever does not must not hold the service up.
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Name: n.socket, Net: "unixgram"})
	if err != nil {
		return fmt.Errorf("cannot tell systemd by NOTIFY_SOCKET: %w", err)
	}
	if err = conn.SetWriteDeadline(time.Now().Add(time.Second)); err == nil {
		_, err = conn.Write([]byte(strings.Join(lines, "\n")))
	}
	if closing := conn.Close(); err == nil {
		err = closing
	}
	if err != nil {
		return fmt.Errorf("cannot tell systemd by NOTIFY_SOCKET: %w", err)
	}
	return nil
}

// life is a service that runs, between its start and its end: what signals and systemd see of it.
type life struct {
	ended   <-chan error
	hangups <-chan os.Signal
	reload  func() error  // logs its fault
	status  func() string // when all is well
	log     *slog.Logger
	systemd notifier
}

// follow returns when the service has ended; it drains once ctx has ended. A reload that is
// refused leaves the service as it was.
func (l life) follow(ctx context.Context) error {
	l.told(l.systemd.ready(l.status()))
	hangups, stopping := l.hangups, ctx.Done()
	for {
		select {
		case <-hangups:
			l.told(l.systemd.reloading())
			status := l.status
			if err := l.reload(); err != nil {
				status = func() string { return "the reload was refused, the former configuration is in force: " + err.Error() }
			}
			l.told(l.systemd.ready(status()))
		case <-stopping:
			l.told(l.systemd.stopping())
			hangups, stopping = nil, nil
		case err := <-l.ended:
			return failed(err)
		}
	}
}

// told logs that systemd was not told, of which the service does not end.
func (l life) told(err error) {
	if err != nil {
		l.log.Warn("systemd does not know how the service is", "error", err)
	}
}

// oneLine keeps a status from being read as further lines of the protocol.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
