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

// trouble is an error with a hint.
type trouble struct{ what, hint string }

func (t *trouble) Error() string {
	if t.hint == "" {
		return t.what
	}
	return t.what + ": " + t.hint
}

// described is an error of the client with the address and a hint.
type described struct {
	trouble

	at  string
	err error
}

func (d *described) Error() string { return d.at + ": " + d.trouble.Error() }
func (d *described) Unwrap() error { return d.err }

// describe makes one line of an error of the client: address, what is wrong, and a hint. It
// wraps the error, and has no password in it. Nil stays nil.
func describe(err error, o Options) error {
	if err == nil || errors.Is(err, context.Canceled) || errors.As(err, new(*described)) {
		return err
	}
	at := strings.Join(o.Addrs, ", ")
	if op := (*net.OpError)(nil); errors.As(err, &op) && op.Addr != nil {
		at = op.Addr.String()
	}
	known := (*trouble)(nil)
	if !errors.As(err, &known) {
		known = ofServer(err, o)
	}
	if known == nil {
		known = ofNetwork(err, o)
	}
	if known == nil {
		known = ofTLS(err)
	}
	if known == nil {
		known = &trouble{what: err.Error()}
	}
	return &described{trouble{conceal(known.what, o), known.hint}, at, err}
}

// conceal makes one line of a text and removes passwords: a server may repeat input that it does
// not understand.
func conceal(text string, o Options) string {
	for _, secret := range []string{o.Password, o.SentinelPassword} {
		// A shorter one is no secret, and replacing it would make words unreadable.
		if len(secret) >= 4 {
			text = strings.ReplaceAll(text, secret, "***")
		}
	}
	return strings.Join(strings.Fields(text), " ")
}

const listed = "give it what docs/reference/redis.md lists"

// refusals maps error replies of servers to what they mean. The first entry whose part occurs in
// the reply is used.
var refusals = []struct{ part, what, hint string }{
	{"WRONGPASS", "the user or the password is wrong", "correct them in the URL, or in the file of password_file"},
	{"NOAUTH", "a password is needed", "write redis://user:password@host, or add ?password_file=FILE"},
	{"called without any password", "the server has no password", "leave it out of the URL"},
	{"no password is set", "the server has no password", "leave it out of the URL"},
	{"NOPERM", "the user lacks a permission", listed},
	{"The user executing the script can't", "the user lacks a permission", listed},
	{"DENIED", "the server is in protected mode", "set a password in its configuration, or bind it to loopback"},
	{"MOVED", errCluster.what, errCluster.hint},
	{"cluster support disabled", errNoCluster.what, errNoCluster.hint},
	{"SELECT is not allowed in cluster mode", errCluster.what, errCluster.hint},
	{"DB index is out of range", "the server has fewer databases than the URL asks for", "give a lower number, or raise databases in its configuration"},
	{"No such master", "the sentinels know no master of that name", "correct the last part of redis+sentinel://host:26379/mymaster"},
	{"READONLY", errReplica.what, errReplica.hint},
	{"LOADING", "the server loads its data", "wait"},
	{"MASTERDOWN", "this is a replica that has lost its master", errReplica.hint},
	{"CLUSTERDOWN", "the cluster does not serve all slots", "wait for its failover, or look at CLUSTER INFO"},
	{"MISCONF", "the server refuses writes because it cannot save", "look at its log and its disk"},
	{"NOREPLICAS", "the server refuses writes because too few replicas are in step", "look at INFO replication and min-replicas-to-write"},
	{"OOM", "the server is full", "raise its maxmemory"},
	{"BUSY", "the server is busy with a script", "look at its SLOWLOG"},
	{"max number of clients", "the server has all the clients that it takes", "raise its maxclients"},
}

// ofServer explains an error reply of a server; nil when err is none.
func ofServer(err error, o Options) *trouble {
	var answer *rueidis.RedisError
	if !errors.As(err, &answer) || answer.IsNil() {
		return nil
	}
	text := answer.Error()
	if strings.Contains(text, "unknown command") && strings.Contains(strings.ToUpper(text), "SENTINEL") {
		return &trouble{"this is no sentinel", "write redis://host:6379 for redis+sentinel://"}
	}
	for _, r := range refusals {
		if !strings.Contains(text, r.part) {
			continue
		}
		hint := r.hint
		if o.Topology == Sentinel && (r.part == "WRONGPASS" || r.part == "NOAUTH") {
			hint += "; the sentinels' own are sentinel_username and sentinel_password"
		}
		return &trouble{r.what + " (" + text + ")", hint}
	}
	return &trouble{what: "the server refuses: " + text}
}

// ofNetwork explains an error on the way to a server; nil for errors that it does not know.
func ofNetwork(err error, o Options) *trouble {
	var unknown *net.DNSError
	var late net.Error
	var number syscall.Errno
	switch {
	case errors.As(err, &unknown) && !unknown.IsTimeout:
		return &trouble{fmt.Sprintf("the name %q is not found", unknown.Name), "correct the host in the URL"}
	case errors.Is(err, syscall.ECONNREFUSED):
		return &trouble{"nobody listens there (connection refused)", "start the server, or correct the address"}
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF), errors.Is(err, syscall.ECONNRESET), errors.Is(err, syscall.EPIPE):
		if o.TLS == nil {
			return &trouble{"the connection was closed", "look at the server's log, and write rediss:// if it wants TLS"}
		}
		return &trouble{"the connection was closed", "look at the server's log; it may want a certificate, give one with cert=FILE and key=FILE"}
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, os.ErrDeadlineExceeded), errors.As(err, &late) && late.Timeout():
		hint := "look at the host and the way to it"
		if o.TLS != nil {
			hint += ", and write redis:// if it does not speak TLS"
		}
		return &trouble{"no answer in time", hint}
	case strings.Contains(err.Error(), "unknown message type"):
		return &trouble{"what is there does not speak the protocol of Redis", "correct the address"}
	case errors.Is(err, rueidis.ErrClosing):
		return &trouble{what: "the connection was closed"}
	case err.Error() == "the redis role is not master":
		return &trouble{"the sentinels name a master that is a replica", "wait for their failover to end"}
	case errors.As(err, &number):
		return &trouble{"there is no way to it (" + number.Error() + ")", "look at the network, or correct the address"}
	}
	return nil
}

// ofTLS explains why a handshake failed; nil when none did.
func ofTLS(err error) *trouble {
	var plain tls.RecordHeaderError
	var authority x509.UnknownAuthorityError
	var name x509.HostnameError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &plain):
		return &trouble{"it does not speak TLS", "write redis:// for rediss://, or give the TLS port"}
	case errors.As(err, &authority):
		return &trouble{"nobody known here signed its certificate", "name the authority with ca=FILE"}
	case errors.As(err, &name):
		return &trouble{"its certificate is for another name (" + name.Error() + ")", "give that with server_name"}
	case errors.As(err, &invalid):
		return &trouble{"its certificate is not valid (" + invalid.Error() + ")", "renew it, or set the clock"}
	case strings.Contains(err.Error(), "remote error: tls:"):
		return &trouble{"it refuses the handshake (" + err.Error() + ")", "it may want a certificate, give one with cert=FILE and key=FILE"}
	}
	return nil
}
