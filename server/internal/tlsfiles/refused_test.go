package tlsfiles

import (
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stint-io/stint/internal/testca"
)

// TestRefusedReasons: every error of a real handshake is counted by what is wrong with the client's
// certificate, and no error of another kind is.
func TestRefusedReasons(t *testing.T) {
	r := newRig(t, true)
	foreign := testca.New()
	certificate := func(of *testca.Authority, n testca.Names) *tls.Config {
		return &tls.Config{Certificates: []tls.Certificate{of.Issue(n).TLS()}}
	}
	for _, version := range []uint16{tls.VersionTLS12, tls.VersionTLS13} {
		for reason, config := range map[string]*tls.Config{
			"":        certificate(r.ca, testca.Names{CommonName: "c"}),
			"missing": {},
			"expired": certificate(r.ca, testca.Names{CommonName: "c", NotBefore: -2 * time.Hour, NotAfter: -time.Minute}),
			"foreign": certificate(foreign, testca.Names{CommonName: "c"}),
			"invalid": certificate(r.ca, testca.Names{CommonName: "c", Server: true}),
		} {
			config.MaxVersion = version
			before := r.source.Figures().Refused
			served := r.serve(config)
			r.source.Handshake(&net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 4711}, served)
			for name, n := range r.source.Figures().Refused {
				if want := before[name] + map[bool]uint64{true: 1}[name == reason]; n != want {
					t.Errorf("%q, TLS %x: %d of %s, want %d: %v", reason, version, n, name, want, served)
				}
			}
		}
	}
	before := r.source.Figures().Refused["invalid"]
	r.source.Handshake(&net.TCPAddr{}, errors.New("EOF"))
	if after := r.source.Figures().Refused["invalid"]; after != before {
		t.Error("a connection that ended is counted")
	}
	if none := newRig(t, false).source.Figures().Refused; none != nil {
		t.Errorf("nobody is asked for a certificate, and the figures are %v", none)
	}
}

// serve makes a handshake and returns the server's error.
func (r *rig) serve(client *tls.Config) error {
	a, b := net.Pipe()
	over := make(chan struct{})
	go func() {
		defer close(over)
		client.RootCAs, client.ServerName = r.ca.Pool(), "127.0.0.1"
		c := tls.Client(b, client)
		if c.Handshake() == nil {
			_, _ = c.Read(make([]byte, 1)) // what the server thinks of the certificate
		}
		_ = b.Close()
	}()
	err := tls.Server(a, r.source.Config()).Handshake()
	_ = a.Close()
	<-over
	return err
}

// TestRefusedLog: one line a minute, with the address, however many come.
func TestRefusedLog(t *testing.T) {
	r := newRig(t, true)
	synctest.Test(t, func(t *testing.T) {
		err := errors.New("tls: " + noCertificate)
		for range 3 {
			for range 100 {
				r.source.Handshake(&net.TCPAddr{IP: net.IPv4(192, 0, 2, 7), Port: 4711}, err)
			}
			time.Sleep(time.Minute)
		}
	})
	log := r.log.String()
	if n := strings.Count(log, "\n"); n != 3 || strings.Count(log, "listener=grpc peer=192.0.2.7:4711 reason=missing") != 3 {
		t.Errorf("%d lines: %s", n, log)
	}
}
