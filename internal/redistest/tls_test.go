package redistest_test

import (
	"crypto/tls"
	"crypto/x509"
	"os"
	"strings"
	"testing"

	"github.com/stint-io/stint/internal/redistest"
)

// ping asks over TLS for a sign of life.
func ping(addr string, config *tls.Config) (string, error) {
	conn, err := tls.Dial("tcp", addr, config)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if _, err := conn.Write([]byte("PING\r\n")); err != nil {
		return "", err
	}
	reply := make([]byte, len("+PONG\r\n"))
	n, err := conn.Read(reply)
	return string(reply[:n]), err
}

func TestStartTLS(t *testing.T) {
	s, config := redistest.StartTLS(t)
	s.Do("SET", "k", "v")
	s.Restart()
	s.Do("SET", "k", "v")
	if want := "rediss://" + s.Addr(); s.URL() != want {
		t.Errorf("URL %s, want %s", s.URL(), want)
	}
	if got, err := ping(s.Addr(), config); got != "+PONG\r\n" {
		t.Errorf("PING gives %q, %v", got, err)
	}
	// Without the authority the certificate is worth nothing.
	if got, err := ping(s.Addr(), &tls.Config{}); err == nil || !strings.Contains(err.Error(), "unknown authority") {
		t.Errorf("without the authority PING gives %q, %v", got, err)
	}
	c := dial(t, s.Addr())
	c.send("PING")
	c.wantEnd()

	// The files lead to the same.
	pem, err := os.ReadFile(s.CAFile())
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(pem) {
		t.Fatal("no certificate in " + s.CAFile())
	}
	if got, err := ping(s.Addr(), &tls.Config{RootCAs: roots}); got != "+PONG\r\n" {
		t.Errorf("with the CA file PING gives %q, %v", got, err)
	}
}

func TestStartTLSWithClientCertificates(t *testing.T) {
	s, config := redistest.StartTLS(t, "--tls-auth-clients", "yes")
	if got, err := ping(s.Addr(), config); got != "+PONG\r\n" {
		t.Errorf("with the certificate PING gives %q, %v", got, err)
	}
	if got, err := ping(s.Addr(), &tls.Config{RootCAs: config.RootCAs}); err == nil {
		t.Errorf("without a certificate PING gives %q", got)
	}
	pair, err := tls.LoadX509KeyPair(s.CertFile(), s.KeyFile())
	if err != nil {
		t.Fatal(err)
	}
	fromFiles := &tls.Config{RootCAs: config.RootCAs, Certificates: []tls.Certificate{pair}}
	if got, err := ping(s.Addr(), fromFiles); got != "+PONG\r\n" {
		t.Errorf("with the files PING gives %q, %v", got, err)
	}
}
