package redis

import (
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

const (
	portOfServer   = "6379"
	portOfSentinel = "26379"

	urlForm = "write it as redis://user:password@host:6379"
)

// schemes are how a URL may begin.
var schemes = map[string]struct {
	topology Topology
	tls      bool
}{
	"redis": {Standalone, false}, "redis+sentinel": {Sentinel, false}, "redis+cluster": {Cluster, false},
	"rediss": {Standalone, true}, "rediss+sentinel": {Sentinel, true}, "rediss+cluster": {Cluster, true},
	"valkey": {Standalone, false}, "valkey+sentinel": {Sentinel, false}, "valkey+cluster": {Cluster, false},
	"valkeys": {Standalone, true}, "valkeys+sentinel": {Sentinel, true}, "valkeys+cluster": {Cluster, true},
}

// ParseURL returns the Options that a URL asks for:
//
//	redis://user:password@host:6379/3?timeout=20ms
//	rediss://host?password_file=/run/secrets/redis&ca=ca.pem
//	redis+sentinel://host1:26379,host2,host3/mymaster/3
//	redis+cluster://host1:6379,host2,host3
//
// An s after redis is TLS, and valkey may stand for redis. docs/reference/redis.md
// has all parameters. The files that the URL names are read, and nothing is
// connected to. With TLS and no server_name, TLS.ServerName stays empty: the host
// of each address is the name that its certificate must have.
//
// An error says everything that is wrong, one line each. It repeats nothing of the
// URL that can be a password or a part of one.
func ParseURL(s string) (Options, error) {
	r := reading{seen: map[string]string{}}
	r.read(s)
	if err := errors.Join(r.errs...); err != nil {
		return Options{}, err
	}
	// complete sets defaults, which the Options of a URL are to leave open.
	completed := r.o
	if err := completed.complete(); err != nil {
		return Options{}, err
	}
	return r.o, nil
}

// reading is a URL on the way to Options.
type reading struct {
	o    Options
	seen map[string]string // parameters by name
	errs []error

	// frank says that wrong parts of the URL may be shown. They must not be where they may be
	// the rest of a password that has a / or a ? in it.
	frank bool
	// broken says that a host is: what follows may be the rest of a password.
	broken bool
	// passwordless says that there is a user and no password beside it.
	passwordless bool
}

func (r *reading) bad(format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("redis: "+format, args...))
}

func (r *reading) read(s string) {
	scheme, rest, ok := strings.Cut(s, "://")
	if !ok {
		r.bad("the URL has no scheme, %s", urlForm)
		return
	}
	kind, ok := schemes[strings.ToLower(scheme)]
	if !ok {
		r.bad("the scheme of the URL is not known, want redis, rediss (TLS), redis+sentinel, rediss+sentinel, redis+cluster or rediss+cluster")
		return
	}
	if strings.Contains(rest, "#") {
		r.bad("the URL has a # in it, write it as %%23")
		return
	}
	r.o.Topology = kind.topology
	if kind.tls {
		r.o.TLS = &tls.Config{MinVersion: tls.VersionTLS12}
	}
	rest, query, _ := strings.Cut(rest, "?")
	authority, path, _ := strings.Cut(rest, "/")
	hosts := authority
	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		r.user(authority[:at])
		hosts = authority[at+1:]
	}
	r.frank = !strings.Contains(path+query, "@")
	if strings.Contains(path, "@") {
		r.bad("there is an @ after the hosts: if it ends a password, write / and ? in that as %%2F and %%3F, otherwise the @ as %%40")
		return
	}
	r.hosts(hosts)
	r.broken = len(r.errs) > 0
	r.path(path)
	r.query(query)
	r.finish()
}

func (r *reading) user(text string) {
	name, password, both := strings.Cut(text, ":")
	var err1, err2 error
	r.o.Username, err1 = url.PathUnescape(name)
	r.o.Password, err2 = url.PathUnescape(password)
	// The texts of these errors contain the user or the password.
	if err1 != nil || err2 != nil {
		r.bad("the user or the password has a %% that begins no %%XX, write it as %%25")
	}
	r.passwordless = text != "" && !both
}

func (r *reading) hosts(text string) {
	if text == "" {
		r.bad("the URL has no host, %s", urlForm)
		return
	}
	port := portOfServer
	if r.o.Topology == Sentinel {
		port = portOfSentinel
	}
	list := strings.Split(text, ",")
	if len(list) > 1 && r.o.Topology == Standalone {
		r.bad("%d addresses: several belong to sentinels or to a cluster, write redis+sentinel://host,host/mymaster or redis+cluster://host,host", len(list))
		return
	}
	for i, address := range list {
		full, hint := withPort(address, port)
		if hint != "" {
			r.bad("address %d of the URL: %s", i+1, hint)
			continue
		}
		if slices.Contains(r.o.Addrs, full) {
			r.bad("address %d of the URL is there twice", i+1)
		}
		r.o.Addrs = append(r.o.Addrs, full)
	}
}

// withPort returns an address as host:port, or what is wrong with it, which does
// not repeat it: of "redis://:secret" the port is the password.
func withPort(address, port string) (full, hint string) {
	host := address
	if strings.HasPrefix(address, "[") {
		inside, after, closed := strings.Cut(address[1:], "]")
		ip, err := netip.ParseAddr(inside)
		if !closed || err != nil || !ip.Is6() || ip.Zone() != "" || after != "" && after[0] != ':' {
			return "", "want an IPv6 address in the brackets, as in [2001:db8::1]:6379"
		}
		host = ip.String()
		if after != "" {
			port = after[1:]
		}
	} else {
		if strings.Count(address, ":") > 1 {
			return "", "write an IPv6 address in brackets, as in [2001:db8::1]:6379, and a : in a password as %3A"
		}
		if name, number, found := strings.Cut(address, ":"); found {
			host, port = name, number
		}
		if !isHost(host) {
			return "", "want a host, as in redis.example.com:6379 or 127.0.0.1:6379"
		}
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || n == 0 {
		return "", "its port is no number from 1 to 65535"
	}
	return net.JoinHostPort(host, strconv.FormatUint(n, 10)), ""
}

// isHost reports whether text can be a name of DNS or an IPv4 address.
// Underscores are in the names of containers.
func isHost(text string) bool {
	if text == "" || len(text) > 253 {
		return false
	}
	for i := range len(text) {
		c := text[i]
		letter := 'a' <= c|0x20 && c|0x20 <= 'z'
		if !letter && ('0' > c || c > '9') && c != '.' && c != '-' && c != '_' {
			return false
		}
	}
	return true
}

func (r *reading) path(text string) {
	if r.o.Topology == Sentinel {
		master, db, _ := strings.Cut(text, "/")
		var err error
		if r.o.Master, err = url.PathUnescape(master); err != nil || r.o.Master == "" {
			r.bad("the URL of sentinels wants the name of the master, write redis+sentinel://host:26379/mymaster")
		}
		text = db
	}
	if text != "" {
		r.seen["db"] = text
		r.number("db", text, &r.o.DB)
	}
}

func (r *reading) number(name, text string, to *int) {
	n, err := strconv.ParseUint(text, 10, 31)
	if err != nil {
		r.bad("%s wants a number from 0%s", name, r.quoted(text))
		return
	}
	*to = int(n)
}

// quoted returns a wrong text for an error, if it may be shown.
func (r *reading) quoted(text string) string {
	if !r.frank || r.broken {
		return ""
	}
	return fmt.Sprintf(", this is %q", text)
}

// String returns the URL of the Options without passwords and without the names of
// files, for logs and greetings. Parameters that have their default are left out.
func (o Options) String() string {
	var b strings.Builder
	b.WriteString("redis")
	if o.TLS != nil {
		b.WriteByte('s')
	}
	switch o.Topology {
	case Sentinel:
		b.WriteString("+sentinel")
	case Cluster:
		b.WriteString("+cluster")
	case Standalone:
	}
	b.WriteString("://")
	if o.Username != "" {
		b.WriteString(url.User(o.Username).String() + "@")
	}
	b.WriteString(strings.Join(o.Addrs, ","))
	if o.Master != "" {
		b.WriteString("/" + url.PathEscape(o.Master))
	}
	if o.DB != 0 {
		b.WriteString("/" + strconv.Itoa(o.DB))
	}
	separator := "?"
	add := func(name, value string) {
		b.WriteString(separator + name + "=" + strings.ReplaceAll(url.QueryEscape(value), "+", "%20"))
		separator = "&"
	}
	if o.Prefix != "" && o.Prefix != DefaultPrefix {
		add("prefix", o.Prefix)
	}
	if o.Timeout != 0 && o.Timeout != DefaultTimeout {
		add("timeout", o.Timeout.String())
	}
	if o.Instances != 0 {
		add("instances", strconv.Itoa(o.Instances))
	}
	if o.TLS != nil && o.TLS.ServerName != "" {
		add("server_name", o.TLS.ServerName)
	}
	if o.TLS != nil && o.TLS.InsecureSkipVerify {
		add("insecure_skip_verify", "true")
	}
	return b.String()
}
