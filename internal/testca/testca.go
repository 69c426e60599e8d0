// Package testca issues certificates for tests and benchmarks. Nothing else imports it: it panics
// where nothing can fail but the machine.
package testca

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
	"net/url"
	"os"
	"path/filepath"
	"time"
)

// Authority signs certificates.
type Authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	PEM  []byte // of its own certificate
}

// New returns an authority of its own.
func New() *Authority {
	a := &Authority{}
	template := &x509.Certificate{
		Subject: pkix.Name{CommonName: "test authority"}, SerialNumber: serial(), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
		NotBefore: time.Now().Add(-24 * time.Hour), NotAfter: time.Now().Add(24 * time.Hour),
	}
	a.key = newKey()
	der := must(x509.CreateCertificate(rand.Reader, template, template, &a.key.PublicKey, a.key))
	a.cert = must(x509.ParseCertificate(der))
	a.PEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	return a
}

// Pool returns a pool with the authority alone.
func (a *Authority) Pool() *x509.CertPool {
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return pool
}

// Names are what a certificate is of. The zero value is a client without a name.
type Names struct {
	CommonName string
	DNS, URI   string
	Server     bool // for 127.0.0.1, as a server
	// NotBefore and NotAfter are from now; 0 = an hour ago, in an hour.
	NotBefore, NotAfter time.Duration
}

// Pair is a certificate and its key, as PEM.
type Pair struct{ Cert, Key []byte }

// Issue signs a certificate.
func (a *Authority) Issue(n Names) Pair {
	c := &x509.Certificate{
		Subject: pkix.Name{CommonName: n.CommonName}, SerialNumber: serial(),
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	if n.NotBefore != 0 {
		c.NotBefore = time.Now().Add(n.NotBefore)
	}
	if n.NotAfter != 0 {
		c.NotAfter = time.Now().Add(n.NotAfter)
	}
	if n.DNS != "" {
		c.DNSNames = []string{n.DNS}
	}
	if n.URI != "" {
		c.URIs = []*url.URL{must(url.Parse(n.URI))}
	}
	if n.Server {
		c.IPAddresses, c.ExtKeyUsage = []net.IP{net.IPv4(127, 0, 0, 1)}, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		c.DNSNames = append(c.DNSNames, "localhost")
	}
	key := newKey()
	der := must(x509.CreateCertificate(rand.Reader, c, a.cert, &key.PublicKey, a.key))
	return Pair{
		Cert: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		Key:  pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: must(x509.MarshalPKCS8PrivateKey(key))}),
	}
}

// TLS returns the pair for a connection.
func (p Pair) TLS() tls.Certificate { return must(tls.X509KeyPair(p.Cert, p.Key)) }

// Write writes the pair to name.crt and name.key in a folder.
func (p Pair) Write(dir, name string) (cert, key string) {
	return File(dir, name+".crt", p.Cert), File(dir, name+".key", p.Key)
}

// File writes a file by replacing it, so that nobody reads the half of it.
func File(dir, name string, content []byte) string {
	path := filepath.Join(dir, name)
	must(0, os.WriteFile(path+"~", content, 0o600))
	must(0, os.Rename(path+"~", path))
	return path
}

func newKey() *ecdsa.PrivateKey { return must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)) }

func serial() *big.Int { return must(rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
