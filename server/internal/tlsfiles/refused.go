package tlsfiles

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"strings"
	"sync/atomic"

	"github.com/stint-io/stint/internal/lograte"
)

// noCertificate is how crypto/tls says that a client showed none. It has no error value for it.
const noCertificate = "client didn't provide a certificate"

// reasons are those for which a client is refused, each with the way out.
var reasons = [...]struct{ name, advice string }{
	{"missing", "give the client a certificate of an authority of --tls-client-ca, and its key: many clients show no other one"},
	{"expired", "renew the client's certificate, or mind the clocks"},
	{"foreign", "have it issued by an authority of --tls-client-ca, or add its authority there"},
	{"invalid", "issue a certificate for client authentication"},
}

// refusals count handshakes that ended because of the client's certificate, by reason.
type refusals struct {
	by     [len(reasons)]atomic.Uint64
	logged lograte.Minute
}

func (r *refusals) counts() map[string]uint64 {
	m := map[string]uint64{}
	for i := range reasons {
		m[reasons[i].name] = r.by[i].Load()
	}
	return m
}

// reasonOf returns the index in reasons for the error of a handshake, and what the client calls itself;
// ok is false for one that has nothing to do with the client's certificate.
func reasonOf(err error) (index int, subject string, ok bool) {
	var refused *tls.CertificateVerificationError
	if !errors.As(err, &refused) {
		return 0, "", err != nil && strings.Contains(err.Error(), noCertificate)
	}
	if certs := refused.UnverifiedCertificates; len(certs) > 0 {
		subject = certs[0].Subject.String()
		subject = subject[:min(len(subject), 100)]
	}
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	switch {
	case errors.As(err, &unknown):
		return 2, subject, true
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return 1, subject, true
	}
	return 3, subject, true
}

// Handshake takes note of how a handshake with a client has ended. One that its certificate ended is
// counted, and the first for a minute is logged.
func (s *Source) Handshake(peer net.Addr, err error) {
	index, subject, ok := reasonOf(err)
	if !ok {
		return
	}
	r := &s.refused
	r.by[index].Add(1)
	if r.logged.Allow(s.opts.Now()) {
		s.opts.Logger.Warn("a client was refused because of its certificate: others in the next minute are counted only, in stint_tls_clients_refused_total",
			"listener", s.opts.Name, "peer", peer.String(), "reason", reasons[index].name, "subject", subject, "error", err, "advice", reasons[index].advice)
	}
}
