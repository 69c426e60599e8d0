package redis

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"strings"
	"time"

	"github.com/stint-io/stint/store"
)

// The defaults of [Options].
const (
	// DefaultTimeout is how long a call may take. Not longer: requests should not wait longer
	// for their limiter. Not shorter: a garbage collection here or a fork of the server takes
	// part of it.
	DefaultTimeout = 50 * time.Millisecond

	// DefaultPrefix begins every key and channel, so that an ACL can name them.
	DefaultPrefix = "stint:"
)

// Topology says what the addresses lead to. The zero value is Standalone.
type Topology uint8

// The topologies.
const (
	Standalone Topology = iota // one server
	Sentinel                   // the addresses are sentinels, which know the master
	Cluster                    // any nodes of a Redis Cluster
)

// Options configure a [Store]. [ParseURL] makes them from a URL; Addrs must not be
// empty.
type Options struct {
	// Topology and Addrs (host:port) say where Redis or Valkey is.
	Topology Topology
	Addrs    []string
	// Master is the name that the sentinels know the master by.
	Master string
	// DB is the number of the database; a Cluster has only 0.
	DB int

	// Username and Password are those of Redis' ACL; "" = none.
	Username, Password string
	// SentinelUsername and SentinelPassword are for the sentinels themselves.
	SentinelUsername, SentinelPassword string
	// TLS encrypts the connections, those to sentinels included; nil = plain.
	TLS *tls.Config

	// Prefix begins every key and channel; "" = DefaultPrefix. Stores with
	// different prefixes share nothing.
	Prefix string

	// Timeout bounds a Take; after it the charges are decided as their OnFailure says. 0 =
	// DefaultTimeout.
	Timeout time.Duration

	// Local takes the charges whose OnFailure is store.FailLocal while Redis
	// does not answer. Nil = those charges fail as with store.FailTake. The Store
	// does not close it.
	Local store.Store
	// Instances is the number of processes by which a limit is divided then; 0 = as many as
	// were last seen at this prefix in Redis, or 16 if Redis was never reached.
	Instances int

	// Logger takes a line when the connection is lost, refused or found again;
	// nil = slog.Default. Keys and passwords are never logged.
	Logger *slog.Logger
}

// complete sets the defaults and returns everything that is wrong.
func (o *Options) complete() error {
	if o.Timeout == 0 {
		o.Timeout = DefaultTimeout
	}
	if o.Prefix == "" {
		o.Prefix = DefaultPrefix
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("redis: "+format, args...)) }
	if len(o.Addrs) == 0 {
		bad("no address, give one such as 127.0.0.1:6379")
	}
	for _, a := range o.Addrs {
		if _, port, err := net.SplitHostPort(a); err != nil || port == "" {
			bad("address %q is not host:port, write it as 127.0.0.1:6379", a)
		}
	}
	if (o.Topology == Sentinel) != (o.Master != "") {
		bad("the name of a master belongs to sentinels, and they need one: redis+sentinel://host:26379/mymaster")
	}
	if o.DB < 0 || o.DB != 0 && o.Topology == Cluster {
		bad("database %d: a cluster has only database 0, others begin at 0", o.DB)
	}
	if o.Timeout < time.Millisecond {
		bad("timeout %v is below a millisecond", o.Timeout)
	}
	if strings.ContainsAny(o.Prefix, "{}") {
		bad("prefix %q has a brace, which marks what makes a slot of a cluster", o.Prefix)
	}
	if o.Instances < 0 {
		bad("%d instances, want at least 0", o.Instances)
	}
	return errors.Join(errs...)
}
