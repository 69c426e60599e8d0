package admin

import "github.com/prometheus/client_golang/prometheus"

// Security is what the certificates and the identities look like.
type Security struct {
	Certificates []Certificate
	Identities   *Identities // nil = nobody is asked who it is
	Refused      []Refused
}

// Identities is what the file of --auth looks like.
type Identities struct {
	OK                bool // the file holds what is in force
	Reloads, Failures uint64
	Count             int
}

// Refused is what one listener refused.
type Refused struct {
	Listener                string
	Unauthenticated, Denied uint64
}

// Certificate is that of one listener.
type Certificate struct {
	Listener          string
	OK                bool    // the files hold what is in use
	Reloads, Failures uint64  // changes that took effect, and that were refused
	Expires           float64 // Unix seconds
	// Refused are handshakes of clients by reason; nil = no certificate is asked for.
	Refused map[string]uint64
}

// securityDescs describe the metrics of security. They are sent only where there is any.
type securityDescs struct {
	certificateOK, expires, reloads, failures, clients     *prometheus.Desc
	identities, authOK, authReloads, authFailures, refused *prometheus.Desc
}

func newSecurityDescs(desc func(name, help string, labels ...string) *prometheus.Desc) securityDescs {
	return securityDescs{
		certificateOK: desc("tls_last_reload_successful", "1 if the certificate files hold what the listener uses, 0 if they have a fault and the former certificate stays in use.", "listener"),
		expires:       desc("tls_certificate_expiry_timestamp_seconds", "When the certificate that the listener uses expires.", "listener"),
		reloads:       desc("tls_reloads_total", "Changes of the certificate files that took effect.", "listener"),
		failures:      desc("tls_reload_errors_total", "Changes of the certificate files that were refused.", "listener"),
		clients:       desc("tls_clients_refused_total", "Handshakes that ended because of the client's certificate: it was missing, expired, of an authority that is not accepted, or invalid otherwise.", "listener", "reason"),

		identities:   desc("auth_identities", "Identities in the file of --auth that is in force."),
		authOK:       desc("auth_last_reload_successful", "1 if the file of --auth holds the identities that are in force, 0 if it has a fault and the former ones stay."),
		authReloads:  desc("auth_reloads_total", "Changes of the file of --auth that took effect."),
		authFailures: desc("auth_reload_errors_total", "Changes of the file of --auth that were refused."),
		refused:      desc("auth_refused_total", "Requests and streams refused: unauthenticated, as nothing proved who it is, or denied, as the identity lacks the role.", "listener", "reason"),
	}
}

func (d *securityDescs) describe(ch chan<- *prometheus.Desc) {
	for _, one := range []*prometheus.Desc{d.certificateOK, d.expires, d.reloads, d.failures, d.clients, d.identities, d.authOK, d.authReloads, d.authFailures, d.refused} {
		ch <- one
	}
}

func (d *securityDescs) collect(to metrics, s *Security) {
	for _, c := range s.Certificates {
		to.truth(d.certificateOK, c.OK, c.Listener)
		to.gauge(d.expires, c.Expires, c.Listener)
		to.count(d.reloads, c.Reloads, c.Listener)
		to.count(d.failures, c.Failures, c.Listener)
		for reason, n := range c.Refused {
			to.count(d.clients, n, c.Listener, reason)
		}
	}
	if s.Identities == nil {
		return
	}
	to.gauge(d.identities, float64(s.Identities.Count))
	to.truth(d.authOK, s.Identities.OK)
	to.count(d.authReloads, s.Identities.Reloads)
	to.count(d.authFailures, s.Identities.Failures)
	for _, r := range s.Refused {
		to.count(d.refused, r.Unauthenticated, r.Listener, "unauthenticated")
		to.count(d.refused, r.Denied, r.Listener, "denied")
	}
}
