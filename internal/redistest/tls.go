package redistest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"
)

// certificates are the PEM files of a server with TLS, which has an authority of
// its own.
type certificates struct {
	ca, serverCert, serverKey, clientCert, clientKey string
}

// StartTLS is [Start] for a server that speaks only TLS, with a certificate for
// 127.0.0.1 and localhost by an authority made for it. The configuration returned
// is for its clients: it trusts that authority and has a certificate by it, which
// the server checks if one is sent. With "--tls-auth-clients", "yes" it demands
// one.
func StartTLS(t testing.TB, args ...string) (*Server, *tls.Config) {
	t.Helper()
	s := newServer(t, t.TempDir())
	files, config, err := certify(s.dir)
	if err != nil {
		t.Fatalf("redistest: making certificates in %s: %v", s.dir, err)
	}
	s.files, s.tls = files, config
	s.args = append(s.args,
		"--port", "0",
		"--tls-port", strconv.Itoa(s.port),
		"--tls-ca-cert-file", files.ca,
		"--tls-cert-file", files.serverCert,
		"--tls-key-file", files.serverKey,
		"--tls-auth-clients", "optional",
	)
	s.args = append(s.args, args...)
	s.password = passwordIn(args)
	s.launch()
	s.awaitAnswer()
	return s, config.Clone()
}

// CAFile returns the PEM file of the authority that signed the certificate of a
// server of [StartTLS]; "" for others.
func (s *Server) CAFile() string { return s.files.ca }

// CertFile returns the PEM file of a client's certificate that a server of
// [StartTLS] accepts; "" for others.
func (s *Server) CertFile() string { return s.files.clientCert }

// KeyFile returns the PEM file of the key to [Server.CertFile].
func (s *Server) KeyFile() string { return s.files.clientKey }

// certify makes an authority and what it signs: a server's and a client's
// certificate. It returns the files in dir and a client's configuration.
func certify(dir string) (certificates, *tls.Config, error) {
	files := certificates{
		ca:         filepath.Join(dir, "ca.pem"),
		serverCert: filepath.Join(dir, "server-cert.pem"),
		serverKey:  filepath.Join(dir, "server-key.pem"),
		clientCert: filepath.Join(dir, "client-cert.pem"),
		clientKey:  filepath.Join(dir, "client-key.pem"),
	}
	caTemplate := template(1, "redistest authority")
	caTemplate.IsCA, caTemplate.BasicConstraintsValid = true, true
	caTemplate.KeyUsage = x509.KeyUsageCertSign
	caKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return files, nil, err
	}
	ca, err := sign(files.ca, caTemplate, caTemplate, caKey, caKey)
	if err != nil {
		return files, nil, err
	}

	server := template(2, "redistest server")
	server.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1)}
	server.DNSNames = []string{"localhost"}
	server.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	if err := issue(files.serverCert, files.serverKey, server, ca, caKey); err != nil {
		return files, nil, err
	}
	client := template(3, "redistest client")
	client.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	if err := issue(files.clientCert, files.clientKey, client, ca, caKey); err != nil {
		return files, nil, err
	}

	pair, err := tls.LoadX509KeyPair(files.clientCert, files.clientKey)
	if err != nil {
		return files, nil, err
	}
	roots := x509.NewCertPool()
	roots.AddCert(ca)
	return files, &tls.Config{
		RootCAs:      roots,
		Certificates: []tls.Certificate{pair},
		MinVersion:   tls.VersionTLS12,
	}, nil
}

// template returns what all certificates have in common. They outlive any test.
func template(serial int64, name string) *x509.Certificate {
	return &x509.Certificate{
		SerialNumber: big.NewInt(serial),
		Subject:      pkix.Name{CommonName: name},
		NotBefore:    time.Now().Add(-time.Hour), // clocks differ
		NotAfter:     time.Now().Add(24 * time.Hour),
		KeyUsage:     x509.KeyUsageDigitalSignature,
	}
}

// issue makes a key and has the authority sign a certificate for it.
func issue(certFile, keyFile string, leaf, ca *x509.Certificate, caKey *ecdsa.PrivateKey) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := writePEM(keyFile, "PRIVATE KEY", der); err != nil {
		return err
	}
	_, err = sign(certFile, leaf, ca, key, caKey)
	return err
}

// sign writes and returns a certificate for key, signed by the authority.
func sign(file string, leaf, ca *x509.Certificate, key, caKey *ecdsa.PrivateKey) (*x509.Certificate, error) {
	der, err := x509.CreateCertificate(rand.Reader, leaf, ca, &key.PublicKey, caKey)
	if err != nil {
		return nil, err
	}
	if err := writePEM(file, "CERTIFICATE", der); err != nil {
		return nil, err
	}
	return x509.ParseCertificate(der)
}

func writePEM(file, kind string, der []byte) error {
	return os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), 0o600)
}
