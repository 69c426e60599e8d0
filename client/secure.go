package client

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
)

// TLSFiles are PEM files. The zero value is no TLS.
type TLSFiles struct {
	CA        string // authorities that the coordinator's certificate must be of; "" = those of the system
	Cert, Key string // the certificate that is shown to the coordinator; "" = none
	// ServerName is the name that the coordinator's certificate must have; "" = that of the address.
	ServerName string
}

// Config reads the files. The error names the file that has a fault.
func (f TLSFiles) Config() (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: f.ServerName}
	if f.CA != "" {
		text, err := os.ReadFile(f.CA)
		if err != nil {
			return nil, err
		}
		if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(text) {
			return nil, fmt.Errorf("%s holds no certificate, name a PEM file with the authorities of the coordinator", f.CA)
		}
	}
	if f.Cert != "" {
		pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
		if err != nil {
			return nil, fmt.Errorf("%s and %s: %w", f.Cert, f.Key, err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// readToken reads a file with a token.
func readToken(file string) (string, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(strings.TrimPrefix(string(text), "\ufeff"))
	if token == "" || strings.ContainsAny(token, " \t\r\n") {
		return "", fmt.Errorf("%s does not hold one token, write it there on one line", file)
	}
	return token, nil
}

// checkSecurity says what cannot be meant.
func (o *Options) checkSecurity() error {
	switch f := o.TLSFiles; {
	case o.TLS != nil && f != TLSFiles{}:
		return errors.New("client: both TLS and TLSFiles are set, set one")
	case (f.Cert == "") != (f.Key == ""):
		return errors.New("client: TLSFiles has a certificate or a key alone, set both")
	case o.Token != "" && o.TokenFile != "":
		return errors.New("client: both Token and TokenFile are set, set one")
	case strings.ContainsAny(o.Token, " \t\r\n"):
		return errors.New("client: the Token has a blank or a line break, which is no part of one")
	}
	return nil
}

// secure is how connections are made to a coordinator.
type secure struct {
	tls              *tls.Config
	files            TLSFiles
	token, tokenFile string
}

// options returns those of one connection, by the files as they are now.
func (s *secure) options(address string) ([]grpc.DialOption, error) {
	config, token := s.tls, s.token
	var err error
	if config == nil && s.files != (TLSFiles{}) {
		if config, err = s.files.Config(); err != nil {
			return nil, fmt.Errorf("client: TLS: %w", err)
		}
	}
	if s.tokenFile != "" {
		if token, err = readToken(s.tokenFile); err != nil {
			return nil, fmt.Errorf("client: token: %w", err)
		}
	}
	transport := insecure.NewCredentials()
	if config != nil {
		transport = credentials.NewTLS(config)
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(transport)}
	if token == "" {
		return options, nil
	}
	if config == nil && !loopback(address) {
		return nil, fmt.Errorf("client: the token is not sent in plain text to %s, where everybody on the way could read it: set TLS or TLSFiles", address)
	}
	return append(options, grpc.WithPerRPCCredentials(bearer{token, config != nil})), nil
}

// loopback says whether an address is one of this machine.
func loopback(address string) bool {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		host = address
	}
	ip, err := netip.ParseAddr(host)
	return host == "localhost" || err == nil && ip.IsLoopback()
}

// bearer sends a token with each call.
type bearer struct {
	token  string
	secure bool
}

// GetRequestMetadata implements credentials.PerRPCCredentials.
func (b bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + b.token}, nil
}

// RequireTransportSecurity implements credentials.PerRPCCredentials.
func (b bearer) RequireTransportSecurity() bool { return b.secure }
