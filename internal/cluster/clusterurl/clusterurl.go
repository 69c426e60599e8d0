// Package clusterurl opens the register that a URL names. It knows all backends, and nothing else does.
package clusterurl

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/stint-io/stint/internal/cluster"
	"github.com/stint-io/stint/internal/cluster/alone"
	"github.com/stint-io/stint/internal/cluster/etcd"
	"github.com/stint-io/stint/internal/cluster/kubernetes"
	"github.com/stint-io/stint/internal/cluster/redis"
	store "github.com/stint-io/stint/store/redis"
)

const forms = "want etcd://host:2379,host:2379/prefix, etcds:// (TLS), kubernetes://namespace/name, redis://host:6379 and its kinds, or alone"

// Open returns the register that a URL names. Nothing is connected to, but for the log-in of a user
// at etcd; files that the URL names are read. Errors repeat nothing of the URL that can be a password.
//
//	alone                                      this process, which is also ""
//	etcd://user:password@host:2379,host/prefix its records are below /prefix, "stint" by default
//	etcds://host?ca=ca.pem&cert=c.pem&key=k.pem&server_name=n&password_file=f
//	kubernetes://namespace/name                Lease objects whose names begin with name
//	kubernetes:///name?server=https://host:6443&token_file=f&ca=ca.pem
//	redis+sentinel://host,host/master?replicas=1, and all that store/redis takes
//
// replicas is how many replicas have to confirm each call: 0 for one server, otherwise 1 by default.
func Open(text string) (cluster.Register, error) {
	if text == "" || text == "alone" {
		return alone.New(), nil
	}
	u, err := parse(text)
	if err != nil {
		return nil, err
	}
	var r cluster.Register
	switch kind, _, _ := strings.Cut(u.scheme, "+"); kind {
	case "etcd", "etcds":
		r, err = openEtcd(u)
	case "kubernetes":
		r, err = openKubernetes(u)
	case "redis", "rediss", "valkey", "valkeys":
		return openRedis(text, u)
	default:
		return nil, fmt.Errorf("cluster: the scheme of the URL is not known, %s", forms)
	}
	if err != nil {
		return nil, err
	}
	return r, nil
}

// shown are the parameters that Redacted keeps: others may be misspelled ones that have a password.
var shown = []string{"ca", "cert", "db", "instances", "key", "password_file", "prefix", "replicas", "server", "server_name", "timeout", "token_file"}

// plainHosts are hosts with ports, and a path. What else stands in the place of a host may be the rest of a password.
var plainHosts = regexp.MustCompile(`^` + oneHost + `(?:,` + oneHost + `)*(?:/[A-Za-z0-9._/-]*)?$`)

const oneHost = `(?:\[[0-9A-Fa-f:.]*\]|[A-Za-z0-9._-]*)(?::[0-9]{1,5})?`

// brokenURL is what was meant to be a URL, or has a password as a parameter.
var brokenURL = regexp.MustCompile(`(?i)^(?:redis|valkey|etcd)[a-z+]*:|passw[a-z]*=`)

// Redacted returns a URL without what may be a password, for people. A text without a scheme that cannot be a
// path is "...".
func Redacted(text string) string {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		if strings.Contains(text, "@") && strings.Contains(text, ":") || brokenURL.MatchString(text) {
			return "..."
		}
		return text
	}
	user := ""
	if at := strings.LastIndexByte(rest, '@'); at >= 0 {
		name, _, both := strings.Cut(rest[:at], ":")
		if both && plainHosts.MatchString(name) && name != "" {
			user = name + "@"
		}
		rest = rest[at+1:]
	}
	rest, query, _ := strings.Cut(rest, "?")
	if !plainHosts.MatchString(rest) {
		rest = "..."
	}
	var kept []string
	for pair := range strings.SplitSeq(query, "&") {
		if name, _, _ := strings.Cut(pair, "="); slices.Contains(shown, name) {
			kept = append(kept, pair)
		}
	}
	if rest = user + rest; len(kept) > 0 {
		rest += "?" + strings.Join(kept, "&")
	}
	if strings.Trim(strings.ToLower(scheme), "abcdefghijklmnopqrstuvwxyz+") != "" {
		scheme = "..."
	}
	return scheme + "://" + rest
}

// address is a URL in its parts. net/url knows one host only.
type address struct {
	scheme         string
	user, password string
	hosts          string // with commas
	path           string // without the first slash
	query          map[string]string
}

func parse(text string) (address, error) {
	scheme, rest, ok := strings.Cut(text, "://")
	if !ok {
		return address{}, fmt.Errorf("cluster: the URL has no scheme, %s", forms)
	}
	u := address{scheme: strings.ToLower(scheme), query: map[string]string{}}
	rest, query, _ := strings.Cut(rest, "?")
	u.hosts, u.path, _ = strings.Cut(rest, "/")
	if at := strings.LastIndexByte(u.hosts, '@'); at >= 0 {
		user, password, _ := strings.Cut(u.hosts[:at], ":")
		u.hosts = u.hosts[at+1:]
		var err1, err2 error
		u.user, err1 = url.PathUnescape(user)
		u.password, err2 = url.PathUnescape(password)
		if err1 != nil || err2 != nil {
			return address{}, errors.New("cluster: the user or the password has a % that begins no %XX, write it as %25")
		}
	}
	if strings.Contains(u.path, "@") {
		return address{}, errors.New("cluster: there is an @ after the hosts: write a / in a password as %2F, and an @ as %40")
	}
	for pair := range strings.SplitSeq(query, "&") {
		if pair == "" {
			continue
		}
		name, raw, _ := strings.Cut(pair, "=")
		value, err := url.PathUnescape(raw)
		if err != nil || value == "" {
			return address{}, errors.New("cluster: a parameter of the URL has no value, or a % that begins no %XX")
		}
		u.query[name] = value
	}
	return u, nil
}

// only returns an error if there are other parameters.
func (u *address) only(known ...string) error {
	for name := range u.query {
		if !slices.Contains(known, name) {
			return fmt.Errorf("cluster: a parameter of the URL is not known, known for %s are %s", u.scheme, strings.Join(known, ", "))
		}
	}
	return nil
}

func openEtcd(u address) (*etcd.Register, error) {
	known := []string{"password_file"}
	if u.scheme == "etcds" {
		known = append(known, "ca", "cert", "key", "server_name")
	}
	if err := u.only(known...); err != nil {
		return nil, err
	}
	if u.scheme != "etcd" && u.scheme != "etcds" {
		return nil, fmt.Errorf("cluster: the scheme of the URL is not known, %s", forms)
	}
	o := etcd.Options{Username: u.user, Password: u.password}
	if file := u.query["password_file"]; file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("cluster: %w", err)
		}
		o.Password = strings.TrimSpace(string(text))
	}
	for i, host := range strings.Split(u.hosts, ",") {
		endpoint, ok := withPort(host, "2379")
		if !ok {
			return nil, fmt.Errorf("cluster: address %d of the URL is no host:port, write it as etcd://host:2379,host:2379", i+1)
		}
		o.Endpoints = append(o.Endpoints, endpoint)
	}
	if prefix := strings.Trim(u.path, "/"); prefix != "" {
		o.Prefix = prefix + "/"
	}
	if u.scheme == "etcds" {
		var err error
		if o.TLS, err = secure(u); err != nil {
			return nil, err
		}
	}
	return etcd.New(o)
}

// withPort adds a port to a host that has none.
func withPort(host, port string) (string, bool) {
	if name, number, err := net.SplitHostPort(host); err == nil {
		n, err := strconv.ParseUint(number, 10, 16)
		return host, err == nil && n != 0 && name != ""
	}
	inner := strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if inner == "" || strings.Contains(inner, ":") != strings.HasPrefix(host, "[") {
		return "", false
	}
	return net.JoinHostPort(inner, port), true
}

// secure returns the TLS of a URL. The client's certificate is read for each connection, since it
// may be replaced before it expires.
func secure(u address) (*tls.Config, error) {
	config := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: u.query["server_name"]}
	if file := u.query["ca"]; file != "" {
		pem, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("cluster: %w", err)
		}
		config.RootCAs = x509.NewCertPool()
		if !config.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("cluster: %s has no certificate", file)
		}
	}
	cert, key := u.query["cert"], u.query["key"]
	if (cert == "") != (key == "") {
		return nil, errors.New("cluster: cert and key belong together")
	}
	if cert != "" {
		load := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
			c, err := tls.LoadX509KeyPair(cert, key)
			return &c, err
		}
		if _, err := load(nil); err != nil {
			return nil, fmt.Errorf("cluster: %w", err)
		}
		config.GetClientCertificate = load
	}
	return config, nil
}

func openKubernetes(u address) (*kubernetes.Register, error) {
	if err := u.only("server", "token_file", "ca"); err != nil {
		return nil, err
	}
	if u.scheme != "kubernetes" || u.user != "" || u.password != "" || strings.Contains(u.path, "/") {
		return nil, errors.New("cluster: write it as kubernetes://namespace/name")
	}
	return kubernetes.New(kubernetes.Options{
		Namespace: u.hosts, Name: u.path,
		Server: u.query["server"], TokenFile: u.query["token_file"], CAFile: u.query["ca"],
	})
}

// openRedis reads what the URL shares with that of a store as the store does.
func openRedis(text string, u address) (cluster.Register, error) {
	base, query, _ := strings.Cut(text, "?")
	var others []string
	for pair := range strings.SplitSeq(query, "&") {
		if name, _, _ := strings.Cut(pair, "="); name != "replicas" && pair != "" {
			others = append(others, pair)
		}
	}
	if len(others) > 0 {
		base += "?" + strings.Join(others, "&")
	}
	s, err := store.ParseURL(base)
	if err != nil {
		return nil, fmt.Errorf("cluster: %w", err)
	}
	o := redis.Options{
		Addrs: s.Addrs, Master: s.Master, DB: s.DB,
		Username: s.Username, Password: s.Password,
		SentinelUsername: s.SentinelUsername, SentinelPassword: s.SentinelPassword,
		TLS: s.TLS, Prefix: s.Prefix,
	}
	switch s.Topology {
	case store.Standalone:
	case store.Sentinel:
		o.Topology, o.Replicas = redis.Sentinel, 1
	case store.Cluster:
		o.Topology, o.Replicas = redis.Cluster, 1
	}
	if number, ok := u.query["replicas"]; ok {
		n, err := strconv.ParseUint(number, 10, 8)
		if err != nil {
			return nil, errors.New("cluster: replicas wants a number from 0 to 255")
		}
		o.Replicas = int(n)
	}
	r, err := redis.New(o)
	if err != nil {
		return nil, err
	}
	return r, nil
}
