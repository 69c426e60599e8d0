package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/spf13/pflag"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/listen"
	"github.com/stint-io/stint/server"
)

// securityFlags are those that say who may reach the ports, as far as they are no options of
// the server themselves.
type securityFlags struct {
	adminToken string // file
}

func (s *securityFlags) register(f *pflag.FlagSet, o *server.Options) {
	clusterFlags(f, &o.Cluster)
	parentFlags(f, &o.Parent)
	f.StringVar(&o.TLS.Cert, "tls-cert", "", "PEM file with the certificate of all listeners, and its chain")
	f.StringVar(&o.TLS.Key, "tls-key", "", "PEM file with its private key")
	f.StringVar(&o.TLS.ClientCA, "tls-client-ca", "", "PEM file with the authorities whose client certificates are accepted")
	f.StringVar(&o.HTTPTLS.Cert, "http-tls-cert", "", "certificate of the HTTP listener alone, or none")
	f.StringVar(&o.HTTPTLS.Key, "http-tls-key", "", "its private key")
	f.StringVar(&o.HTTPTLS.ClientCA, "http-tls-client-ca", "", "authorities of the HTTP listener alone, or none")
	f.StringVar(&o.GRPCTLS.Cert, "grpc-tls-cert", "", "certificate of the gRPC listener alone, or none")
	f.StringVar(&o.GRPCTLS.Key, "grpc-tls-key", "", "its private key")
	f.StringVar(&o.GRPCTLS.ClientCA, "grpc-tls-client-ca", "", "authorities of the gRPC listener alone, or none")
	f.StringVar(&o.AdminTLS.Cert, "admin-tls-cert", "", "certificate of the admin listener alone, or none")
	f.StringVar(&o.AdminTLS.Key, "admin-tls-key", "", "its private key")
	f.StringVar(&o.AdminTLS.ClientCA, "admin-tls-client-ca", "", "authorities of the admin listener alone, or none")
	f.StringVar(&o.RESPAddr, "resp", "", "address of the listener for clients of Redis, such as 127.0.0.1:6380 (default: none)")
	f.StringVar(&o.RESPTLS.Cert, "resp-tls-cert", "", "certificate of the listener for clients of Redis alone, or none")
	f.StringVar(&o.RESPTLS.Key, "resp-tls-key", "", "its private key")
	f.StringVar(&o.RESPTLS.ClientCA, "resp-tls-client-ca", "", "authorities of that listener alone, or none")
	f.StringVar(&o.SPOEAddr, "spoe", "", "address of the listener for HAProxy's stream processing offload (SPOE), such as 127.0.0.1:8083 (default: none)")
	f.StringVar(&o.SPOETLS.Cert, "spoe-tls-cert", "", "certificate of the listener for HAProxy alone, or none")
	f.StringVar(&o.SPOETLS.Key, "spoe-tls-key", "", "its private key")
	f.StringVar(&o.SPOETLS.ClientCA, "spoe-tls-client-ca", "", "authorities of that listener alone, or none")
	f.StringVar(&o.AuthFile, "auth", "", "file with identities, what proves them, and their roles")
	f.StringVar(&o.Peer.CA, "peer-ca", "", "PEM file with the authorities of other servers, which are then reached by TLS")
	f.StringVar(&o.Peer.Cert, "peer-cert", "", "PEM file with the certificate that is shown to other servers")
	f.StringVar(&o.Peer.Key, "peer-key", "", "PEM file with its private key")
	f.StringVar(&o.Peer.TokenFile, "peer-token-file", "", "file with the token that is sent to other servers")
	f.BoolVar(&o.Insecure, "insecure", false, "allow addresses that other machines reach without TLS, or without a proof of who comes")
	f.StringVar(&s.adminToken, "admin-token-file", "", "file with the bearer token that admin requests need")
	f.StringSliceVar(&o.AdminHosts, "admin-host", nil, "name by which the admin port may be addressed; may be repeated")
	f.StringVar(&o.DashboardURL, "dashboard-url", "", "where people reach the admin port, such as https://stint.internal.example: refusals then link the page of their limit")
	f.StringSliceVar(&o.HTTPHosts, "http-host", nil, "name by which the HTTP port may be addressed, or * for any; may be repeated")
}

// scheme is that of the URLs of a listener.
func scheme(tls bool) string {
	if tls {
		return "https"
	}
	return "http"
}

// url is where the service is. Without a scheme it is https where a file of TLS is given.
func (f *clientFlags) url() string {
	addr := strings.TrimSuffix(f.addr, "/")
	if _, ok := listen.Path(addr); ok {
		addr = "localhost"
	}
	if !strings.Contains(addr, "://") {
		addr = scheme(f.tls != client.TLSFiles{}) + "://" + addr
	}
	return addr
}

// secure returns the client that asks, with the certificates of the flags.
func (f *clientFlags) secure(addr string) (*http.Client, error) {
	if (f.tls.Cert == "") != (f.tls.Key == "") {
		return nil, errors.New("a certificate needs its key: give both --cert and --key")
	}
	if f.tls != (client.TLSFiles{}) && strings.HasPrefix(addr, "http://") {
		return nil, fmt.Errorf("%s is plain text and certificates are given: write https:// in --addr", addr)
	}
	config, err := f.tls.Config()
	if err != nil {
		return nil, err
	}
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: config, ForceAttemptHTTP2: true}
	if path, ok := listen.Path(f.addr); ok {
		transport.Proxy = nil
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", path)
		}
	}
	return &http.Client{
		Timeout:   f.timeout,
		Transport: transport,
		// Another address would be sent the token.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}, nil
}

// authorize adds the token.
func (f *clientFlags) authorize(req *http.Request) error {
	token, err := f.token(req.URL)
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	return err
}

// token reads the token, which is not sent to another machine in plain text; "" = there is none.
func (f *clientFlags) token(to *url.URL) (string, error) {
	if f.tokenFile == "" {
		return "", nil
	}
	token, err := readToken(f.tokenFile, "--token-file")
	if err != nil {
		return "", err
	}
	if to.Scheme != "https" && !onLoopback(to) {
		return "", fmt.Errorf("the token is not sent in plain text to %s, where everybody on the way could read it: write https:// in --addr", to.Host)
	}
	return token, nil
}

func onLoopback(u *url.URL) bool {
	ip, err := netip.ParseAddr(u.Hostname())
	return u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
}
