package redis

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/redis/rueidis"
)

// described is an error with an address, and a way out in place of its own text.
type described struct {
	text string
	err  error
}

func (d *described) Error() string { return d.text }
func (d *described) Unwrap() error { return d.err }

// describe makes one line of an error of the client: where, what, and the way out.
// It wraps the error, and has no password in it. Nil stays nil.
func describe(err error, o Options) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.As(err, new(*described)) {
		return err
	}
	at := strings.Join(o.Addrs, ", ")
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Addr != nil {
		at = op.Addr.String()
	}
	text := ofServer(err, o)
	if text == "" {
		text = ofNetwork(err, o)
	}
	if text == "" {
		text = ofTLS(err)
	}
	if text == "" {
		text = err.Error()
	}
	return &described{conceal(strings.Join(strings.Fields(at+": "+text), " "), o), err}
}

// conceal takes the passwords out of a text. A server may repeat what it does not
// understand.
func conceal(text string, o Options) string {
	for _, secret := range []string{o.Password, o.SentinelPassword} {
		// One that short is no secret, and would tear the words apart.
		if len(secret) >= 4 {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	return text
}

// refusals are what servers answer, and what to do. The first that is in the answer
// counts; %s is the answer.
var refusals = []struct{ part, text string }{
	{"WRONGPASS", "the user or the password is wrong (%s): correct them in the URL, or in the file of password_file"},
	{"NOAUTH", "a password is needed (%s): write redis://user:password@host, or add ?password_file=FILE"},
	{"called without any password", "the server has no password: leave it out of the URL (%s)"},
	{"no password is set", "the server has no password: leave it out of the URL (%s)"},
	{"NOPERM", "the user lacks a permission (%s): give it what docs/reference/redis.md lists"},
	{"The user executing the script can't", "the user lacks a permission (%s): give it what docs/reference/redis.md lists"},
	{"DENIED", "the server is in protected mode: set a password in its configuration, or bind it to loopback (%s)"},
	{"MOVED", errCluster.Error()},
	{"cluster support disabled", errNoCluster.Error()},
	{"SELECT is not allowed in cluster mode", errCluster.Error()},
	{"DB index is out of range", "the server has fewer databases than the URL asks for: give a lower number, or raise databases in its configuration (%s)"},
	{"No such master", "the sentinels know no master of that name: correct the last part of redis+sentinel://host:26379/mymaster (%s)"},
	{"READONLY", errReplica.Error() + " (%s)"},
	{"LOADING", "the server loads its data: wait (%s)"},
	{"MASTERDOWN", "the server is a replica that has lost its master: give the address of the master, or of sentinels that know it (%s)"},
	{"CLUSTERDOWN", "the cluster does not serve all slots: wait for its failover, or look at CLUSTER INFO (%s)"},
	{"MISCONF", "the server refuses writes because it cannot save: look at its log and its disk (%s)"},
	{"NOREPLICAS", "the server refuses writes because too few replicas are in step: look at INFO replication and min-replicas-to-write (%s)"},
	{"OOM", "the server is full: raise its maxmemory (%s)"},
	{"BUSY", "the server is busy with a script of somebody: look at its SLOWLOG (%s)"},
	{"max number of clients", "the server has as many clients as it takes: raise its maxclients (%s)"},
}

// ofServer describes what a server answered; "" when it did not.
func ofServer(err error, o Options) string {
	var answer *rueidis.RedisError
	if !errors.As(err, &answer) || answer.IsNil() {
		return ""
	}
	text := answer.Error()
	if strings.Contains(text, "unknown command") && strings.Contains(strings.ToUpper(text), "SENTINEL") {
		return "this is no sentinel: write redis://host:6379 for redis+sentinel://"
	}
	for _, r := range refusals {
		if strings.Contains(text, r.part) {
			if o.Topology == Sentinel && (r.part == "WRONGPASS" || r.part == "NOAUTH") {
				return fmt.Sprintf(r.text, text) + "; what the sentinels themselves ask for is sentinel_username and sentinel_password"
			}
			return strings.ReplaceAll(r.text, "%s", text)
		}
	}
	return "the server refuses: " + text
}

// ofNetwork describes an error on the way to a server.
func ofNetwork(err error, o Options) string {
	var unknown *net.DNSError
	var timeout net.Error
	switch {
	case errors.As(err, &unknown) && !unknown.IsTimeout:
		return fmt.Sprintf("the name %q is not found: correct the host in the URL", unknown.Name)
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nobody listens there (connection refused): start the server, or correct the address"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return fmt.Sprintf("there is no way to it (%v): look at the network, or correct the address", errno(err))
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		if o.TLS == nil {
			return "the connection was closed: look at the server's log, and write rediss:// if it wants TLS"
		}
		return "the connection was closed: look at the server's log"
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &timeout) && timeout.Timeout():
		if o.TLS != nil {
			return "no answer in time: look at the host and the way to it, and write redis:// if it does not speak TLS"
		}
		return "no answer in time: look at the host and the way to it"
	case errors.Is(err, rueidis.ErrClosing):
		return "the connection was closed"
	case err.Error() == "the redis role is not master":
		return "the sentinels name a master that is a replica: wait for their failover to end"
	}
	return ""
}

func errno(err error) error {
	var number syscall.Errno
	if errors.As(err, &number) {
		return number
	}
	return err
}

// ofTLS describes a failed handshake.
func ofTLS(err error) string {
	var plain tls.RecordHeaderError
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	var alert tls.AlertError
	switch {
	case errors.As(err, &plain):
		return "it does not speak TLS: write redis:// for rediss://, or give the TLS port"
	case errors.As(err, &authority):
		return "nobody known here signed its certificate: name the authority with ca=FILE"
	case errors.As(err, &name):
		return fmt.Sprintf("its certificate is for another name (%v): give that with server_name", name)
	case errors.As(err, &invalid):
		return fmt.Sprintf("its certificate is not valid: %v", invalid)
	case errors.As(err, &alert), strings.Contains(err.Error(), "remote error: tls:"):
		return fmt.Sprintf("it refuses the handshake (%v): it may want a certificate, give one with cert=FILE and key=FILE", err)
	}
	return ""
}
