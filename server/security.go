package server

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/stint-io/stint/client"
	"github.com/stint-io/stint/internal/listen"
	"github.com/stint-io/stint/server/internal/access"
	"github.com/stint-io/stint/server/internal/admin"
	"github.com/stint-io/stint/server/internal/tlsfiles"
)

// TLSFiles are the PEM files by which a listener serves TLS; the zero value is plain text. They are
// loaded again when they change.
type TLSFiles struct {
	Cert, Key string // the certificate with its chain, and its private key
	// ClientCA are the authorities whose client certificates are accepted. Every client must
	// show one, unless there is an Options.AuthFile: then a token will do.
	ClientCA string
}

// Peer is how a server proves to other servers who it is, and how it knows them. The files are read at
// each connection.
type Peer struct {
	CA        string // authorities of the other servers; "" = plain text, unless there is a Cert
	Cert, Key string // the certificate that is shown to them
	TokenFile string // the token that is sent to them
}

// peers are the options of a client of another server.
func (o *Options) peers() client.Options {
	return client.Options{TLSFiles: client.TLSFiles{CA: o.Peer.CA, Cert: o.Peer.Cert, Key: o.Peer.Key}, TokenFile: o.Peer.TokenFile, Logger: o.Logger}
}

// NoFile, for a file of one listener, says that it has none where all others have one.
const NoFile = "none"

// over returns the files of one listener, which go before those of all.
func (f TLSFiles) over(all TLSFiles) tlsfiles.Files {
	if f.Cert == NoFile || f.Key == NoFile {
		return tlsfiles.Files{}
	}
	out := tlsfiles.Files{Cert: cmp.Or(f.Cert, all.Cert), Key: cmp.Or(f.Key, all.Key), ClientCA: cmp.Or(f.ClientCA, all.ClientCA)}
	if out.ClientCA == NoFile {
		out.ClientCA = ""
	}
	return out
}

// listener is what is known of one before it listens.
type listener struct {
	name, addr string
	tls        tlsfiles.Files
}

func (o *Options) listeners() []listener {
	list := []listener{
		{"http", o.HTTPAddr, o.HTTPTLS.over(o.TLS)},
		{"grpc", o.GRPCAddr, o.GRPCTLS.over(o.TLS)},
		{"admin", o.AdminAddr, o.AdminTLS.over(o.TLS)},
	}
	if o.RESPAddr != "" {
		list = append(list, listener{"resp", o.RESPAddr, o.RESPTLS.over(o.TLS)})
	}
	if o.SPOEAddr != "" {
		list = append(list, listener{"spoe", o.SPOEAddr, o.SPOETLS.over(o.TLS)})
	}
	return list
}

// secured returns what is wrong with the security of the listeners. Anybody who reaches a port without
// any can take every limit, so an address that other machines reach has TLS and asks who comes,
// unless the operator says otherwise.
func (o *Options) secured() (errs []error) {
	for _, l := range o.listeners() {
		if l.tls.Given() && (l.tls.Cert == "" || l.tls.Key == "") {
			errs = append(errs, fmt.Errorf("server: TLS of the %s listener needs a certificate and its key: give both --tls-cert and --tls-key, or --%s-tls-cert %s", l.name, l.name, NoFile))
			continue
		}
		if listen.Local(l.addr) {
			continue
		}
		asks := l.tls.ClientCA != "" || o.AuthFile != ""
		if l.name == "admin" {
			if asks = asks || o.AdminToken != ""; !asks {
				errs = append(errs, fmt.Errorf("server: the admin address %s can be reached from other machines and does not ask who comes: give a token with --admin-token-file, or identities with --auth, or authorities with --tls-client-ca, or listen on 127.0.0.1", l.addr))
				continue
			}
		}
		if o.Insecure || l.tls.Given() && asks {
			continue
		}
		errs = append(errs, fmt.Errorf("server: the %s address %s can be reached from other machines, and without TLS and a proof of who comes everybody there can take every limit: give --tls-cert and --tls-key with --auth or --tls-client-ca, or listen on 127.0.0.1, or accept it with --insecure", l.name, l.addr))
	}
	if (o.Peer.Cert == "") != (o.Peer.Key == "") {
		errs = append(errs, errors.New("server: the certificate that is shown to other servers needs its key: give both --peer-cert and --peer-key"))
	}
	return errs
}

// security says who may reach the listeners. Without certificates all are plain text.
type security struct {
	http, grpc, admin, resp, spoe *tlsfiles.Source // nil = plain text

	guard guard
}

// openSecurity reads the files that the options name.
func openSecurity(o *Options) (*security, error) {
	s := new(security)
	var errs []error
	ask := tls.RequireAndVerifyClientCert
	if o.AuthFile != "" {
		// Who shows none may have a token, or ask for the health only.
		ask = tls.VerifyClientCertIfGiven
		live, err := access.Open(o.AuthFile, o.Logger)
		if err != nil {
			errs = append(errs, fmt.Errorf("server: %w", err))
		}
		s.guard.live = live
	}
	protocols := map[string][]string{"http": {"h2", "http/1.1"}, "grpc": {"h2"}, "admin": {"h2", "http/1.1"}} // clients of Redis name none
	to := map[string]**tlsfiles.Source{"http": &s.http, "grpc": &s.grpc, "admin": &s.admin, "resp": &s.resp, "spoe": &s.spoe}
	for _, l := range o.listeners() {
		if !l.tls.Given() {
			continue
		}
		source, err := tlsfiles.Load(tlsfiles.Options{Files: l.tls, ClientCertificate: ask, Protocols: protocols[l.name], Name: l.name, Logger: o.Logger})
		if err != nil {
			errs = append(errs, fmt.Errorf("server: %w", err))
			continue
		}
		*to[l.name] = source
	}
	return s, errors.Join(errs...)
}

// sources calls f for each listener that serves TLS.
func (s *security) sources(f func(name string, t *tlsfiles.Source)) {
	for _, one := range []struct {
		name string
		t    *tlsfiles.Source
	}{{"http", s.http}, {"grpc", s.grpc}, {"admin", s.admin}, {"resp", s.resp}, {"spoe", s.spoe}} {
		if one.t != nil {
			f(one.name, one.t)
		}
	}
}

// options are those of the gRPC server.
func (s *security) options() []grpc.ServerOption {
	options := s.guard.onGRPC()
	if s.grpc != nil {
		options = append(options, grpc.Creds(handshakes{credentials.NewTLS(s.grpc.Config()), s.grpc}))
	}
	return options
}

// handshakes tells a certificate's source which handshakes over gRPC have failed.
type handshakes struct {
	credentials.TransportCredentials
	source *tlsfiles.Source
}

// ServerHandshake implements [credentials.TransportCredentials].
func (h handshakes) ServerHandshake(c net.Conn) (net.Conn, credentials.AuthInfo, error) {
	secured, info, err := h.TransportCredentials.ServerHandshake(c)
	h.source.Handshake(c.RemoteAddr(), err)
	return secured, info, err
}

// Clone implements [credentials.TransportCredentials].
func (h handshakes) Clone() credentials.TransportCredentials {
	return handshakes{h.TransportCredentials.Clone(), h.source}
}

// secure has an HTTP server serve TLS, where there is a certificate, and tells its source which handshakes
// have failed: a connection that is closed still has the error of its handshake.
func secure(h *http.Server, t *tlsfiles.Source) {
	if t == nil {
		return
	}
	h.TLSConfig = t.Config()
	next := h.ConnState
	h.ConnState = func(c net.Conn, state http.ConnState) {
		if secured, ok := c.(*tls.Conn); ok && state == http.StateClosed {
			t.Handshake(c.RemoteAddr(), secured.Handshake())
		}
		if next != nil {
			next(c, state)
		}
	}
}

// reload reads all files again. What has a fault stays as it was.
func (s *security) reload() error {
	errs := []error{s.guard.reload()}
	s.sources(func(_ string, t *tlsfiles.Source) { errs = append(errs, t.Reload()) })
	return errors.Join(errs...)
}

// watch reloads the files that change, until ctx ends.
func (s *security) watch(ctx context.Context) {
	var all sync.WaitGroup
	s.sources(func(_ string, t *tlsfiles.Source) { all.Go(func() { _ = t.Watch(ctx) }) })
	if s.guard.live != nil {
		all.Go(func() { _ = s.guard.live.Watch(ctx) })
	}
	all.Wait()
}

// figures are what metrics show.
func (s *security) figures(redis *respDoor, haproxy *spoeDoor) (f admin.Security) {
	s.sources(func(name string, t *tlsfiles.Source) {
		now := t.Figures()
		f.Certificates = append(f.Certificates, admin.Certificate{Listener: name, OK: now.OK, Reloads: now.Reloads, Failures: now.Failures, Expires: float64(now.Expires.Unix()), Refused: now.Refused})
	})
	if g := &s.guard; g.live != nil {
		now := g.live.Figures()
		f.Identities = &admin.Identities{OK: now.OK, Reloads: now.Reloads, Failures: now.Failures, Count: now.Identities}
		if redis.Server != nil {
			unauthenticated, denied := redis.Refusals()
			f.Refused = append(f.Refused, admin.Refused{Listener: "resp", Unauthenticated: unauthenticated, Denied: denied})
		}
		if haproxy.Server != nil {
			unauthenticated, denied := haproxy.Refusals()
			f.Refused = append(f.Refused, admin.Refused{Listener: "spoe", Unauthenticated: unauthenticated, Denied: denied})
		}
		for name, of := range map[string]*refusals{"http": &g.http, "grpc": &g.grpc, "admin": &g.admin} {
			f.Refused = append(f.Refused, admin.Refused{Listener: name, Unauthenticated: of.unauthenticated.Load(), Denied: of.denied.Load()})
		}
	}
	return f
}

// serveHTTP serves a listener, by TLS where there is a certificate.
func serveHTTP(h *http.Server, l net.Listener, t *tlsfiles.Source) error {
	if t == nil {
		return h.Serve(l)
	}
	return h.ServeTLS(l, "", "")
}
