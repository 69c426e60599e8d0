// Package tlsfiles serves TLS by certificates in files, and loads them again when they change.
// Connections that are open stay as they are; new handshakes use the new files. Files with a fault
// change nothing: the former certificate stays in use, and the fault is logged and counted.
//
// It knows no protocol and no identity: who a client is, package access says.
package tlsfiles

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stint-io/stint/internal/filewatch"
)

// Files are the paths of PEM files. The zero value is no TLS.
type Files struct {
	Cert, Key string // the server's certificate with its chain, and the private key
	ClientCA  string // authorities whose client certificates are accepted; "" = none is asked for
}

// Given says whether any file is named.
func (f Files) Given() bool { return f != Files{} }

// Options are the choices of [Load].
type Options struct {
	Files Files
	// ClientCertificate says what a client must show where there is a ClientCA:
	// [tls.RequireAndVerifyClientCert], or [tls.VerifyClientCertIfGiven] where it may show
	// a token instead.
	ClientCertificate tls.ClientAuthType
	// Protocols are those that ALPN offers, the preferred one first.
	Protocols []string
	// Name is the listener's, for the log.
	Name   string
	Logger *slog.Logger
	// Now is the clock; nil = [time.Now].
	Now func() time.Time
}

// Source is the certificate of one listener. It is safe for concurrent use.
type Source struct {
	opts    Options
	current atomic.Pointer[loaded]
	refused refusals

	mu      sync.Mutex // held while files are read
	content content    // of the latest attempt
	figures Figures
}

// loaded is what handshakes use. It does not change.
type loaded struct {
	config  *tls.Config
	expires time.Time
}

// content are the bytes of the files.
type content struct{ cert, key, ca []byte }

func (c content) equal(o content) bool {
	return bytes.Equal(c.cert, o.cert) && bytes.Equal(c.key, o.key) && bytes.Equal(c.ca, o.ca)
}

// Figures are for metrics.
type Figures struct {
	OK       bool      // the files hold what is in use
	Reloads  uint64    // changes that took effect, without the first load
	Failures uint64    // changes that were refused
	Expires  time.Time // of the certificate in use

	Refused map[string]uint64 // handshakes of clients by reason; nil = no certificate is asked for
}

// Load reads the files. Its error says what is wrong with them, and which flag names them.
func Load(o Options) (*Source, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	s := &Source{opts: o}
	f := o.Files
	if f.Cert == "" || f.Key == "" {
		return nil, fmt.Errorf("tls of the %s listener: a certificate and a key are needed, %s is missing", o.Name, missing(f))
	}
	c, err := s.read()
	if err == nil {
		err = s.use(c)
	}
	if err != nil {
		return nil, fmt.Errorf("tls of the %s listener: %w", o.Name, err)
	}
	s.content, s.figures.OK = c, true
	return s, nil
}

func missing(f Files) string {
	switch {
	case f.Cert == "" && f.Key == "":
		return "--tls-cert and --tls-key"
	case f.Cert == "":
		return "--tls-cert"
	}
	return "--tls-key"
}

// maxFile bounds one file. A bundle of all public authorities is a quarter of it.
const maxFile = 1 << 20

// read reads the files until two readings are alike: a certificate and a key that are replaced one
// after the other must not be taken for a pair.
func (s *Source) read() (content, error) {
	const tries = 3
	var last content
	for try := range tries {
		c, err := s.readOnce()
		if err != nil {
			return c, err
		}
		if try > 0 && c.equal(last) {
			break
		}
		last = c
	}
	return last, nil
}

func (s *Source) readOnce() (c content, err error) {
	f := s.opts.Files
	for _, one := range []struct {
		path string
		to   *[]byte
	}{{f.Cert, &c.cert}, {f.Key, &c.key}, {f.ClientCA, &c.ca}} {
		if one.path == "" {
			continue
		}
		if *one.to, err = os.ReadFile(one.path); err != nil {
			return c, err
		}
		if len(*one.to) > maxFile {
			return c, fmt.Errorf("%s has more than %d bytes: name a file with PEM certificates", one.path, maxFile)
		}
	}
	return c, nil
}

// use makes the content what handshakes use.
func (s *Source) use(c content) error {
	pair, err := tls.X509KeyPair(c.cert, c.key)
	if err != nil {
		// Not the content: crypto/tls names no bytes of the key.
		return fmt.Errorf("%s and %s: %w: the certificate must be PEM with its chain, and the key its own", s.opts.Files.Cert, s.opts.Files.Key, err)
	}
	switch now := s.opts.Now(); {
	case now.After(pair.Leaf.NotAfter):
		return fmt.Errorf("%s has expired at %s: renew it", s.opts.Files.Cert, pair.Leaf.NotAfter.UTC().Format(time.RFC3339))
	case now.Before(pair.Leaf.NotBefore):
		return fmt.Errorf("%s is valid from %s on: check the clock of this machine", s.opts.Files.Cert, pair.Leaf.NotBefore.UTC().Format(time.RFC3339))
	}
	config := &tls.Config{
		Certificates: []tls.Certificate{pair},
		MinVersion:   tls.VersionTLS12,
		NextProtos:   s.opts.Protocols,
		Time:         s.opts.Now,
	}
	if s.opts.Files.ClientCA != "" {
		config.ClientAuth, config.ClientCAs = s.opts.ClientCertificate, x509.NewCertPool()
		if !config.ClientCAs.AppendCertsFromPEM(c.ca) {
			return fmt.Errorf("%s holds no certificate: name a PEM file with the authorities of clients", s.opts.Files.ClientCA)
		}
		// A resumed session would not be verified against authorities that have changed.
		config.SessionTicketsDisabled = true
	}
	s.current.Store(&loaded{config: config, expires: pair.Leaf.NotAfter})
	return nil
}

// Config returns the configuration of the listener, whose handshakes use the files as they are then.
func (s *Source) Config() *tls.Config {
	c := s.current.Load().config.Clone()
	c.GetConfigForClient = func(*tls.ClientHelloInfo) (*tls.Config, error) { return s.current.Load().config, nil }
	return c
}

// Reload reads the files again. On an error the former certificate stays in use.
func (s *Source) Reload() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	c, err := s.read()
	if err == nil && c.equal(s.content) && s.figures.OK {
		return nil
	}
	if err == nil {
		err = s.use(c)
	}
	if err != nil {
		err = fmt.Errorf("tls of the %s listener: %w", s.opts.Name, err)
		if s.figures.OK || !c.equal(s.content) {
			s.opts.Logger.Error("the new certificate is refused, the former one stays in use", "error", err, "former_expires", s.current.Load().expires.UTC().Format(time.RFC3339))
			s.figures.Failures++
		}
		s.content, s.figures.OK = c, false
		return err
	}
	s.content, s.figures.OK = c, true
	s.figures.Reloads++
	s.opts.Logger.Info("certificate loaded", "listener", s.opts.Name, "expires", s.current.Load().expires.UTC().Format(time.RFC3339))
	return nil
}

// Watch reloads the files when they change, until ctx ends.
func (s *Source) Watch(ctx context.Context) error {
	paths := []string{s.opts.Files.Cert, s.opts.Files.Key}
	if s.opts.Files.ClientCA != "" {
		paths = append(paths, s.opts.Files.ClientCA)
	}
	err := filewatch.Watch(ctx, func() []string { return paths }, func() {
		// Reload logs its fault and counts it.
		_ = s.Reload()
	})
	if errors.Is(err, ctx.Err()) {
		return nil
	}
	return err
}

// Figures returns the figures of this moment.
func (s *Source) Figures() Figures {
	s.mu.Lock()
	defer s.mu.Unlock()
	f := s.figures
	f.Expires = s.current.Load().expires
	if s.opts.Files.ClientCA != "" {
		f.Refused = s.refused.counts()
	}
	return f
}
