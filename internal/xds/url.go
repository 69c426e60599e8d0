package xds

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
)

// The bounds of [Options].
const (
	// DefaultBackoff is how long the first wait is after a stream has ended. Not shorter: a server that is being
	// replaced is back after some seconds. Not longer: limits are not changed meanwhile.
	DefaultBackoff = time.Second
	// DefaultBackoffMax is the longest wait. Not longer: nobody wants to wait for a server that is back.
	DefaultBackoffMax = 30 * time.Second
	// DefaultMaxBytes is the largest message. Each resource is held to the bounds of a file of limits beside that.
	DefaultMaxBytes = 16 << 20
)

// Options say where the configuration is. Make them with [ParseURL].
type Options struct {
	Address  string // host:port
	Node     string // the name of this node, which the server knows
	Metadata map[string]string
	Header   map[string]string // more fields of each call
	// Secure is TLS. CA, Cert and Key are PEM files that are read at each connection; "" = the authorities
	// of the machine, and no certificate. ServerName is that in the server's certificate; "" = the host.
	Secure                    bool
	CA, Cert, Key, ServerName string
	Backoff, BackoffMax       time.Duration
	MaxBytes                  int
	// StartEmpty says that the service is ready before it has a configuration.
	StartEmpty bool
}

// IsURL reports whether text is a URL for [ParseURL].
func IsURL(text string) bool {
	scheme, _, ok := strings.Cut(text, "://")
	return ok && (scheme == "xds" || scheme == "xdss")
}

// known are the parameters of a URL.
var known = []string{"backoff", "backoff_max", "ca", "cert", "header_password", "key", "max_bytes", "metadata", "server_name", "start"}

// ParseURL reads where the configuration is: xds://HOST:PORT/NODE, or xdss:// for TLS. Parameters are ca, cert, key and
// server_name for TLS, backoff, backoff_max, max_bytes, start=empty, and metadata=NAME=VALUE and header_password=NAME:VALUE,
// which may be repeated. Errors do not repeat what can be a secret. Files are read once, to see whether they can be.
func ParseURL(text string) (Options, error) {
	u, err := url.Parse(text)
	if err != nil || !IsURL(text) {
		return Options{}, errors.New("xds: the URL cannot be read, want xds://HOST:PORT/NODE, or xdss:// for TLS")
	}
	o := Options{
		Address: u.Host, Node: strings.TrimPrefix(u.Path, "/"), Secure: u.Scheme == "xdss", Metadata: map[string]string{}, Header: map[string]string{},
		Backoff: DefaultBackoff, BackoffMax: DefaultBackoffMax, MaxBytes: DefaultMaxBytes,
	}
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("xds: "+format, args...)) }
	if _, port, err := net.SplitHostPort(u.Host); err != nil || port == "" {
		bad("the address %q has no port, want xds://HOST:PORT/NODE", u.Host)
	}
	if u.User != nil {
		bad("the URL has a user or a password: servers are told who comes by cert and key, or by header_password=NAME:VALUE")
	}
	if o.Node == "" {
		bad("the URL names no node, want xds://HOST:PORT/NODE with the name that the server knows")
	}
	for name, values := range u.Query() {
		if !slices.Contains(known, name) {
			bad("the parameter %q of the URL is not known, want one of %s", name, strings.Join(known, ", "))
		}
		if len(values) > 1 && name != "metadata" && name != "header_password" {
			bad("the parameter %s stands in the URL %d times", name, len(values))
		}
		for _, v := range values {
			if err := o.set(name, v); err != nil {
				bad("%s %w", name, err)
			}
		}
	}
	if o.BackoffMax < o.Backoff {
		o.BackoffMax = o.Backoff
	}
	if !o.Secure && o.CA+o.Cert+o.Key+o.ServerName != "" {
		bad("ca, cert, key and server_name are for xdss://, which is TLS")
	}
	if _, err := o.tls(); err != nil && o.Secure {
		bad("%w", err)
	}
	return o, errors.Join(errs...)
}

// set takes one parameter.
func (o *Options) set(name, v string) (err error) {
	switch name {
	case "ca":
		o.CA = v
	case "cert":
		o.Cert = v
	case "key":
		o.Key = v
	case "server_name":
		o.ServerName = v
	case "backoff":
		o.Backoff, err = duration(v)
	case "backoff_max":
		o.BackoffMax, err = duration(v)
	case "max_bytes":
		if o.MaxBytes, err = strconv.Atoi(v); err != nil || o.MaxBytes < 1024 || o.MaxBytes > 1<<30 {
			err = fmt.Errorf("is %q, want a number of bytes from 1024 to %d", v, 1<<30)
		}
	case "start":
		if o.StartEmpty = v == "empty"; !o.StartEmpty {
			err = fmt.Errorf("is %q, want empty", v)
		}
	case "metadata":
		key, value, ok := strings.Cut(v, "=")
		if !ok {
			return fmt.Errorf("is %q, want NAME=VALUE", v)
		}
		o.Metadata[key] = value
	case "header_password":
		key, value, ok := strings.Cut(v, ":")
		if !ok {
			return errors.New("is not NAME:VALUE")
		}
		o.Header[strings.ToLower(key)] = strings.TrimSpace(value)
	}
	return err
}

func duration(v string) (time.Duration, error) {
	d, err := time.ParseDuration(v)
	if err != nil || d < 10*time.Millisecond || d > time.Hour {
		return time.Second, fmt.Errorf("is %q, want a duration from 10ms to 1h, such as 5s", v)
	}
	return d, nil
}

// tls reads the files.
func (o *Options) tls() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: o.ServerName}
	if o.CA != "" {
		text, err := os.ReadFile(o.CA)
		if err != nil {
			return nil, fmt.Errorf("the authorities cannot be read: %w", err)
		}
		c.RootCAs = x509.NewCertPool()
		if !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s has no certificate, want a PEM file of authorities", o.CA)
		}
	}
	if (o.Cert == "") != (o.Key == "") {
		return nil, errors.New("a certificate needs its key: give both cert and key")
	}
	if o.Cert != "" {
		pair, err := tls.LoadX509KeyPair(o.Cert, o.Key)
		if err != nil {
			return nil, fmt.Errorf("the certificate cannot be read: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}
